"""observe against SDPA without looking, and against eager attention with the same statistics.

    python benchmarks/observe.py           a few minutes; writes results/observe.json
    python benchmarks/observe.py --quick   1k tokens only, writes nothing

CPU, float32, causal, 12 heads of 64: entropy, distance, peak, received and heatmap(128) together.
Medians of calls that take turns; ratios are to SDPA.
"""

from __future__ import annotations

import argparse
import json
import math

import torch
from measure import in_its_own_process, machine, medians, peak_above, save
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh

HEADS, DIM, CELLS = 12, 64, 128
STATS = ("entropy", "distance", "peak", "received", mh.heatmap(CELLS))
EAGER_UP_TO = 4096


def eager(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> tuple[Tensor, ...]:
    """The same statistics from the whole matrix."""
    n = q.shape[2]
    weights = (q @ k.mT / math.sqrt(DIM)).masked_fill(~allowed, -torch.inf).softmax(-1)
    place = torch.arange(n, dtype=torch.float32)
    cells = weights.unflatten(-1, (CELLS, -1)).unflatten(2, (CELLS, -1))
    return (
        weights @ v,
        -torch.special.xlogy(weights, weights).sum(-1),
        (weights * (place[:, None] - place).abs()).sum(-1),
        weights.amax(-1),
        weights.sum(-2),
        cells.sum((3, 5)),
        cells.amax((3, 5)),
    )


@torch.no_grad()
def time_all(lengths: list[int]) -> list[dict]:
    rows = []
    print(f"{'tokens':>7}{'sdpa':>12}{'observe':>12}{'ratio':>8}{'1 in 8':>8}{'eager':>8}")
    for n in lengths:
        q, k, v = torch.randn(3, 1, HEADS, n, DIM).unbind(0)
        allowed = torch.ones(n, n, dtype=torch.bool).tril()
        calls = {
            "sdpa": lambda q=q, k=k, v=v: sdpa(q, k, v, is_causal=True),
            "ours": lambda q=q, k=k, v=v: mh.observe(q, k, v, mask=mh.causal(), stats=STATS),
            "eighth": lambda q=q, k=k, v=v: mh.observe(
                q, k, v, mask=mh.causal(), stats=STATS, rows=slice(None, None, 8)
            ),
        }
        if n <= EAGER_UP_TO:
            calls["eager"] = lambda q=q, k=k, v=v, allowed=allowed: eager(q, k, v, allowed)
        found = medians(calls, seconds=15)
        rows.append({"tokens": n, **found})
        ratio, eighth = (found[name] / found["sdpa"] for name in ("ours", "eighth"))
        slow = f"{found['eager'] / found['sdpa']:.2f}" if "eager" in found else "-"
        print(
            f"{n:>7}{found['sdpa'] * 1e3:>10.1f}ms{found['ours'] * 1e3:>10.1f}ms"
            f"{ratio:>8.3f}{eighth:>8.3f}{slow:>8}",
            flush=True,
        )
    return rows


def memory_of(kind: str) -> int:
    """Peak memory above inputs and what is returned, in a process of its own."""
    tokens, heads = (16384, HEADS) if kind == "observe" else (8192, 8)

    def step(n: int):
        q, k, v = torch.randn(3, 1, heads, n, DIM).unbind(0)
        if kind == "observe":
            return lambda: mh.observe(q, k, v, mask=mh.causal(), stats=STATS)
        leaves = [t.requires_grad_() for t in (q, k, v)]

        def train():
            seen = mh.observe(*leaves, mask=mh.causal(), stats="entropy")
            return torch.autograd.grad(seen.out.square().mean() - seen.entropy.mean(), leaves)

        return train

    step(512)()
    call = step(tokens)
    rows = heads * tokens * 4
    returned = rows * DIM + 5 * rows + 3 * heads * CELLS**2 * 4 if kind == "observe" else 0
    return peak_above(call) - returned


def memory() -> dict[str, int]:
    found = {}
    for kind in ("observe", "train"):
        found[kind] = in_its_own_process(__file__, "--memory-of", kind)
        print(f"memory, {kind}: {found[kind] / 1e6:.0f} MB")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1k tokens, nothing written")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.memory_of:
        print(memory_of(asked.memory_of))
        return
    print("  ".join(f"{name} {value}" for name, value in machine().items()))
    torch.manual_seed(0)
    if asked.quick:
        time_all([1024])
        return
    rows = time_all([1024, 4096, 16384])
    path = save("observe", {"times": rows, "memory": memory()})
    print(json.dumps({"written": path.name}))


if __name__ == "__main__":
    main()
