"""Rows of gpu.py about what `attend` takes, and whether it had better taken something else.

Lengths that always change or are not round, few queries or few keys, questions that SDPA does not
know, and compiled graphs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from device import (
    OBSERVING,
    SDPA,
    Calls,
    drawn,
    flex,
    mask_of,
    problem,
    sdpa,
    that_answer,
    timed,
    with_backward,
)
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import multihead as mh
from multihead.attention import fused


def growing_row(decoding: bool, steps: int = 16) -> dict:
    """What a call takes, the host's part too, where none is as long as one before: milliseconds."""
    queries, longest, causal = 1 if decoding else 5120, 5120, mh.causal()
    q = torch.randn(1, 32, queries, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(1, 8, longest, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    more = {"enable_gqa": True, "is_causal": not decoding}
    calls: dict[str, Callable[..., object]] = {
        name: lambda *given, name=name: sdpa(name, *given, **more) for name in SDPA
    }
    calls |= {
        "attend": lambda *given: mh.attend(*given, mask=causal),
        "plain": lambda *given: fused.run(problem(*given, True)),
        "observing": lambda *given: fused.look(problem(*given, True), OBSERVING),
    }
    row: dict = {"decoding": decoding}
    for place, (name, call) in enumerate(calls.items()):
        lengths = [4096 + place + len(calls) * i for i in range(steps + 3)]
        given = [(q[:, :, -n:], k[:, :, :n], v[:, :, :n]) for n in lengths]
        unknown = (RuntimeError,) if name in SDPA else ()  # one knows no grouped heads
        with contextlib.suppress(*unknown):
            for some in given[:3]:  # compiled, where a length does not count
                call(*some)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for some in given[3:]:
                call(*some)
            torch.cuda.synchronize()
            row[name] = (time.perf_counter() - begin) / steps * 1e3
    return row


ODD = [(4, 1001), (4, 3001), (4, 5001), (1, 5001), (1, 20001), (1, 65501)]  # batch, tokens


def odd_row(batch: int, tokens: int, dim: int, causal: bool) -> dict:
    """A length that is not round, met often: cuDNN with its plan made, and ours."""
    q, k, v = drawn(batch, 16, tokens, dim)
    calls: Calls = {
        name: lambda backend=backend: mh.attend(q, k, v, mask=mask_of(causal), backend=backend)
        for name, backend in {"attend": "auto", "cuDNN": "sdpa", "plain": "fused"}.items()
    }
    calls["flash"] = lambda: sdpa("flash", q, k, v, is_causal=causal)
    return {"batch": batch, "tokens": tokens, "dim": dim, "causal": causal, **timed(calls)}


FEW = [  # batch, heads, heads of keys, queries, keys
    (1, 32, 8, 4, 4096), (1, 32, 8, 16, 16384), (1, 32, 8, 64, 8192), (16, 32, 8, 8, 4096),
    (1, 16, 16, 100, 20000), (1, 16, 16, 300, 5000), (4, 16, 16, 1000, 4100),
    (1, 16, 16, 2000, 30001), (1, 16, 16, 5000, 300), (4, 16, 16, 4096, 77),
]  # fmt: skip


def few_row(batch: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int) -> dict:
    """Few queries over many keys, or many over few; cuDNN with its plan made."""
    made = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(batch, heads, queries, dim, **made)
    k, v = (torch.randn(batch, kv_heads, keys, dim, **made) for _ in "kv")
    p = problem(q, k, v, causal=False)
    calls: Calls = {n: lambda n=n: sdpa(n, q, k, v, enable_gqa=heads > kv_heads) for n in SDPA}
    calls |= {
        "attend": lambda: mh.attend(q, k, v),
        "plain": lambda: fused.run(p),
        "observing": lambda: fused.look(p, OBSERVING),
    }
    row = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys}
    return row | {"dim": dim, **timed(that_answer(calls))}


CHOICES: dict[str, dict] = {
    "window of 1,024": {"mask": mh.causal() & mh.window(1024)},
    "softcap": {"mask": mh.causal(), "softcap": 30.0},
    "sinks": {"mask": mh.causal(), "sinks": True},
    "padding": {"mask": mh.causal() & mh.padding([4096, 3000, 2000, 1000])},
    "the last quarter": {"mask": mh.causal(), "queries": 1024},
    "four heads to one": {"mask": mh.causal(), "kv_heads": 4},
}


def choice_row(name: str, dim: int, back: bool) -> dict:
    """What `attend` takes where SDPA does not know the question, and what it would take without."""
    asked = dict(CHOICES[name])
    q, k, v = drawn(4, 16, 4096, dim)
    q, kv_heads = q[:, :, -asked.pop("queries", 4096) :], asked.pop("kv_heads", 16)
    tensors = [q.contiguous(), *(t[:, :kv_heads].contiguous() for t in (k, v))]
    tensors = [t.requires_grad_(back) for t in tensors]
    if asked.pop("sinks", False):
        asked["sinks"] = torch.randn(16, device="cuda")
    calls: Calls = {
        n: lambda n=n: mh.attend(*tensors, **asked, backend=n) for n in ("auto", "fused", "flex")
    }
    if kv_heads < 16:
        calls |= {n: lambda n=n: sdpa(n, *tensors, is_causal=True, enable_gqa=True) for n in SDPA}
    calls = that_answer(with_backward(calls, tensors) if back else calls)
    return {"question": name, "dim": dim, "back": back, **timed(calls)}


def _documents() -> Tensor:
    return torch.arange(4096, device="cuda") // 700


GRAPHS: dict[str, Callable[[], mh.masks.Mask]] = {
    "causal": mh.causal,
    "window of 1,024": lambda: mh.causal() & mh.window(1024),
    "documents of 700": lambda: mh.causal() & mh.documents(_documents()),
    "the same, ids on the host": lambda: mh.causal() & mh.documents(_documents().cpu()),
}


def graph_row(name: str, back: bool) -> dict:
    """`attend` outside and inside of torch.compile, beside what one would write without it."""
    tensors, mask, ids = drawn(4, 16, 4096, 128, grad=back), GRAPHS[name](), _documents()
    kinds = {
        "window of 1,024": lambda b, h, q, k: (q >= k) & (q - k < 1024),
        "documents of 700": lambda b, h, q, k: (q >= k) & (ids[q] == ids[k]),
    }
    kinds["the same, ids on the host"] = kinds["documents of 700"]
    if name == "causal":
        theirs = torch.compile(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True))
    else:
        blocks = create_block_mask(kinds[name], None, None, 4096, 4096)
        theirs = lambda *qkv: flex(*qkv, block_mask=blocks)  # noqa: E731
    compiled = torch.compile(lambda *qkv: mh.attend(*qkv, mask=mask), fullgraph=True)
    calls: Calls = {
        "attend": lambda: mh.attend(*tensors, mask=mask),
        "compiled": lambda: compiled(*tensors),
        "theirs": lambda: theirs(*tensors),
    }
    return {"question": name, "back": back,
            **timed(with_backward(calls, tensors) if back else calls)}  # fmt: skip
