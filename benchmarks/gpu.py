"""Attention and looking on a GPU: ours beside every backend of SDPA, FlexAttention and eager.

    python benchmarks/gpu.py                       some minutes; writes results/gpu.json
    python benchmarks/gpu.py --part forward        one of forward, backward, decode, record
    python benchmarks/gpu.py --quick               4,096 tokens alone, writes nothing

Times are medians on the device, in milliseconds, of bfloat16 inputs drawn at random. The calls of a
row take turns, to and fro, so that a device that grows warm slows all of them, and the cache is
emptied before each.
"Observing" is entropy, distance and peak of every row of every head.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import RESULTS, machine
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import multihead as mh
from multihead.attention import fused
from multihead.attention.fused.question import Asked, question_of
from multihead.attention.problem import pose
from multihead.observation.fused.cells import cells_of
from multihead.observation.fused.columns import received
from multihead.observation.statistics.heatmap import cell_edges

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
STATS = ("entropy", "distance", "peak")
OBSERVING = Asked(entropy=True, distance=True, peak=True)
SHAPES = [(4, 16, 4096), (1, 16, 16384), (1, 16, 65536)]
EAGER_TO = 4096  # its maps do not fit beyond
flex = torch.compile(flex_attention)


Calls = dict[str, Callable[[], object]]


def timed(calls: Calls, least: int = 9, most: int = 60) -> dict[str, float]:
    """The median of each call on the device, in milliseconds; they take turns, to and fro."""
    cache = torch.empty(2**28, dtype=torch.int8, device="cuda")
    taken: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}

    def turn(back: bool = False) -> float:
        """Each once; the milliseconds of all."""
        for _ in range(16):  # the device has something to do while we get ahead of it
            cache.zero_()
        for name, call in reversed(calls.items()) if back else calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            cache.zero_()
            begin.record()
            call()
            end.record()
            taken[name].append((begin, end))
        torch.cuda.synchronize()
        return sum(some[-1][0].elapsed_time(some[-1][1]) for some in taken.values())

    turn(), turn()  # compiled, and warm
    rounds = min(most, max(least, int(250 / turn())))
    for i in range(rounds):
        turn(back=i % 2 == 0)
    return {
        name: statistics.median(begin.elapsed_time(end) for begin, end in some[3:])
        for name, some in taken.items()
    }


def drawn(batch: int, heads: int, tokens: int, dim: int, grad: bool = False) -> list[Tensor]:
    shape = (batch, heads, tokens, dim)
    made = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    return [t.requires_grad_(grad) for t in made]


def mask_of(causal: bool) -> mh.masks.Mask | None:
    return mh.causal() if causal else None


def problem(q: Tensor, k: Tensor, v: Tensor, causal: bool):
    return pose(q, k, v, mask=mask_of(causal), bias=None, scale=None, softcap=None, sinks=None,
                dropout=0.0, offset=None)  # fmt: skip


def sdpa(name: str, q: Tensor, k: Tensor, v: Tensor, **more) -> Tensor:
    with sdpa_kernel(SDPA[name]):
        return F.scaled_dot_product_attention(q, k, v, **more)


def eager(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu_(1), -torch.inf)
    weights = scores.softmax(-1)
    return weights.to(q.dtype) @ v, -torch.special.xlogy(weights, weights).sum(-1)


def causal_mod(b, h, q, k):
    return q >= k


def forward_row(batch: int, heads: int, tokens: int, dim: int, causal: bool) -> dict:
    q, k, v = drawn(batch, heads, tokens, dim)
    row: dict = {"batch": batch, "heads": heads, "tokens": tokens, "dim": dim, "causal": causal}
    names = SDPA if tokens <= EAGER_TO else ("flash", "cuDNN")  # the third is far behind
    calls: Calls = {n: lambda n=n: sdpa(n, q, k, v, is_causal=causal) for n in names}
    blocks = create_block_mask(causal_mod, None, None, tokens, tokens) if causal else None
    calls["flex"] = lambda: flex(q, k, v, block_mask=blocks)
    if tokens <= EAGER_TO:
        calls["eager"] = lambda: eager(q, k, v, causal)
    p = problem(q, k, v, causal)
    question, lse, edges = question_of(p), fused.run(p).lse, [cell_edges(tokens, 128)] * 2
    calls |= {
        "attend": lambda: mh.attend(q, k, v, mask=p.mask),
        "plain": lambda: fused.run(p),
        "observing": lambda: fused.look(p, OBSERVING),
        "observe": lambda: mh.observe(q, k, v, mask=p.mask, stats=STATS),
        "received": lambda: received(question, lse),
        "map": lambda: cells_of(question, lse, edges),
    }
    row |= timed(calls)
    row["memory"] = memory_beyond(calls["observe"])
    row["best"] = min(row[name] for name in SDPA if name in row)
    return row


def memory_beyond(call: Callable[[], object]) -> int:
    """Bytes at the highest, beyond what the call gives back."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak - kept


def backward_row(batch: int, heads: int, tokens: int, dim: int, causal: bool) -> dict:
    """Forward and backward; observing: with a gradient for the entropy of every row too."""
    tensors = drawn(batch, heads, tokens, dim, grad=True)
    pull = torch.randn_like(tensors[0])
    row: dict = {"batch": batch, "heads": heads, "tokens": tokens, "dim": dim, "causal": causal}
    p = problem(*tensors, causal)
    forwards: dict[str, Callable[[], Tensor | tuple]] = {
        name: lambda name=name: sdpa(name, *tensors, is_causal=causal)
        for name in ("flash", "cuDNN")
    }
    forwards |= {
        "attend": lambda: mh.attend(*tensors, mask=p.mask),
        "plain": lambda: fused.run(p).out,
        "observing": lambda: fused.look(p, OBSERVING)[:3],
    }
    if tokens <= EAGER_TO:
        forwards["eager"] = lambda: (lambda o, e: (o, o, e))(*eager(*tensors, causal))
    calls: Calls = {
        name: lambda call=call: _back(call(), tensors, pull) for name, call in forwards.items()
    }
    return row | timed(calls)


def _back(made: Tensor | tuple, tensors: list[Tensor], pull: Tensor) -> None:
    if isinstance(made, Tensor):
        torch.autograd.grad(made, tensors, pull)
    else:
        out, _, entropy = made
        torch.autograd.grad((out, entropy), tensors, (pull, torch.ones_like(entropy)))


def decode_row(batch: int, tokens: int) -> dict:
    """One query of 32 heads over a cache of 8: a step of a model of today."""
    q = torch.randn(batch, 32, 1, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, 8, tokens, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    row: dict = {"batch": batch, "tokens": tokens, **dict.fromkeys(SDPA)}
    p = problem(q, k, v, True)
    calls: Calls = {"plain": lambda: fused.run(p), "observing": lambda: fused.look(p, OBSERVING)}
    for name in SDPA:
        with contextlib.suppress(RuntimeError):  # one does not know grouped heads
            sdpa(name, q, k, v, enable_gqa=True)
            calls[name] = lambda name=name: sdpa(name, q, k, v, enable_gqa=True)
    row |= timed(calls)
    row["best"] = min(row[name] for name in SDPA if row[name])
    return row


def record_row(tokens: int) -> dict:
    """A random LLaMA of about a billion parameters, recorded with the default statistics."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=32000, max_position_embeddings=2 * tokens,
        attn_implementation="sdpa", dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 32000, (1, tokens), device="cuda")
    size = sum(p.numel() for p in model.parameters())

    @torch.no_grad()
    def plain() -> None:
        model(ids, use_cache=False)

    @torch.no_grad()
    def recorded() -> None:
        with mh.record(model):
            model(ids, use_cache=False)

    times = {"plain": [], "recorded": []}
    for _ in range(3):
        plain(), recorded()
    for _ in range(25):  # taking turns
        for name, call in (("plain", plain), ("recorded", recorded)):
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end))
    told = {name: statistics.median(each) for name, each in times.items()}
    return {"parameters": size, "tokens": tokens, **told}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", help="only this: forward, backward, decode or record")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    asked = parser.parse_args()
    shapes = SHAPES[:1] if asked.quick else SHAPES
    kinds = [(dim, causal) for dim in (64, 128) for causal in (False, True)]
    parts: dict[str, Callable[[], list[dict]]] = {
        "record": lambda: [told(record_row(8192))],
        "forward": lambda: [told(forward_row(*s, *k)) for s in shapes for k in kinds],
        "backward": lambda: [told(backward_row(*s, *k)) for s in shapes[:2] for k in kinds],
        "decode": lambda: [told(decode_row(b, n)) for n in (4096, 16384, 65536) for b in (1, 16)],
    }
    found: dict = json.loads(asked.out.read_text()) if asked.part and asked.out.exists() else {}
    for name, part in parts.items():
        if asked.part in (None, name):
            print(f"-- {name}", flush=True)
            found[name] = part()
            if not asked.quick:
                found["machine"] = here()
                asked.out.write_text(json.dumps(found, indent=1) + "\n")


def here() -> dict[str, str]:
    import triton

    return {**machine(), "cpu": torch.cuda.get_device_name(), "triton": triton.__version__}


def told(row: dict) -> dict:
    """Print a row as it comes: a run takes minutes."""
    shown = {k: f"{v:.3f}" if isinstance(v, float) else v for k, v in row.items()}
    if "best" in row:
        shown["observing/best"] = f"{row['observing'] / row['best']:.2f}"
    print("  ".join(f"{k} {v}" for k, v in shown.items()), flush=True)
    return row


if __name__ == "__main__":
    main()
