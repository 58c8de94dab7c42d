"""Everything that makes a run, in one record; presets, and settings out of a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEVICES = ("auto", "cpu", "cuda")
SYMBOLS = ("characters", "bytes")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is learnt, by which model, and how. The same settings give the same run.

    >>> Settings(num_heads=3)
    Traceback (most recent call last):
    ValueError: d_model must be a multiple of num_heads, and 64 dims for 3 heads came; give heads
    that divide 64.
    """

    data: str = "names"  # or the path of a text
    symbols: str = "characters"  # of a text, or bytes
    # the model
    d_model: int = 64
    num_heads: int = 4
    num_layers: int = 3
    context: int = 16  # tokens of the longest document
    positions: str = "rope"
    dropout: float = 0.1
    # the training
    steps: int = 1200
    rows: int = 32  # of a batch
    tokens: int = 64  # of a row
    lr: float = 4e-3  # the highest, after the warm-up
    warmup: int = 100  # steps
    last_lr: float = 0.02  # at the end of the cosine, as a share of the highest
    weight_decay: float = 0.1
    clip: float = 1.0  # the largest norm of a gradient
    seed: int = 0
    # how often, in steps
    log_every: int = 10
    held_out_every: int = 250
    checkpoint_every: int = 100
    heads_every: int = 50  # a look at every head
    # where
    device: str = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_kind(field.name, getattr(self, field.name), type(field.default))
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, and {getattr(self, name)} came.")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            endless = value == math.inf and name != "clip"  # which then clips nothing
            if not low <= value <= high or math.isnan(value) or endless:
                most = f" and at most {high}" if high < math.inf else " and finite" * endless
                raise ValueError(f"{name} must be at least {low}{most}, and {value} came.")
        for name, known in (("device", DEVICES), ("symbols", SYMBOLS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, and {getattr(self, name)!r} came."
                )
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads, and {self.d_model} dims for "
                f"{self.num_heads} heads came; give heads that divide {self.d_model}."
            )

    def of(self, changes: Mapping[str, Any]) -> Settings:
        """The same with some settings changed; one that is not known is refused."""
        for name in changes:
            if name not in _NAMES:
                near = difflib.get_close_matches(name, _NAMES, n=1)
                guess = f"did you mean {near[0]}?" if near else f"there is: {', '.join(_NAMES)}."
                raise ValueError(f"there is no setting {name!r}; {guess}")
        return dataclasses.replace(self, **changes)

    def placed(self) -> Settings:
        """The same with its text named from the root: found from any directory, later on too."""
        if self.data in ("", "names"):
            return self
        return self.of({"data": str(Path(self.data).absolute())})

    def lr_at(self, step: int) -> float:
        """Up in a line through the warm-up, then down half a cosine.

        >>> s = Settings(lr=1.0, warmup=10, steps=111, last_lr=0.1)
        >>> [round(s.lr_at(step), 3) for step in (0, 9, 60, 110)]
        [0.1, 1.0, 0.55, 0.1]
        """
        warmup = min(self.warmup, self.steps)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        done = (step - warmup) / max(1, self.steps - 1 - warmup)
        share = self.last_lr + (1 - self.last_lr) * (1 + math.cos(math.pi * min(1.0, done))) / 2
        return self.lr * share


_NAMES = tuple(field.name for field in dataclasses.fields(Settings))
_COUNTS = ("d_model", "num_heads", "num_layers", "context", "steps", "rows", "tokens", "log_every",
           "held_out_every", "checkpoint_every", "heads_every")  # fmt: skip
_RANGES = {"dropout": (0.0, 0.9), "warmup": (0, math.inf), "last_lr": (0.0, 1.0),
           "weight_decay": (0.0, math.inf), "clip": (1e-6, math.inf), "lr": (0.0, math.inf),
           "seed": (0, 2**31)}  # fmt: skip


def _check_kind(name: str, value: object, kind: type) -> None:
    """TOML may bring anything; a whole number is a fraction too, a truth value is neither."""
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits:
        what = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
        raise ValueError(f"{name} must be {what}, and {value!r} came.")


# A new preset is one more line here.
PRESETS: dict[str, Settings] = {
    # 16 dims, 4 heads of 4, one layer: about 4,200 parameters, every one of which can be looked at.
    "textbook": Settings(
        d_model=16, num_layers=1, positions="learned", dropout=0.0, steps=2000, rows=16, lr=1e-2,
        weight_decay=0.01,
    ),
    "names-small": Settings(),  # what `load_model("names")` gives
    "text-small": Settings(
        data="", d_model=128, num_layers=4, context=128, tokens=128, rows=16, steps=2000, lr=2e-3,
    ),
}  # fmt: skip


def preset(name: object) -> Settings:
    """The settings of that name, which may have come out of a file."""
    if not isinstance(name, str):
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, and {name!r} came.")
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        guess = f"did you mean {near[0]}? There is" if near else "there is"
        raise ValueError(f"there is no preset {name!r}; {guess}: {', '.join(PRESETS)}.")
    return PRESETS[name]


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, as `steps = 3000`; its preset too, as `preset = "textbook"`.

    Those of a wrong kind are refused even where others, of the command line, go before them.
    """
    try:
        told = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror or error}; see its name."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be TOML, as in steps = 3000, and is not: {error}.") from None
    for field in dataclasses.fields(Settings):
        if field.name in told:
            _check_kind(field.name, told[field.name], type(field.default))
    return told
