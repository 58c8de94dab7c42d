"""attend against PyTorch's SDPA (with a dense mask where it needs one) and against eager attention.

    python benchmarks/attend.py            a few minutes; writes results/attend.json
    python benchmarks/attend.py --quick    1k and 2k tokens only, writes nothing

Medians of calls that take turns in one run; ratios are to SDPA. CPU, float32, 12 heads of 64.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from measure import in_its_own_process, machine, medians, peak_above, save
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh

HEADS, DIM = 12, 64
EAGER_UP_TO = 4096  # tokens in all; beyond, its matrices take 3 GB and more


class Case(NamedTuple):
    """One question, asked three ways."""

    ours: dict  # arguments of mh.attend
    theirs: dict  # arguments of SDPA
    allowed: Tensor | None  # the mask eager uses
    queries: int | None = None  # other than the number of keys
    kv_heads: int = HEADS
    batch: int = 1


def cases(n: int) -> dict[str, Case]:
    """The questions at n keys."""
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    near = causal & ~causal.tril(-256)
    ids = torch.arange(n) * 16 // n
    packed = causal & (ids[:, None] == ids)
    lengths = torch.tensor([n // 4, n // 2, n * 3 // 4, n])
    padded = (torch.arange(n) < lengths[:, None])[:, None, None, :]
    every = {
        "causal": Case({"mask": mh.causal()}, {"is_causal": True}, causal),
        "causal & window(256)": Case(
            {"mask": mh.causal() & mh.window(256)}, {"attn_mask": near}, near
        ),
        "causal & 16 documents": Case(
            {"mask": mh.causal() & mh.documents(ids)}, {"attn_mask": packed}, packed
        ),
        "padding, batch of 4": Case(
            {"mask": mh.padding(lengths)}, {"attn_mask": padded}, padded, batch=4
        ),
        "causal, 12 heads on 4": Case(
            {"mask": mh.causal()}, {"is_causal": True, "enable_gqa": True}, causal, kv_heads=4
        ),
        "one query": Case({"mask": mh.causal()}, {}, None, queries=1),
    }
    if n > 4096:
        del every["padding, batch of 4"]
    return every if n == 8192 else {name: c for name, c in every.items() if name != "one query"}


def eager(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    """Attention as it is written on the board."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


def calls(case: Case, n: int, train: bool) -> dict[str, Callable[[], object]]:
    """The calls to time, on the same tensors."""
    shape = (case.batch, HEADS, case.queries or n, DIM)
    keys = (case.batch, case.kv_heads, n, DIM)
    q, k, v = (torch.randn(s, requires_grad=train) for s in (shape, keys, keys))
    forward = {
        "ours": functools.partial(mh.attend, q, k, v, **case.ours),
        "sdpa": functools.partial(sdpa, q, k, v, **case.theirs),
    }
    if case.batch * n <= EAGER_UP_TO or case.queries == 1:
        forward["eager"] = functools.partial(eager, q, k, v, case.allowed)
    if not train:
        return forward
    up = torch.randn(shape)
    return {
        name: lambda call=call: torch.autograd.grad(call(), (q, k, v), up)
        for name, call in forward.items()
    }


def time_all(lengths: list[int]) -> list[dict]:
    rows = []
    print(f"{'':24}{'tokens':>7}  {'pass':9}{'sdpa':>10}{'ours':>10}{'ratio':>8}{'eager':>8}")
    for n in lengths:
        for name, case in cases(n).items():
            for train in (False, True):
                if train and (n > 4096 or case.queries == 1):
                    continue
                with torch.set_grad_enabled(train):
                    found = medians(calls(case, n, train))
                row = {"case": name, "tokens": n, "pass": "both" if train else "forward", **found}
                rows.append(row)
                print(line(row), flush=True)
    return rows


def line(row: dict) -> str:
    ratio = row["ours"] / row["sdpa"]
    slow = f"{row['eager'] / row['sdpa']:.2f}" if "eager" in row else "-"
    return (
        f"{row['case']:24}{row['tokens']:>7}  {row['pass']:9}{row['sdpa'] * 1e3:>8.2f}ms"
        f"{row['ours'] * 1e3:>8.2f}ms{ratio:>8.3f}{slow:>8}"
    )


# ---- memory, each case in a process of its own ---------------------------------------------------

MEMORY = {
    "causal": {"mask": "causal()"},
    "causal & window(256)": {"mask": "causal() & window(256)"},
    "causal, softcap 30": {"mask": "causal()", "softcap": 30.0},
}


def memory(n: int) -> list[dict]:
    """Peak memory of `tiled`, forward and backward, above inputs, outputs and gradients."""
    rows = []
    for name, asked in MEMORY.items():
        found = in_its_own_process(__file__, "--memory-of", json.dumps([n, asked]))
        rows.append({"case": name, "tokens": n, "bytes": found})
        print(f"tiled, {name}, {n} tokens: {rows[-1]['bytes'] / 1e6:.0f} MB above what it returns")
    return rows


def memory_of(n: int, asked: dict) -> int:
    from multihead import masks

    asked = {**asked, "mask": masks.read(asked["mask"]), "backend": "tiled"}

    def step(tokens: int):
        q, k, v, up = (t for t in torch.randn(4, 1, HEADS, tokens, DIM))
        leaves = [t.requires_grad_() for t in (q, k, v)]

        def run():
            out = mh.attend(*leaves, **asked)
            return out.detach(), torch.autograd.grad(out, leaves, up)

        return run

    step(512)()  # libraries load, threads start
    call = step(n)
    returned = 4 * HEADS * n * DIM * 4  # out and three gradients, float32
    return peak_above(call) - returned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1k and 2k tokens, nothing written")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.memory_of:
        print(memory_of(*json.loads(asked.memory_of)))
        return
    print("  ".join(f"{name} {value}" for name, value in machine().items()))
    torch.manual_seed(0)
    if asked.quick:
        time_all([1024, 2048])
        return
    rows = time_all([1024, 2048, 4096, 8192, 16384])
    path = save("attend", {"times": rows, "memory": memory(16384)})
    print(f"written to {path.name}; python benchmarks/report.py puts it into docs/performance.md")


if __name__ == "__main__":
    main()
