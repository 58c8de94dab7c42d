"""Names for what heads do: measured on cue and at rest, beside controls, and checked by cutting."""

from __future__ import annotations

from .copying import copying
from .default_text import DEFAULT_TEXT
from .habits import FEW, Habit, Sink, habits, sinks, sinks_in
from .probing import Name, Probe, probe
from .table import PATTERNS, Pattern
from .verdicts import Verdict, verify

__all__ = [
    "DEFAULT_TEXT", "FEW", "PATTERNS", "Habit", "Name", "Pattern", "Probe", "Sink", "Verdict",
    "copying", "habits", "probe", "sinks", "sinks_in", "verify",
]  # fmt: skip
