"""Induction, watched being born: two layers of attention learn to go on with what they have seen.

python examples/induction.py --out induction.png     under two minutes on two CPU cores
python examples/induction.py --run runs/induction    the same, to be played: multihead look --run

Random tokens cannot be foreseen, but for the second copy of a piece: there a head can look for what
stood behind the same token before. That takes two: a head in layer 0 that tells each token its
predecessor, and one in layer 1 that looks for the predecessor it has now (Olsson et al. 2022,
In-context Learning and Induction Heads). Copies differ in length and in distance from row to row,
so that no head gets by with a fixed step back.
"""

import argparse
import contextlib
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import multihead as mh

VOCABULARY, TOKENS, BOS = 64, 64, 0
CHANCE = math.log(VOCABULARY - 1)  # nats; BOS is never drawn again
BEFORE, INDUCTION = "mass:offset(-1)", "induction"


def texts(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """BOS, random tokens, and in the end a copy of some of them: (row, token) and where that is."""
    ids = torch.randint(1, VOCABULARY, (count, TOKENS), generator=random)
    ids[:, 0] = BOS
    length = torch.randint(TOKENS // 6, TOKENS * 3 // 8, (count, 1), generator=random)
    room = TOKENS - 1 - 2 * length
    gap = (torch.rand(count, 1, generator=random) * (room + 1)).long()
    place = torch.arange(TOKENS)
    copy = place >= TOKENS - length  # (row, token)
    return torch.where(copy, ids.gather(1, (place - length - gap).clamp(min=0)), ids), copy


class Model(nn.Module):
    """Embed, two layers of attention alone, unembed."""

    def __init__(self, d_model: int = 64, num_heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, d_model)
        self.norms = nn.ModuleList(nn.RMSNorm(d_model) for _ in range(2))
        self.layers = nn.ModuleList(
            mh.MultiHeadAttention(d_model, num_heads, mask=mh.causal(), rope=mh.rope(10_000))
            for _ in range(2)
        )
        self.last = nn.Sequential(nn.RMSNorm(d_model), nn.Linear(d_model, VOCABULARY, bias=False))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)  # (row, token, d_model)
        for norm, attend in zip(self.norms, self.layers, strict=True):
            x = x + attend(norm(x))
        return self.last(x)

    def observe(self, ids: Tensor) -> list[mh.Observation]:
        """What every head of both layers did: each pattern is a mask."""
        stats = ("entropy", "peak", mh.mass(mh.prefix(1)), mh.mass(mh.offset(-1)), mh.heatmap(32),
                 mh.mass(mh.after_same_token(ids), name=INDUCTION))  # fmt: skip
        x, seen = self.embed(ids), []
        for norm, attend in zip(self.norms, self.layers, strict=True):
            y, found = attend.observe(norm(x), stats=stats)
            x = x + y
            seen.append(found)
        return seen


@dataclass
class Watched:
    """What is looked at while the model learns, always on the same texts."""

    ids: Tensor
    copy: Tensor
    samples: list[dict] = field(default_factory=list)

    @torch.no_grad()
    def copied(self, model: nn.Module) -> dict[str, float]:
        """The loss on the copy behind its first token, and on all else; how often it is right."""
        logits, inside = model(self.ids)[:, :-1], self.copy[:, :-1]
        each = cross_entropy(logits.transpose(1, 2), self.ids[:, 1:], reduction="none")
        right = (logits.argmax(-1) == self.ids[:, 1:])[inside].float().mean()
        return {"copied": each[inside].mean().item(), "other": each[~inside].mean().item(),
                "right": right.item()}  # fmt: skip

    def score(self, masses: Tensor) -> list[float]:
        """The mean for each head, over the rows that have an opportunity: those of the copy."""
        return masses.transpose(1, 2)[self.copy].mean(0).tolist()

    @torch.no_grad()
    def sample(self, step: int, model: Model) -> list[mh.Observation]:
        seen = model.observe(self.ids)
        scores = {name: [self.score(one[name]) for one in seen] for name in (BEFORE, INDUCTION)}
        self.samples.append({"step": step, **self.copied(model), **scores})
        return seen


def train(steps: int, every: int, seed: int = 0, run: Path | None = None) -> tuple[Model, Watched]:
    """AdamW on the loss of all tokens; a line of the table every so many steps."""
    torch.set_num_threads(1)  # tensors this small are slower when they are shared out
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model, watched = Model(), Watched(*texts(64, torch.Generator().manual_seed(seed + 1)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    warm = torch.optim.lr_scheduler.LinearLR(optimiser, 0.01, total_iters=100)
    print("  step  second copy  all else   previous token, 0.*   induction, 1.*")
    for step in range(steps + 1):
        if step % every == 0:
            seen, last = watched.sample(step, model), watched.samples[-1]
            if run is not None:
                write_sample(run, last, seen)
            if step % (4 * every) == 0:
                tell_sample(last)
        if step == steps:
            break
        ids, _ = texts(32, random)
        loss = cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        warm.step()
    return model, watched


def tell_sample(last: dict) -> None:
    before = " ".join(f"{score:.2f}" for score in last[BEFORE][0])
    after = " ".join(f"{score:.2f}" for score in last[INDUCTION][1])
    print(f"{last['step']:6,} {last['copied']:12.3f} {last['other']:9.3f}   {before}   {after}")


def cuts(model: Model, watched: Watched) -> dict:
    """Cut exactly the links that earned a name, and see which loss and which head suffers."""
    before, after = mh.offset(-1), mh.after_same_token(watched.ids)
    last = watched.samples[-1]
    first = max(range(4), key=lambda head: last[BEFORE][0][head])
    second = max(range(4), key=lambda head: last[INDUCTION][1][head])
    found = {"pair": [f"0.{first}", f"1.{second}"], "cut": []}
    every = [(1, head) for head in range(4)]
    asked = [([], before, "nothing"), ([(0, first)], before, "previous token"),
             *(([(0, head)], before, "previous token") for head in range(4) if head != first),
             ([(1, second)], after, "induction"), (every, after, "induction")]  # fmt: skip
    for heads, links, what in asked:
        with mh.cut(model, heads, links) if heads else contextlib.nullcontext():
            told = watched.copied(model)
            with torch.no_grad(), mh.record(model, stats=(mh.mass(after),)) as rec:
                model(watched.ids)
        names = ", ".join(f"{layer}.{head}" for layer, head in heads)
        score = watched.score(rec[1][f"mass:{after}"])[second]
        found["cut"].append({"heads": names, "links": what, "score": score, **told})
    return found


def tell(found: dict) -> None:
    """The pair, and what its links are worth."""
    first, second = found["pair"]
    print(f"\nThe pair: {first} tells each token its predecessor, {second} looks for its own.")
    print(f"Chance is {CHANCE:.2f} nats, and 1 right in {VOCABULARY - 1}.\n")
    print(f"  {'links that are cut':<36} second copy   right   induction of {second}")
    for one in found["cut"]:
        label = f"{one['links']} of {one['heads']}" if one["heads"] else one["links"]
        print(f"  {label:<36} {one['copied']:11.3f} {one['right']:7.1%} {one['score']:18.2f}")


def turn(samples: list[dict]) -> tuple[int, int] | None:
    """The phase change: the steps in which the copy's loss falls from a tenth to nine tenths."""
    copied = [one["copied"] for one in samples]
    fall = CHANCE - min(copied)
    if fall < 1.0:
        return None  # it has not learnt to copy yet
    first = next(i for i, loss in enumerate(copied) if loss < CHANCE - 0.1 * fall)
    last = next(i for i, loss in enumerate(copied) if loss < CHANCE - 0.9 * fall)
    return samples[first]["step"], samples[last]["step"]


def draw(samples: list[dict], pair: list[str], path: Path) -> None:
    """Loss above, scores of the heads below, over the same steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 6.4), dpi=130, facecolor="white", layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    steps = [one["step"] for one in samples]
    above.axhline(CHANCE, color="#666666", linestyle=":", label=f"chance, {CHANCE:.2f}")
    above.plot(steps, [one["other"] for one in samples], color="#999999", label="all else")
    above.plot(steps, [one["copied"] for one in samples], color="#111111", linewidth=2.2,
               label="second copy")  # fmt: skip
    above.set(ylabel="loss, nats a token", ylim=(0, None))
    above.set_title("Induction, watched being born", loc="left", fontsize=13)
    ways = (("previous token", 0, BEFORE, "#0072B2"), ("induction", 1, INDUCTION, "#D55E00"))
    for what, layer, name, colour in ways:
        for head in range(len(samples[0][name][layer])):
            leads = f"{layer}.{head}" == pair[layer]
            label = f"{what}, head {pair[layer]}" if leads else None
            values = [one[name][layer][head] for one in samples]
            below.plot(steps, values, color=colour, linewidth=2.2 if leads else 1.0,
                       alpha=1.0 if leads else 0.35, label=label)  # fmt: skip
        below.plot([], [], color=colour, alpha=0.35, label=f"the others of layer {layer}")
    below.set(xlabel="training step", ylabel="weight inside the pattern",
              ylim=(0, 1), xlim=(0, steps[-1]))  # fmt: skip
    change = turn(samples)
    for axes in (above, below):
        if change is not None:
            axes.axvspan(*change, color="#F0E442", alpha=0.35, linewidth=0)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="center left", framealpha=0.95, edgecolor="none")
    if change is not None:
        said = "phase change:\nsteps {:,} to {:,}".format(*change)
        above.annotate(said, (change[1], CHANCE / 2), (8, 0), textcoords="offset points")
    figure.savefig(path)


def write_sample(run: Path, last: dict, seen: list[mh.Observation]) -> None:
    """One line of heads.jsonl, and the pooled maps of this step: what `look --run` plays."""
    from safetensors.torch import save_file

    (run / "maps").mkdir(parents=True, exist_ok=True)
    keys, layers, maps = torch.arange(1, TOKENS + 1).float(), [], {}
    for n, one in enumerate(seen):
        relative = (one.entropy / keys.log().clamp(min=1e-9))[..., 1:]  # one key has no spread
        layers.append({
            "name": f"layers.{n}", "heads": one.entropy.shape[1],
            "entropy": relative.mean((0, 2)).tolist(),
            "peak": one.peak.mean((0, 2)).tolist(),
            "max_score": (one.lse + one.peak.log()).amax((0, 2)).tolist(),
            "mass:prefix(1)": one["mass:prefix(1)"].mean((0, 2)).tolist(),
            BEFORE: last[BEFORE][n], INDUCTION: last[INDUCTION][n],
        })  # fmt: skip
        maps[f"largest.{n}"] = one["heatmap(32)"].largest[0].half()
        maps[f"mean.{n}"] = one["heatmap(32)"].mean[0].half()
    save_file(maps, run / "maps" / f"{last['step']:08d}.safetensors")
    line = {"step": last["step"], "loss": last["copied"], "layers": layers, "warnings": []}
    with open(run / "heads.jsonl", "a" if last["step"] else "w", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    asked = argparse.ArgumentParser(description="Watch induction heads being born.")
    asked.add_argument("--steps", type=int, default=2000)
    asked.add_argument("--every", type=int, default=25, help="steps from sample to sample")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--out", type=Path, help="where the picture goes")
    asked.add_argument("--run", type=Path, help="a folder that multihead look --run plays")
    asked.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    given = asked.parse_args()
    steps, every = (40, 10) if given.quick else (given.steps, given.every)
    start = time.perf_counter()
    model, watched = train(steps, every, given.seed, given.run)
    found = cuts(model, watched)
    tell(found)
    print(f"\n{time.perf_counter() - start:.0f} s")
    if given.out is not None:
        draw(watched.samples, found["pair"], given.out)
    if not given.quick:
        whole, fed, *controls = (one["copied"] for one in found["cut"][:5])
        assert fed > CHANCE - 0.2, "without the previous token nobody can go on"
        assert max(controls) < whole + 0.3, "the other heads of layer 0 do not feed it"


if __name__ == "__main__":
    main()
