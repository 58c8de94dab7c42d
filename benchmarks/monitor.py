"""What watching the heads costs while a model trains: the share of training time at every=100.

    python benchmarks/monitor.py           some minutes; writes results/monitor.json
    python benchmarks/monitor.py --quick   a small model, writes nothing

CPU, float32: a GPT of 6 layers, 8 heads of 64, 512 tokens, batch 8, AdamW; forward, backward and
the optimiser's step. A step that is looked at takes turns with one that is not (medians). A step
between samples differs by one call to `step`, which is timed alone: it drowns in the noise of a
step. The share is what a sample adds, and a hundred such calls, in a hundred plain steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import machine, medians, save
from torch import nn

import multihead as mh

EVERY = 100
VOCABULARY = 1024


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = mh.MultiHeadAttention(
            width, heads, mask=mh.causal(), rope=mh.rope(10_000), bias=False
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Training:
    """A model, its batch and its optimiser; `step` is one step of training."""

    def __init__(self, layers: int, heads: int, tokens: int, batch: int) -> None:
        torch.manual_seed(0)
        width = 64 * heads
        self.model = nn.Sequential(
            nn.Embedding(VOCABULARY, width),
            *(Block(width, heads) for _ in range(layers)),
            nn.Linear(width, VOCABULARY),
        )
        self.ids = torch.randint(0, VOCABULARY, (batch, tokens + 1))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> torch.Tensor:
        self.optimiser.zero_grad()
        logits = self.model(self.ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten())
        loss.backward()
        self.optimiser.step()
        return loss


def looked_at(training: Training, **options) -> Callable[[], object]:
    """A step of training that is a sample, with all that is written of it."""

    def step() -> object:
        with mh.monitor(training.model, every=1, **options) as watch:
            return watch.step(training.step())

    return step


def step_alone(training: Training, count: int = 20_000) -> float:
    """Seconds that `step` takes between samples, with no training at all."""
    with mh.monitor(training.model, every=count + 2, step=1) as watch:
        start = time.perf_counter()
        for _ in range(count):
            watch.step()
        return (time.perf_counter() - start) / count


def called_between(training: Training) -> set[str]:
    """Which functions of the monitor and of the interception run in a step between samples."""
    called = set()

    def saw(frame, event, _) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith(("multihead.recording", "multihead.monitoring")):
            called.add(frame.f_code.co_qualname)

    with mh.monitor(training.model, every=EVERY, step=1) as watch:
        sys.setprofile(saw)
        try:
            watch.step(training.step())
        finally:
            sys.setprofile(None)
    return called


def measure(seconds: float, **shape: int) -> dict:
    training = Training(**shape)
    print(f"called between samples: {', '.join(sorted(called_between(training)))}")
    with tempfile.TemporaryDirectory() as folder:
        found = medians(
            {
                "plain": training.step,
                "lines": looked_at(training, to=Path(folder) / "heads.jsonl"),
                "folder": looked_at(training, to=Path(folder) / "run"),
                "all rows": looked_at(training, rows=None),
            },
            seconds=seconds,
        )
    call, plain = step_alone(training), found.pop("plain")
    rows = []
    for name, took in found.items():
        share = (took - plain + EVERY * call) / (EVERY * plain)
        rows.append({"kind": name, "seconds": took, "plain": plain, "share": share})
        print(f"{name:10} {took:8.3f} s of {plain:.3f} s plain; every {EVERY}: {100 * share:.2f} %")
    print(f"step() between samples: {1e6 * call:.2f} µs")
    return {"shape": shape, "every": EVERY, "times": rows, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, nothing written")
    asked = parser.parse_args()
    print("  ".join(f"{name} {value}" for name, value in machine().items()))
    if asked.quick:
        measure(2.0, layers=2, heads=4, tokens=128, batch=4)
        return
    save("monitor", measure(240.0, layers=6, heads=8, tokens=512, batch=8))


if __name__ == "__main__":
    main()
