"""What one page is about: recordings, perhaps the model they come from, and names for its heads."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

from ...patterns import habits
from ...recording import Recording
from ..findings import findings
from ..report import About, Report, Tell, check_text
from .cache import Cache
from .making import Guesses, Point, Text, cut_and_see, make_recording, read_again
from .moving import check_bound, measured
from .naming import Naming
from .numbers import numbers
from .shown import Shown
from .tiles import Map

CACHE = 256 * 2**20  # bytes of pyramids
MOST_TEXTS = 4  # recordings that are kept of texts that were typed in
MOST_TOKENS = 8192


class Session:
    """Everything that the page can ask for. Methods may be called from several threads at once."""

    def __init__(self, model: Any = None, tokenizer: Any = None, name: str = "") -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.shown: dict[str, Shown] = {}
        self.naming = Naming()
        self._cache = Cache(CACHE)
        self._ids = itertools.count()
        self._model_lock = threading.Lock()  # one run of the model at a time
        self._typed: list[str] = []  # ids of recordings that may go
        self._findings: dict[tuple[str, int, int], list[str]] = {}  # by text, and version of names

    # ── recordings

    def add(
        self, rec: Recording, label: str, about: dict[str, Any], guesses: Guesses | None = None
    ) -> str:
        number = str(next(self._ids))
        shown = Shown(rec, label, self._cache, about)
        shown.guesses = guesses
        self.shown[number] = shown
        return number

    def record(self, text: str, tokens: int, label: str, tell: Tell, typed: bool = False) -> str:
        """Record a text by the page's own model; returns the id of the recording."""
        if self.model is None:
            raise ValueError("there is no model here, only a recording; start look with --model.")
        check_text(text)
        if not 8 <= tokens <= MOST_TOKENS:
            raise ValueError(f"tokens must be 8 to {MOST_TOKENS:,}, but {tokens!r} came.")
        with self._model_lock:
            rec, guesses, about = make_recording(self.model, self.tokenizer, text, tokens, tell)
        if typed:  # who has left meanwhile pushes no other text out
            tell("Recorded", 1.0)
        number = self.add(rec, label, {**self.about(), **about, "text": label}, guesses)
        if typed:
            self._typed.append(number)
            while len(self._typed) > MOST_TEXTS:
                self._forget(self._typed.pop(0))
        return number

    def drop(self, number: str) -> None:
        """Forget a text that was typed in, and that nobody waits for."""
        with contextlib.suppress(ValueError):  # others have pushed it out already
            self._typed.remove(number)
        self._forget(number)

    def _forget(self, number: str) -> None:
        shown = self.shown.pop(number, None)
        if shown is not None:
            self._cache.drop(lambda key: isinstance(key, tuple) and key[0] == shown.serial)
        for key in [key for key in [*self._findings] if key[0] == number]:
            self._findings.pop(key, None)

    def about(self) -> dict[str, Any]:
        """The model's line, for whoever shows it: what it is, and that it was quantised."""
        from ...sources import about

        return {"model": about(self.model) if self.model is not None else ""}

    def of(self, number: str) -> Shown:
        shown = self.shown.get(number)
        if shown is None:
            known = ", ".join([*self.shown])
            raise ValueError(f"there is no recording {number[:40]!r}; choose one of {known}.")
        return shown

    # ── what is asked

    def home(self, number: str, batch: int) -> dict[str, Any]:
        shown = self.of(number)
        told = shown.home(batch)
        told |= {
            "recording": number,
            "recordings": [
                {"id": i, "label": s.label, "batches": s.batches} for i, s in [*self.shown.items()]
            ],
            "can_run": self.model is not None and shown.rec.ids is not None,
            "can_cut": self.model is not None and shown.rec.ids is not None,
        }
        return told

    def names(self, number: str, batch: int = 0) -> dict[str, Any]:
        told = self.naming.told()
        told["findings"] = self.findings(number, batch)
        return told

    def findings(self, number: str, batch: int = 0) -> list[str]:
        """Plain sentences on what was found so far, in one text."""
        key = (number, batch, self.naming.version)
        if key not in self._findings:
            shown, naming = self.of(number), self.naming
            shown.check_batch(batch)
            rec, about = shown.rec, shown.about
            has = rec.layers and all(
                k in rec.layers[0].kinds for k in ("peak_key", "received_mean")
            )
            told = About(
                about.get("model", ""), None, about.get("text", ""), about.get("total"),
                bool(about.get("bos")), about.get("bos_token"),
            )  # fmt: skip
            report = Report(
                told, rec, habits(rec, batch) if has else [], names=naming.names,
                scores=None, controlled=True, verdicts=naming.verdicts, rest="a story of ours",
                batch=batch,
            )  # fmt: skip
            said = findings(report)
            self._findings[key] = said if naming.names is not None else said[1:]
        return self._findings[key]

    def cut(
        self,
        number: str,
        heads: list[tuple[int, int]],
        lasso: list[Point] | None,
        by: str,
        batch: int = 0,
    ) -> dict[str, Any]:
        """What losses and next words of one text become without some heads, or some links."""
        shown, text = self._read(number, batch, "cut")
        with self._model_lock:
            seen = cut_and_see(self.model, self.tokenizer, text, heads, lasso, by)
            if shown.next_words(batch) is None:  # of a recording that came from a file
                shown.uncut[batch] = read_again(self.model, self.tokenizer, text)["guesses"]
        before = shown.rec.loss
        return {
            "loss": numbers(seen["loss"], 5),
            "mean": float(seen["loss"].nanmean()),
            "before": None if before is None else float(before[batch].nanmean()),
            "next": _rounded(seen["guesses"]),
            "next_before": _rounded(shown.next_words(batch) or []),
        }

    def _read(self, number: str, batch: int, what: str) -> tuple[Shown, Text]:
        """A text for the model to read once more."""
        shown = self.of(number)
        if self.model is None or shown.rec.ids is None:
            raise ValueError(f"nothing can be {what} without the model; start look with --model.")
        shown.check_batch(batch)
        text, known = Text.of(shown.rec, batch), self.model.config.get_text_config().vocab_size
        if int(text.ids.max()) >= known:
            raise ValueError(
                f"this text has token {int(text.ids.max())}, and the model knows {known:,}: it was "
                "recorded from another one; start look with that --model."
            )
        return shown, text

    def outputs(self, number: str, batch: int = 0) -> dict[str, list[float | None]]:
        """How much each head moves the output, by layer: one run of the model, and kept."""
        shown, text = self._read(number, batch, "measured")
        with self._model_lock:
            if batch not in shown.outputs:
                found = measured(self.model, text)
                most = {layer.index: shown.moves(layer, batch) for layer in shown.rec.layers}
                check_bound(found, most)
                shown.outputs[batch] = {str(i): numbers(norms, 5) for i, norms in found.items()}
        return shown.outputs[batch]

    def head(self, number: str, asked: Map, hide: bool | tuple[int, ...] = True) -> dict[str, Any]:
        """What is told of one head; where keys are hidden by name, the share of those."""
        shown, which = self.map(number, asked, hide)
        told = shown.head(asked)
        if isinstance(hide, tuple):
            told["hidden"] = shown.share_on(which, which.hidden)
        return told

    def map(self, number: str, asked: Map, hide: bool | tuple[int, ...]) -> tuple[Shown, Map]:
        """The map of a head with its sinks left out or not, or with the keys that are named."""
        shown = self.of(number)
        layer = shown.layer(asked)
        if isinstance(hide, tuple):
            hidden = tuple(key for key in hide if key < layer.keys)
        else:
            hidden = shown.sinks(layer, asked.head, asked.batch) if hide else ()
        return shown, Map(asked.layer, asked.head, asked.batch, asked.by, hidden)


def _rounded(guesses: Guesses) -> list[list[list[Any]]]:
    return [[[word, round(p, 4)] for word, p in row] for row in guesses]
