"""What it costs today to see the weights: eager attention with the entropy of every row.

    python benchmarks/looking.py           about a minute; writes results/looking.json

CPU, float32, causal, 12 heads of 64, forward alone.
"""

from __future__ import annotations

import torch
from measure import machine, medians, save
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh
from multihead.measuring.peers import eager, matrix_of

HEADS, DIM = 12, 64


@torch.no_grad()
def main() -> None:
    print("  ".join(f"{name} {value}" for name, value in machine().items()))
    rows = []
    for n in (1024, 2048, 4096):
        q, k, v = torch.randn(3, 1, HEADS, n, DIM).unbind(0)
        allowed = matrix_of(mh.causal(), n, "cpu")
        found = medians(
            {
                "sdpa": lambda: sdpa(q, k, v, is_causal=True),  # noqa: B023
                "eager": lambda: eager(q, k, v, allowed),  # noqa: B023
                "ours": lambda: mh.attend(q, k, v, mask=mh.causal()),  # noqa: B023
            },
            seconds=10,
        )
        rows.append({"tokens": n, "matrix_bytes": HEADS * n * n * 4, **found})
        print(rows[-1], flush=True)
    save("looking", {"times": rows})


if __name__ == "__main__":
    main()
