"""Problems for our kernels, and where they run: on a GPU, or step by step in Triton's interpreter."""

from __future__ import annotations

import importlib.util

import torch
import zoo

import multihead as mh
from multihead.attention import Problem

# The interpreter multiplies the bits of bfloat16 as whole numbers.
DTYPES = (torch.float16, torch.bfloat16) if torch.cuda.is_available() else (torch.float16,)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without one conftest.py sees to it
if DEVICE == "cpu" and importlib.util.find_spec("triton"):
    importlib.import_module("quick_interpreter").quicken()


# Each is a problem of its own kind: tiles are 16 × 16 under the interpreter, so that these have
# several, and edges inside of them. Sizes replace those of zoo.tensors.
CASES: dict[str, dict] = {
    "all keys": {},
    "causal": {"mask": mh.causal()},
    "three heads to one": {"mask": mh.causal(), "group": 3, "kv_heads": 2, "queries": 41},
    "more queries than keys": {"mask": mh.causal(), "queries": 53},
    "window": {"mask": mh.window(9)},
    "causal window": {"mask": mh.causal() & mh.window(19), "queries": 37},
    "behind": {"mask": mh.offset(-2) & mh.causal()},
    "ahead": {"mask": mh.offset(2)},
    "first keys": {"mask": mh.prefix(5)},
    "lengths": {"mask": mh.padding([0, 20])},
    "causal lengths": {"mask": mh.causal() & mh.padding([9, 20]), "queries": 37},
    "offset": {"mask": mh.causal(), "offset": 3},
    "offsets": {"mask": mh.causal(), "offset": torch.tensor([5, -6])},
    "softcap": {"softcap": 1.3},
    "softcap, sinks": {"mask": mh.causal(), "softcap": 1.3, "sinks": torch.tensor([0.5, -1.0])},
    "sinks": {"mask": mh.padding([0, 20]), "sinks": torch.tensor([0.5, -1.0])},
    "sinks above all scores": {"mask": mh.causal(), "sinks": torch.tensor([30.0, 9.0])},
    "odd widths": {"mask": mh.causal(), "dim": 13, "value_dim": 33},
    "one query": {"mask": mh.causal(), "queries": 1, "keys": 300},
    "three queries": {"mask": mh.causal() & mh.window(177), "queries": 3, "keys": 300},
    "decoding, sinks": {"queries": 1, "keys": 200, "sinks": torch.tensor([0.5, -1.0])},
    "one key": {"keys": 1, "queries": 3},
    "logits beyond 100": {"mask": mh.causal(), "scale": 25.0},
}

# The same as wide as the heads that have kernels of their own on Hopper, and over several of the
# tiles that are laid out for those: on a GPU, or on a Hopper that is played (hopper_played.py).
WIDTHS = (32, 64, 128, 256)
_FEW_ROWS = ("one query", "three queries", "decoding, sinks", "one key", "odd widths")
WIDE: dict[str, dict] = {}
for name, case in CASES.items():
    for width in WIDTHS if name not in _FEW_ROWS else ():
        sizes = {"queries": 9 * case.get("queries", 23), "keys": 333}
        WIDE[f"{name}, {width} wide"] = {**case, **sizes, "dim": width, "value_dim": width}
for width in WIDTHS:
    square = {"queries": 300, "keys": 300, "dim": width, "value_dim": width}
    WIDE[f"square, {width} wide"] = square
    WIDE[f"square, causal, {width} wide"] = {"mask": mh.causal(), **square}
    WIDE[f"square, grouped, {width} wide"] = {"mask": mh.causal(), **square, "kv_heads": 2}
# Of a block's groups of rows one ends where a tile begins, and some have no rows at all.
WIDE["ahead by one, 64 wide"] = {"mask": mh.causal(), "offset": 1, "queries": 300, "keys": 333,
                                 "dim": 64, "value_dim": 64}  # fmt: skip
for name, mask in (("full", None), ("causal", mh.causal())):
    WIDE[f"100 rows, {name}, 64 wide"] = {"mask": mask, "queries": 100, "keys": 1000, "dim": 64,
                                          "value_dim": 64}  # fmt: skip
WIDE["not as wide as a tile"] = {"mask": mh.causal(), "queries": 300, "keys": 300, "dim": 72,
                                 "value_dim": 104}  # fmt: skip
if torch.cuda.is_available():
    CASES |= WIDE

# From the narrowest to the widest heads, and values of another width than keys.
_MANY = {"queries": 300, "keys": 333} if torch.cuda.is_available() else {}
for dim, value_dim in ((32, 32), (192, 128), (256, 256)):
    widths = {"mask": mh.causal(), "dim": dim, "value_dim": value_dim}
    CASES[f"{dim} wide, values {value_dim}"] = {**widths, **_MANY}
    CASES[f"{dim} wide, values {value_dim}, decoding"] = {**widths, "queries": 2, "keys": 300}


def problem(name: str, dtype: torch.dtype = torch.float16, device: str = DEVICE) -> Problem:
    asked = dict((CASES | WIDE)[name])
    given = {n: asked.pop(n) for n in [*asked] if n in ("group", "kv_heads", "queries", "keys",
                                                        "dim", "value_dim")}  # fmt: skip
    small = {"queries": 23, "keys": 37, "dim": 16, "value_dim": 16, "group": 2, "kv_heads": 1}
    moved = {n: t.to(device) if isinstance(t, torch.Tensor) else t for n, t in asked.items()}
    tensors = zoo.tensors(3, dtype, **{**small, **given})
    return zoo.ask(*(t.to(device) for t in tensors), **moved)


def poisoned(tensor: torch.Tensor, *size, dtype: torch.dtype | None = None, **_) -> torch.Tensor:
    """`Tensor.new_empty` whose memory was somebody's: what nobody writes shows in what is told."""
    size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    made = torch.full((*size,), 77, dtype=dtype or tensor.dtype, device=tensor.device)
    return made.fill_(torch.nan) if made.is_floating_point() else made


def grad_of(p: Problem) -> torch.Tensor:
    random = torch.Generator().manual_seed(11)
    shape = (*p.query.shape[:3], p.value.shape[3])
    return torch.randn(shape, generator=random).to(p.query.device, p.query.dtype)
