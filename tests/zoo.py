"""Problems that all tests share: distinct primes for every axis, one of every mask."""

from __future__ import annotations

import torch
from torch import Tensor

import multihead as mh
from multihead.attention import Problem, pose
from multihead.masks import Mask

BATCH, KV_HEADS, GROUP, QUERIES, KEYS, DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13, 17
HEADS = KV_HEADS * GROUP
ON_CPU = ("sdpa", "tiled", "dense")  # the backends that answer without a GPU
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def tensors(seed: int = 0, dtype: torch.dtype = torch.float32, **sizes: int) -> list[Tensor]:
    """Random query, key and value; sizes replace the primes: queries=, keys=, group=, …"""
    size = {
        "batch": BATCH, "kv_heads": KV_HEADS, "group": GROUP, "queries": QUERIES, "keys": KEYS,
        "dim": DIM, "value_dim": VALUE_DIM, **sizes,
    }  # fmt: skip
    random = torch.Generator().manual_seed(seed)
    batch, kv_heads = size["batch"], size["kv_heads"]
    shapes = (
        (batch, kv_heads * size["group"], size["queries"], size["dim"]),
        (batch, kv_heads, size["keys"], size["dim"]),
        (batch, kv_heads, size["keys"], size["value_dim"]),
    )
    return [torch.randn(*shape, generator=random).to(dtype) for shape in shapes]


def ask(query: Tensor, key: Tensor, value: Tensor, **asked) -> Problem:
    """A problem with the defaults of `attend` for what is not asked."""
    defaults = {
        "mask": None, "bias": None, "scale": None, "softcap": None, "sinks": None,
        "dropout": 0.0, "offset": None,
    }  # fmt: skip
    return pose(query, key, value, **{**defaults, **asked})


def every_mask(batch: int, heads: int, queries: int, keys: int) -> dict[str, Mask]:
    """One of every mask, with dead rows in some, and compositions of them."""
    random = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 3, (batch, keys), generator=random)
    packed = torch.arange(keys) * 4 // keys
    lengths = torch.arange(batch) * keys // batch  # the first row has no key at all
    some = torch.rand(batch, 1, queries, keys, generator=random) > 0.6
    per_head = torch.rand(heads, 1, keys, generator=random) > 0.5
    return {
        "causal": mh.causal(),
        "window": mh.window(3),
        "prefix": mh.prefix(2),
        "offset": mh.offset(-1),
        "padding": mh.padding(lengths),
        "documents": mh.documents(ids),
        "packed": mh.documents(packed),
        "dense": mh.dense(some),
        "dense_per_head": mh.dense(per_head),
        "same_token": mh.same_token(ids),
        "after_same_token": mh.after_same_token(ids),
        "causal_window": mh.causal() & mh.window(4),
        "causal_documents": mh.causal() & mh.documents(packed),
        "window_or_first": mh.causal() & (mh.window(2) | mh.prefix(1)),
        "not_causal": ~mh.causal(),
        "nothing": mh.causal() & ~mh.causal(),
    }
