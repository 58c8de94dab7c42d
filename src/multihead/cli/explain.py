"""`multihead explain`: a sentence through attention, on random weights or through a real head."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .errors import fail
from .progress import telling

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from ..views.followed import Followed
    from ..views.walk import Walk


SENTENCE = "The cat that I saw yesterday ran away"
DRAWN = ("heads", "dims", "seed", "no_mask")  # what shapes a random layer


def add_explain(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def explain(
        context: typer.Context,
        text: Annotated[
            list[str] | None,
            typer.Argument(metavar="[TEXT]", help="A sentence, else one of ours."),
        ] = None,
        heads: Annotated[
            int, typer.Option(metavar="N", help="How many heads; they must divide dims.")
        ] = 4,
        dims: Annotated[int, typer.Option(metavar="N", help="Numbers a word, d_model.")] = 16,
        seed: Annotated[int, typer.Option(metavar="N", help="Draws the random weights.")] = 0,
        no_mask: Annotated[
            bool, typer.Option("--no-mask", help="Let words look ahead, too.")
        ] = False,
        no_costs: Annotated[
            bool, typer.Option("--no-costs", help="Leave out the table of costs.")
        ] = False,
        model: Annotated[
            str | None,
            typer.Option(metavar="NAME", help="A head of a real model instead: smollm2, say."),
        ] = None,
        layer: Annotated[
            int | None, typer.Option(metavar="N", help="With --model: which layer.")
        ] = None,
        head: Annotated[
            int | None, typer.Option(metavar="N", help="With --model: which head.")
        ] = None,
        page: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Write a page that plays the walk."),
        ] = None,
    ) -> None:
        """Walk a sentence through attention, step by step.

        It shows the shapes and numbers of each step, the map of each head, and what one wide
        head, narrow heads and full-width heads cost. The weights are random: they show how
        attention works, and where a head looks means nothing. With --model the weights are
        learnt, and one head is followed: the one that reads most of the token before, unless
        --layer and --head choose. With --page the walk is one HTML file, to be opened in any
        browser and played step by step; the costs are left to the terminal.
        """
        sentence = SENTENCE if not text else " ".join(text)
        try:
            if model is not None:
                _no_drawn(context)
                _real(sentence, model, layer, head, page)
                return
            if layer is not None or head is not None:
                raise ValueError("--layer and --head choose in a real model; give --model smollm2.")
            from ..views.explain import explain
            from ..views.walk import walk

            seen = walk(sentence, heads=heads, dims=dims, seed=seed, masked=not no_mask)
            if page is not None:
                _write(page, seen)
                return
        except (ValueError, ImportError, RuntimeError) as error:
            fail("explain", error, len(sentence))
        explain(seen, _page(), costs=not no_costs)


def _no_drawn(context: "typer.Context") -> None:
    for name in DRAWN:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError(
                f"--{name.replace('_', '-')} shapes a layer of random weights, and --model has its "
                "own; leave one of them out."
            )


def _real(text: str, name: str, layer: int | None, head: int | None, page: Path | None) -> None:
    from ..sources import load_model
    from ..views.followed import check_sentence
    from ..views.real import explain_head, follow

    check_sentence(text)  # before a model is fetched for it
    with telling() as tell:
        model, tokenizer = load_model(name, progress=tell)
        tell("Recording the sentence", None)
        seen = follow(model, tokenizer, text, layer=layer, head=head)
    if page is not None:
        _write(page, seen)
        return
    explain_head(seen, _page())


def _write(path: Path, seen: "Walk | Followed") -> None:
    import typer

    from ..views.files import put
    from ..views.page.walked import walk_page

    content = walk_page(seen).encode("utf-8", "replace")
    put(path, content, other="another file with --page")
    typer.echo(f"{path} ({len(content) / 1000:.0f} kB) plays the walk; open it in a browser.")


def _page() -> "Console":
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, 80)  # a page for reading, on any screen
    return console
