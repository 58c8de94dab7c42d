"""What several commands ask for, in the same words. Imported by a command that is asked for."""

from typing import Annotated

import typer

Text = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]", help="Else a story of ours.")]
File = Annotated[str | None, typer.Option(metavar="FILE", help="Read the text here; - is stdin.")]
Tokens = Annotated[int, typer.Option(metavar="N", help="Read at most so many tokens.")]

_model = typer.Option(metavar="NAME", help="A name, a transformers id or a folder.")
Model = Annotated[str, _model]
ModelOrNone = Annotated[str | None, _model]
