"""`multihead bench`: what attention, and looking into it, takes on this machine."""

import dataclasses
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

from .errors import fail
from .progress import telling

if TYPE_CHECKING:
    import typer

    from ..masks import Mask

MOST = 1 << 20  # tokens


def add_bench(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def bench(
        tokens: Annotated[
            str, typer.Option(metavar="N,N,…", help="How many tokens look at one another.")
        ] = "1024,4096",
        heads: Annotated[int, typer.Option(metavar="N", help="Query heads.")] = 12,
        kv_heads: Annotated[
            int | None, typer.Option(metavar="N", help="Key heads, which they share; else as many.")
        ] = None,
        dim: Annotated[int, typer.Option(metavar="N", help="Numbers a head.")] = 64,
        batch: Annotated[int, typer.Option(metavar="N", help="Texts at a time.")] = 1,
        mask: Annotated[
            str, typer.Option(metavar="MASK", help='As in "causal() & window(256)", or none.')
        ] = "causal()",
        stats: Annotated[
            str, typer.Option(metavar="S,S,…", help="What looking tells.")
        ] = "entropy,distance,peak",
        dtype: Annotated[
            str | None,
            typer.Option(metavar="TYPE", help="Else float32 on a CPU, bfloat16 on a GPU."),
        ] = None,
        device: Annotated[
            str | None, typer.Option(metavar="cpu|cuda", help="Else a GPU, if there is one.")
        ] = None,
        backward: Annotated[
            bool, typer.Option("--backward", help="Time the gradients, too.")
        ] = False,
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Time attention on this machine: fused, looked into, and eager.

        The same random tensors go through PyTorch's fused attention, through attend, through
        observe, which tells what every row of every head did, and through eager attention,
        which builds the whole matrix to tell one thing. It shows medians, after half a minute
        on a small machine; figures from our own are in docs/performance.md.
        """
        try:
            import torch

            from ..measuring import Asked

            lengths = lengths_of(tokens)
            if device is None:
                device = "cuda" if torch.cuda.is_available() else "cpu"
            if dtype is None:
                dtype = "float32" if device == "cpu" else "bfloat16"
            key_heads = heads if kv_heads is None else kv_heads
            asked = Asked(
                mask_of(mask), stats_of(stats), batch, heads, key_heads, dim, dtype, device,
                backward,
            )  # fmt: skip
            show(asked, lengths, json=json)
        except (ValueError, ImportError, RuntimeError) as error:
            fail("bench", error, 0)


def lengths_of(text: str) -> list[int]:
    """
    >>> lengths_of("1024, 4_096")
    [1024, 4096]
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(2 <= n <= MOST for n in found):
        raise ValueError(
            f"--tokens must be numbers from 2 to {MOST:,}, and {text!r} came; give 1024,4096, say."
        )
    return found


def mask_of(text: str) -> "Mask | None":
    from ..masks import read

    return None if text.strip().lower() == "none" else read(text)


def stats_of(text: str) -> tuple[str, ...]:
    """
    >>> stats_of("entropy, peak,entropy")
    ('entropy', 'peak')
    """
    from ..observation.statistics import STATISTICS

    names = dict.fromkeys(part.strip() for part in text.split(","))
    for name in names:
        if name not in STATISTICS:
            raise ValueError(
                f"--stats takes names, and {name!r} came; give some of {', '.join(STATISTICS)}."
            )
    return tuple(names)


def show(asked: Any, lengths: list[int], *, json: bool) -> None:
    """What was measured is shown, whatever ends the measuring."""
    from ..measuring import Row, compare, others, spent

    rows: list[Row] = []
    before = spent()
    try:
        with telling() as tell:
            for row in compare(asked, lengths, tell):
                rows.append(row)
    finally:
        if rows:
            tell_of(asked, rows, others(before, spent()), json=json)


def tell_of(asked: Any, rows: list[Any], noise: float, *, json: bool) -> None:
    import typer

    from ..measuring import machine

    here = machine(asked.device)
    if json:
        mask = None if asked.mask is None else str(asked.mask)
        question = dataclasses.asdict(asked) | {"mask": mask}
        told = {"machine": here, "others": noise, "asked": question}
        told["rows"] = [dataclasses.asdict(row) for row in rows]
        typer.echo(dumps(told, indent=1))
        return
    from rich.console import Console

    from ..views.measured import print_measured

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, 80)  # a page for reading, on any screen
    print_measured(asked, rows, here, console, noise)
