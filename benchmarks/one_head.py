"""Is one head enough? Names with 1, 2, 4, 8 and 16 heads, at equal parameters.

python benchmarks/one_head.py [--quick]

The same model but for how its 64 dims are shared out; the same seeds, so that each has the same
batches. Loss on names that were neither trained on nor watched, how unlike the heads of a layer
are, and what it costs to silence one of them or all of a layer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import time
from pathlib import Path

import torch
from measure import save

import multihead as mh
from multihead.training import GPT, Settings, Trainer
from multihead.training.names import pack, part
from multihead.views.learnt import loss_without

HEADS = (1, 2, 4, 8, 16)
SEEDS = (0, 1, 2, 3)
SOME = 1000  # names to silence heads on: there are many heads
# Learned positions: rope would have two frequencies in a head of 4 dims, and 32 in one of 64.
BASE = Settings(
    num_layers=2, steps=300, positions="learned", dropout=0.0, held_out_every=10_000, device="cpu"
)
QUICK = BASE.of({"steps": 5, "d_model": 16, "num_layers": 1, "rows": 4})
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # of a 95 % interval over so many seeds
FIGURE = Path(__file__).parent.parent / "docs" / "heads.svg"


def loss(model: GPT, batch: tuple[torch.Tensor, torch.Tensor], silent: list | None = None) -> float:
    without = mh.ablate(model, heads=silent) if silent else contextlib.nullcontext()
    with without:
        each = loss_without(model, batch)
    count = (batch[1] >= 0).sum(1)
    return float((each * count).sum() / count.sum())


@torch.no_grad()
def unlike(model: GPT, ids: torch.Tensor) -> float | None:
    """The mean Jensen–Shannon divergence between two heads of a layer, as a share of ln 2."""
    with mh.record(model, stats=()) as rec:
        model(ids)
    found = []
    for layer in rec.layers:
        if layer.heads > 1:
            query, key = layer.qk(0)
            apart = mh.similarity(query, key, rows=slice(None), **layer.asked(0)).mean(0)
            found.append(float(apart[~torch.eye(layer.heads, dtype=torch.bool)].mean()))
    return statistics.mean(found) / math.log(2) if found else None


def study(settings: Settings, names: int | None) -> dict:
    trainer = Trainer(settings)
    start = time.process_time()
    trainer.train()
    seconds = time.process_time() - start
    model, batch = trainer.model, pack(part("test")[:names], settings.tokens)
    few = pack(part("test")[: min(SOME, names or SOME)], settings.tokens)
    base = loss(model, few)
    layers, heads = range(settings.num_layers), range(settings.num_heads)
    single = {
        (n, h): loss(model, few, [(n, h)]) - base for n, h in itertools.product(layers, heads)
    }
    whole = [loss(model, few, [(n, h) for h in heads]) - base for n in layers]
    return {
        "heads": settings.num_heads, "seed": settings.seed, "loss": loss(model, batch),
        "seconds": seconds,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "unlike": unlike(model, batch[0][:32]),
        "one": statistics.mean(single.values()), "worst": max(single.values()),
        "layer": statistics.mean(whole),
        "sum": statistics.mean(sum(single[n, h] for h in heads) for n in layers),
    }  # fmt: skip


def gathered(runs: list[dict]) -> list[dict]:
    """A row for each number of heads: means over seeds, half the 95 % interval of the loss.

    `beside` is the loss less that of one head with the same seed, which had the same batches.
    """
    rows = []
    alone = {run["seed"]: run["loss"] for run in runs if run["heads"] == 1}
    for heads in dict.fromkeys(run["heads"] for run in runs):
        own = [run for run in runs if run["heads"] == heads]
        beside = [run["loss"] - alone[run["seed"]] for run in own]
        row = {"heads": heads, "seeds": len(own), "parameters": own[0]["parameters"],
               "loss": _mean(own, "loss"), "half": _half([run["loss"] for run in own]),
               "beside": statistics.mean(beside), "beside_half": _half(beside)}  # fmt: skip
        rows.append(
            row | {k: _mean(own, k) for k in ("unlike", "one", "worst", "layer", "sum", "seconds")}
        )
    return rows


def _mean(runs: list[dict], key: str) -> float | None:
    values = [run[key] for run in runs]
    return None if None in values else statistics.mean(values)


def _half(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    return STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def draw(rows: list[dict], runs: list[dict], path: Path) -> None:
    """Loss against heads, every seed a dot; and what one head and a whole layer are worth."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "multihead", "svg.fonttype": "none"}
    import matplotlib.pyplot as plt

    heads = [row["heads"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot([r["heads"] for r in runs], [r["loss"] for r in runs], "o", ms=4, alpha=0.5)
    left.errorbar(
        heads, [r["loss"] for r in rows], [r["half"] or 0 for r in rows], capsize=4, color="black"
    )
    left.set(title="loss on unseen names", ylabel="nats a character")
    for key, label in (("layer", "all heads of a layer"), ("sum", "its heads one by one, summed"),
                       ("one", "one head")):  # fmt: skip
        right.plot(heads, [r[key] for r in rows], "o-", ms=4, label=label)
    right.set(title="what silencing costs", ylabel="nats a character", ylim=(0, None))
    right.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.42))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(heads, [str(h) for h in heads])
        axes.set_xlabel("heads, at equal parameters")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="a smoke test; nothing is written")
    quick = options.parse_args().quick
    torch.set_num_threads(1)  # small matrices gain nothing from more
    runs: list[dict] = []
    for seed in SEEDS[:2] if quick else SEEDS:
        for heads in HEADS:
            settings = (QUICK if quick else BASE).of({"num_heads": heads, "seed": seed})
            run = study(settings, 100 if quick else None)
            runs.append(run)
            told = f"{run['loss']:.4f}, {run['seconds']:.0f} s"
            print(f"{heads:2} heads, seed {seed}: {told}", flush=True)
        if not quick:  # a seed is worth keeping, whatever comes of the next one
            write(runs)
    for row in gathered(runs):
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})


def write(runs: list[dict]) -> None:
    rows = gathered(runs)
    save("heads", {"rows": rows, "runs": runs, "steps": BASE.steps, "layers": BASE.num_layers})
    draw(rows, runs, FIGURE)


if __name__ == "__main__":
    main()
