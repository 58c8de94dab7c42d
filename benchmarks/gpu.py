"""Attention and looking on a GPU: ours beside every backend of SDPA, FlexAttention and eager.

    python benchmarks/gpu.py                    some minutes; writes results/gpu.json
    python benchmarks/gpu.py --part forward     or record, backward, decode, and those of choices.py
    python benchmarks/gpu.py --part first odd   what a first call takes (first_call.py); and another
    python benchmarks/gpu.py --quick            the shortest shapes alone, writes nothing

Times are medians on the device, in milliseconds, of bfloat16 inputs drawn at random. The calls of a
row take turns, each time in another order, and the cache is emptied before each; but calls of
growing lengths come one after the other, and are timed by the host's clock.
"Observing" is entropy, distance and peak of every row of every head.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import choices
import torch
from device import (
    OBSERVING,
    SDPA,
    Calls,
    blocks_of,
    drawn,
    eager,
    flex,
    memory_beyond,
    problem,
    sdpa,
    that_answer,
    timed,
    wanted,
    with_backward,
)
from first_call import first_rows
from measure import RESULTS, machine
from tables.gpu import fastest
from torch import Tensor

import multihead as mh
from multihead.attention import fused
from multihead.attention.band import Band
from multihead.attention.fused.launch import masses
from multihead.attention.fused.question import question_of
from multihead.observation.fused.cells import cells_of
from multihead.observation.fused.columns import received
from multihead.observation.statistics.heatmap import cell_edges

STATS = ("entropy", "distance", "peak")
SHAPES = [(4, 16, 4096), (1, 16, 16384), (1, 16, 65536)]
WIDTHS = (32, 96, 192, 256)  # other than most
EAGER_TO, EAGER_BACK_TO = 16384, 4096  # its maps do not fit beyond


def forward_row(batch: int, heads: int, tokens: int, dim: int, causal: bool) -> dict:
    q, k, v = drawn(batch, heads, tokens, dim)
    row: dict = {"batch": batch, "heads": heads, "tokens": tokens, "dim": dim, "causal": causal}
    calls: Calls = {n: lambda n=n: sdpa(n, q, k, v, is_causal=causal) for n in SDPA}
    blocks = blocks_of(causal, tokens)
    calls["flex"] = lambda: flex(q, k, v, block_mask=blocks)
    if tokens <= EAGER_TO:
        calls["eager"] = lambda: eager(q, k, v, causal)
    p = problem(q, k, v, causal)
    question, lse, edges = question_of(p), fused.run(p).lse, [cell_edges(tokens, 128)] * 2
    half = (Band(right=-1),)  # all keys before the query's own: of a causal map all but one a row
    calls |= {
        "attend": lambda: mh.attend(q, k, v, mask=p.mask),
        "plain": lambda: fused.run(p),
        "observing": lambda: fused.look(p, OBSERVING),
        "observe": lambda: mh.observe(q, k, v, mask=p.mask, stats=STATS),
        "received": lambda: received(question, lse),
        "map": lambda: cells_of(question, lse, edges),
        "mass": lambda: masses(question, lse, half),
    }
    return row | timed(that_answer(calls)) | {"memory": memory_beyond(calls["observe"])}


def backward_row(batch: int, heads: int, tokens: int, dim: int, causal: bool) -> dict:
    """Forward and backward; "entropy": observing, with a gradient for each row's entropy too."""
    tensors = drawn(batch, heads, tokens, dim, grad=True)
    row: dict = {"batch": batch, "heads": heads, "tokens": tokens, "dim": dim, "causal": causal}
    p, blocks = problem(*tensors, causal), blocks_of(causal, tokens)
    forwards: dict[str, Callable[[], Tensor | tuple]] = {
        name: lambda name=name: sdpa(name, *tensors, is_causal=causal) for name in SDPA
    }
    forwards |= {
        "flex": lambda: flex(*tensors, block_mask=blocks),
        "attend": lambda: mh.attend(*tensors, mask=p.mask),
        "plain": lambda: fused.run(p).out,
        "observing": lambda: fused.look(p, OBSERVING).out,
        "entropy": lambda: fused.look(p, OBSERVING)[:3:2],
    }
    if tokens <= EAGER_BACK_TO:
        forwards["eager"] = lambda: eager(*tensors, causal)
    return row | timed(that_answer(with_backward(forwards, tensors)), least=5)


def decode_row(batch: int, tokens: int, dim: int) -> dict:
    """One query of 32 heads over a cache of 8: a step of a model of today."""
    q = torch.randn(batch, 32, 1, dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, 8, tokens, dim, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    row: dict = {"batch": batch, "tokens": tokens, "dim": dim, **dict.fromkeys(SDPA)}
    p = problem(q, k, v, True)
    calls: Calls = {n: lambda n=n: sdpa(n, q, k, v, enable_gqa=True) for n in SDPA}
    calls |= {
        "flex": lambda: flex(q, k, v, enable_gqa=True),
        "eager": lambda: eager(q, *(t.repeat_interleave(4, 1) for t in (k, v)), False),
        "attend": lambda: mh.attend(q, k, v, mask=p.mask),
        "plain": lambda: fused.run(p),
        "observing": lambda: fused.look(p, OBSERVING),
    }
    return row | timed(that_answer(calls))


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


def parts_of(shapes: list[tuple[int, int, int]]) -> dict[str, Callable[[], list[dict]]]:
    kinds = [(dim, causal) for dim in (64, 128) for causal in (False, True)]
    others = [(dim, causal) for dim in WIDTHS for causal in (False, True)]
    return {
        "record": lambda: [told(record_row(8192))],
        "forward": lambda: [told(forward_row(*s, *k)) for s in shapes for k in kinds],
        "backward": lambda: [told(backward_row(*s, *k)) for s in shapes for k in kinds],
        "widths": lambda: [told(forward_row(*SHAPES[0], *k)) for k in others],
        "widths_back": lambda: [told(backward_row(*SHAPES[0], *k)) for k in others],
        "decode": lambda: [
            told(decode_row(b, s[2], d)) for d in (64, 128) for s in shapes for b in (1, 16)
        ],
        "growing": lambda: [told(choices.growing_row(decoding)) for decoding in (False, True)],
        "odd": lambda: [told(choices.odd_row(*s, *k)) for s in choices.ODD for k in kinds],
        "few": lambda: [told(choices.few_row(*s, dim)) for dim in (64, 128) for s in choices.FEW],
        "graph": lambda: [
            told(choices.graph_row(name, b)) for b in (False, True) for name in choices.GRAPHS
        ],
        "choice": lambda: [
            told(choices.choice_row(name, d, back))
            for back in (False, True)
            for d in (64, 128)
            for name in choices.CHOICES
        ],
        "first": lambda: [told(row) for row in first_rows()],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", choices=parts_of(SHAPES), nargs="+", help="these alone, in order")
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json")
    asked = parser.parse_args()
    wanted()
    parts = parts_of(SHAPES[:1] if asked.quick else SHAPES)
    found: dict = json.loads(asked.out.read_text()) if asked.part and asked.out.exists() else {}
    for name in asked.part or parts:
        print(f"-- {name}", flush=True)
        found[name] = parts[name]()
        if not asked.quick:
            found["machine"] = here()
            found.setdefault("dates", {})[name] = found["machine"]["date"]
            asked.out.write_text(json.dumps(found, indent=1) + "\n")


def here() -> dict[str, str]:
    import triton

    return {**machine(), "cpu": torch.cuda.get_device_name(), "triton": triton.__version__}


def told(row: dict) -> dict:
    """Print a row as it comes: a run takes minutes."""
    shown = {k: f"{v:.3f}" if isinstance(v, float) else v for k, v in row.items()}
    if "observing" in row:
        shown["observing, of the fastest"] = f"{row['observing'] / fastest(row):.2f}"
    print("  ".join(f"{k} {v}" for k, v in shown.items()), flush=True)
    return row


if __name__ == "__main__":
    main()
