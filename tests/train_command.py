"""`multihead train` as tests call it: in a folder of their own, on a model of a moment."""

from typer.testing import CliRunner

from multihead import cli

TINY = "d_model = 8\nnum_heads = 2\nnum_layers = 1\nrows = 8\nsteps = 12\ncheckpoint_every = 4\n"


def call(*arguments: str):
    return CliRunner().invoke(cli.build(), [*arguments], prog_name="multihead")
