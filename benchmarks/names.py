"""The names model: measured on names it has not seen, and put into the package.

multihead train names && python benchmarks/names.py [--ship]

Its loss beside a bigram's, how many of its samples are copies, what each head reads, and what it
costs to cut exactly those links. `--ship` writes names.safetensors and names.json beside the data.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from measure import machine, save

from multihead.training import GPT, Run, read_model, write_model
from multihead.training.bigram import names_bigram
from multihead.training.names import IGNORED, NAMES, names, pack, part
from multihead.views.learnt import Habit, Learnt, learnt, loss_without
from multihead.views.samples import names_drawn

SHIPPED = Path(__file__).parent.parent / "src" / "multihead" / "training" / "names.safetensors"
DRAWN = 1000
ROW = 64
CUT = ("previous", "two before", "first", "self", "repeated")  # patterns that are cut everywhere


def mean_loss(model: GPT, which: str) -> float:
    ids, targets = pack(part(which), ROW)
    each = loss_without(model, (ids, targets))
    count = (targets != IGNORED).sum(1)
    return float((each * count).sum() / count.sum())


def change(without: torch.Tensor, base: torch.Tensor) -> dict[str, float]:
    """The mean change of the loss and half its 95 % interval, over rows of names."""
    worse = without - base
    return {
        "change": float(worse.mean()),
        "half": 1.96 * float(worse.std()) / math.sqrt(len(worse)),
    }


def cuts(model: GPT, heads: list[Learnt]) -> dict[str, list[dict]]:
    """Each told habit cut in its head; beside it all the head's other links. Then all heads."""
    batch = pack(part("test"), ROW)
    base = loss_without(model, batch)
    own = []
    for one, habit in strongest(heads):
        place = [(one.layer, one.head)]
        without = loss_without(model, batch, place, habit.pattern)
        others = loss_without(model, batch, place, habit.pattern, others=True)
        own.append({
            "layer": one.layer, "head": one.head, "pattern": habit.pattern, "says": habit.says,
            "score": habit.score, "chance": habit.chance, "told": habit.told,
            "own": change(without, base), "others": change(others, base),
        })  # fmt: skip
    every = [(one.layer, one.head) for one in heads]
    together = [
        {"pattern": pattern, **change(loss_without(model, batch, every, pattern), base)}
        for pattern in CUT
    ]
    return {"own": own, "together": together}


def strongest(heads: list[Learnt]) -> list[tuple[Learnt, Habit]]:
    """Every habit that is told, and of the character before and the beginning the strongest."""
    every = [(one, habit) for one in heads for habit in one.habits]
    best = [
        max((both for both in every if both[1].pattern == pattern), key=lambda b: b[1].excess)
        for pattern in ("previous", "first")
    ]
    return [both for both in every if both[1].told or both in best]


def measured(model: GPT, settings: dict, command: str, lines: list[dict]) -> dict:
    drawn = names_drawn(model, DRAWN, seed=0)
    heads = learnt(model, pack(part("test"), ROW)[0][:128])
    return {
        "command": command, "settings": settings,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "loss": {which: mean_loss(model, which) for which in ("train", "held out", "test")},
        "bigram": {which: names_bigram(which) for which in ("train", "held out", "test")},
        "curve": [
            {"step": line["step"], "held_out": line["held_out"]}
            for line in lines if line["held_out"] is not None
        ],
        "samples": {
            "drawn": DRAWN, "different": len({*drawn.names}), "trained_on": drawn.known,
            "real_and_unseen": drawn.elsewhere, "new": drawn.new[:24],
        },
        "heads": [
            {
                "layer": one.layer, "head": one.head,
                "habits": [
                    {"pattern": h.pattern, "score": h.score, "chance": h.chance, "told": h.told}
                    for h in one.habits
                ],
            }
            for one in heads
        ],
        "cuts": cuts(model, heads),
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run", type=Path, default=Path("runs/names"))
    options.add_argument("--ship", action="store_true", help="put the model into the package")
    asked = options.parse_args()
    run = Run(asked.run)
    model, alphabet, _ = read_model(run.checkpoint)
    told = json.loads((asked.run / "config.json").read_text("utf-8"))
    body = measured(model, told["settings"], told["command"], run.lines())
    print(save("names", body))
    print(json.dumps({k: body[k] for k in ("loss", "bigram", "samples")}, indent=1))
    if asked.ship:
        assert alphabet == NAMES
        write_model(SHIPPED, model, alphabet, {"command": told["command"]})
        figures = {
            "command": told["command"], "settings": told["settings"], "machine": machine(),
            "names": len(names()), "parameters": body["parameters"], "loss": body["loss"],
            "bigram": body["bigram"],
        }  # fmt: skip
        SHIPPED.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
        print(f"{SHIPPED} {SHIPPED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
