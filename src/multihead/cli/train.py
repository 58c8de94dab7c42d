"""`multihead train`: a small GPT on names or on a text of one's own, and what its heads learnt."""

import contextlib
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .errors import fail
from .progress import Tell, telling
from .train_settings import settings_asked

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer

    from ..monitoring import Monitor
    from ..training import Settings, Step, Trainer
    from ..views.watching import Watching

SAMPLES = 12
WARNED = 8  # warnings of heads that are told at the end
LOOKED_AT = 64  # rows of what was held out, to tell by what heads have learnt


def add_train(app: "typer.Typer") -> None:
    import typer

    @app.command()
    def train(
        data: Annotated[
            str | None, typer.Argument(metavar="DATA", help="names, which come with it.")
        ] = None,
        text: Annotated[
            Path | None, typer.Option(metavar="FILE", help="A text of your own, UTF-8.")
        ] = None,
        symbols: Annotated[
            str | None, typer.Option(metavar="KIND", help="Of a text: characters, or bytes.")
        ] = None,
        preset: Annotated[
            str | None,
            typer.Option(metavar="NAME", help="textbook, names-small or text-small."),
        ] = None,
        config: Annotated[
            Path | None, typer.Option(metavar="FILE.TOML", help="Any settings, a line each.")
        ] = None,
        steps: Annotated[int | None, typer.Option(metavar="N", help="How many steps.")] = None,
        seed: Annotated[
            int | None, typer.Option(metavar="N", help="Draws weights and batches.")
        ] = None,
        heads: Annotated[int | None, typer.Option(metavar="N", help="Heads a layer.")] = None,
        lr: Annotated[float | None, typer.Option(metavar="X", help="The learning rate.")] = None,
        device: Annotated[
            str | None, typer.Option(metavar="NAME", help="cpu or cuda; else what there is.")
        ] = None,
        out: Annotated[
            Path | None, typer.Option("-o", "--out", metavar="DIR", help="Else runs/NAME.")
        ] = None,
        resume: Annotated[
            Path | None, typer.Option(metavar="DIR", help="Go on with the run in a folder.")
        ] = None,
        watch: Annotated[
            bool, typer.Option("--watch", help="Show every head while it trains.")
        ] = False,
    ) -> None:
        """Train a small GPT, and say what each of its heads has learnt.

        On names it takes a minute or two. The run lives in a folder: settings, losses and heads on
        the way, and a checkpoint, from which it goes on when it is started again, bit for bit on
        a CPU. `multihead look --model runs/names` looks into it, and `multihead look --run
        runs/names` plays how its heads came to be.
        """
        asked = {
            "symbols": symbols, "steps": steps, "seed": seed, "num_heads": heads, "lr": lr,
            "device": device,
        }  # fmt: skip
        try:
            settings, folder = settings_asked(data, text, preset, config, asked, out, resume)
            _train(settings, folder, watch)
        except (ValueError, ImportError, RuntimeError) as error:
            fail("train", error, 0)


def _train(settings: "Settings", folder: Path, watch: bool) -> None:
    from ..training import Trainer

    trainer = Trainer(settings, folder)
    heads = _Heads(trainer, folder, watch)
    start = time.perf_counter()
    with _no_bar() if watch else telling() as tell, heads.looked_at():
        shown = _Shown(tell)

        def after_step(done: "Step") -> None:
            shown(done)
            heads(done)

        trainer.train(after_step, at_start=heads.begin, command=_command())
    seconds = time.perf_counter() - start
    _tell_losses(trainer, folder, shown, seconds)
    _tell_samples(trainer)
    heads.tell()
    _tell_heads(trainer, folder)


def _no_bar() -> contextlib.AbstractContextManager[Tell]:
    return contextlib.nullcontext(lambda message, share: None)


def _screen() -> "Watching":
    from rich.console import Console

    from ..views.watching import Watching

    return Watching(Console())


class _Heads:
    """Every head, a sample in so many steps, into the run's folder; and on the screen if asked."""

    def __init__(self, trainer: "Trainer", folder: Path, watch: bool) -> None:
        self.trainer, self.folder, self.warned = trainer, folder, []
        self._monitor: Monitor | None = None
        self._screen = _screen() if watch else None
        self._check_own()

    def _check_own(self) -> None:
        """Refuse lines that no monitor wrote, before anything of the run stands beside them."""
        from ..monitoring import read_lines

        if not (self.folder / "heads.jsonl").exists():
            return
        try:
            read_lines(self.folder)
        except OSError as error:
            raise ValueError(
                f"{self.folder}/heads.jsonl cannot be read: {error.strerror or error}; give "
                "another --out."
            ) from None

    def begin(self) -> None:
        """Once it is known which step comes next: samples from there on are made anew."""
        from ..monitoring import forget

        if self.trainer.begins_again:
            forget(self.folder)
        if self.trainer.step < self.trainer.settings.steps:  # else all was looked at
            self._monitor = self._watch(self.trainer.settings.heads_every)

    def _watch(self, every: int) -> "Monitor":
        from ..monitoring import monitor

        screen = [] if self._screen is None else [self._screen.add]
        to = [self.folder, self._note, *screen]
        return monitor(self.trainer.called, every=every, to=to, step=self.trainer.step)

    def _note(self, record: dict[str, Any]) -> None:
        self.warned += [(record["step"], one["text"]) for one in record["warnings"]]

    def __call__(self, done: "Step") -> None:
        if self._monitor is None:
            return
        self._monitor.step(done.loss)
        if done.step == done.steps:  # what the last step made is seen by one more forward
            self._monitor.close()
            self._monitor = self._watch(every=1)
            self._monitor.step(self.trainer.next_loss())

    @contextlib.contextmanager
    def looked_at(self) -> "Iterator[None]":
        from ..monitoring import HeadWarning

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HeadWarning)  # told in `tell`, and on the screen
                yield
        finally:
            for one in (self._monitor, self._screen):
                if one is not None:
                    one.close()

    def tell(self) -> None:
        import typer

        if self.warned:
            typer.echo("\nheads that left their own history")
        for step, text in self.warned[:WARNED]:
            typer.echo(f"  step {step:,}: {text}")
        if len(self.warned) > WARNED:
            typer.echo(f"  and {len(self.warned) - WARNED} more, in {self.folder}/heads.jsonl")


class _Shown:
    """Loss and speed while it trains: in a bar, and a line for each held-out loss where is none."""

    def __init__(self, tell: Tell) -> None:
        from ..sources.progress import can_draw

        self.tell, self.first, self.last = tell, 0, None
        self.held_out = ""
        self.lines = sys.stderr is not None and not can_draw()

    def __call__(self, done: "Step") -> None:
        self.first, self.last = self.first or done.step, done
        if done.held_out is not None:
            self.held_out = f", held out {done.held_out:.3f}"
        said = (
            f"step {done.step:,} of {done.steps:,}, loss {done.loss:.3f}{self.held_out}, "
            f"{done.tokens_per_second:,.0f} tokens/s"
        )
        self.tell(f"Training: {said}", done.step / done.steps)
        if self.lines and done.held_out is not None:
            print(f"multihead: {said}", file=sys.stderr, flush=True)


def _command() -> str:
    return shlex.join(["multihead", *sys.argv[1:]])


def _tell_losses(trainer: "Trainer", folder: Path, shown: _Shown, seconds: float) -> None:
    import typer

    from ..training.bigram import bigram, loss_of

    last, what = shown.last, trainer.data.what
    if last is None:
        typer.echo(f"The run in {folder} is finished: {trainer.step:,} steps were done before.")
    else:
        of = f" (from step {shown.first:,} on)" if shown.first > 1 else ""
        typer.echo(
            f"{trainer.model.config.about}: {last.step:,} steps{of} in {seconds:.0f} s, "
            f"{last.tokens_per_second:,.0f} tokens/s"
        )
    train = [trainer.data.next() for _ in range(200)] if what != "names" else None
    table = bigram(train or _train_names(trainer), len(trainer.data.alphabet))
    beside = loss_of(table, trainer.data.held_out())
    typer.echo(
        f"held out: {trainer.held_out:.3f} nats a {_unit(trainer)}; a bigram, of pairs alone, "
        f"{beside:.3f}"
    )


def _train_names(trainer: "Trainer") -> Any:
    return trainer.data.held_out("train")


def _unit(trainer: "Trainer") -> str:
    return "byte" if trainer.data.alphabet.symbols is None else "character"


def _tell_samples(trainer: "Trainer") -> None:
    import typer

    from ..views.samples import names_drawn, text_drawn

    typer.echo("\nsamples")
    if trainer.data.separator is None:
        typer.echo(text_drawn(trainer.model, trainer.data.alphabet, seed=trainer.settings.seed))
        return
    drawn = names_drawn(trainer.model, SAMPLES, seed=trainer.settings.seed)
    typer.echo(f"  {' '.join(drawn.names)}")
    typer.echo(f"  {drawn.known} of {len(drawn.names)} are among the names it was trained on")


def _tell_heads(trainer: "Trainer", folder: Path) -> None:
    import torch
    import typer

    from ..views.learnt import learnt

    ids = torch.cat([ids for ids, _ in trainer.data.held_out()])[:LOOKED_AT]
    typer.echo("\nwhat each head reads, on what was held out: share of its weight, where it could")
    for one in learnt(trainer.model, ids):
        typer.echo(f"  {one.layer}.{one.head}  {one}")
    typer.echo(f"\nmultihead look --model {folder}    looks into it")
    typer.echo(f"multihead look --run {folder}      plays how its heads came to be")
