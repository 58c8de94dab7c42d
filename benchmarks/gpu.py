"""Attention and looking on a GPU: ours beside every backend of SDPA, FlexAttention and eager.

    python benchmarks/gpu.py                       some minutes; writes results/gpu.json
    python benchmarks/gpu.py --part forward        one of forward, backward, decode, record
    python benchmarks/gpu.py --quick               4,096 tokens alone, writes nothing

Times are medians on the device, in milliseconds, of bfloat16 inputs drawn at random; the cache is
emptied between runs. "Observing" is entropy, distance and peak of every row of every head.
"""

from __future__ import annotations

import argparse
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


def timed(call: Callable[[], object]) -> float:
    """The median of a call on the device, in milliseconds."""
    from triton.testing import do_bench

    return do_bench(call, warmup=15, rep=60, return_mode="median")


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
    for name in SDPA if tokens <= EAGER_TO else ("flash", "cuDNN"):  # the third is far behind
        row[name] = timed(lambda name=name: sdpa(name, q, k, v, is_causal=causal))
    blocks = create_block_mask(causal_mod, None, None, tokens, tokens) if causal else None
    row["flex"] = timed(lambda: flex(q, k, v, block_mask=blocks))
    if tokens <= EAGER_TO:
        row["eager"] = timed(lambda: eager(q, k, v, causal))
    p = problem(q, k, v, causal)
    row["attend"] = timed(lambda: mh.attend(q, k, v, mask=p.mask))
    row["plain"] = timed(lambda: fused.run(p))
    row["observing"] = timed(lambda: fused.look(p, OBSERVING))
    row["observe"] = timed(lambda: mh.observe(q, k, v, mask=p.mask, stats=STATS))
    question, lse = question_of(p), fused.run(p).lse
    row["received"] = timed(lambda: received(question, lse))
    edges = [cell_edges(tokens, 128)] * 2
    row["map"] = timed(lambda: cells_of(question, lse, edges))
    row["memory"] = memory_beyond(lambda: mh.observe(q, k, v, mask=p.mask, stats=STATS))
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

    def both(call: Callable[[], Tensor | tuple]) -> float:
        return timed(lambda: _back(call(), tensors, pull))

    for name in ("flash", "cuDNN"):
        row[name] = both(lambda name=name: sdpa(name, *tensors, is_causal=causal))
    p = problem(*tensors, causal)
    row["attend"] = both(lambda: mh.attend(*tensors, mask=p.mask))
    row["plain"] = both(lambda: fused.run(p).out)
    row["observing"] = both(lambda: fused.look(p, OBSERVING)[:3])
    if tokens <= 4096:
        row["eager"] = both(lambda: (lambda o, e: (o, o, e))(*eager(*tensors, causal)))
    return row


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
    row: dict = {"batch": batch, "tokens": tokens}
    for name in SDPA:
        try:
            row[name] = timed(lambda name=name: sdpa(name, q, k, v, enable_gqa=True))
        except RuntimeError:
            row[name] = None
    p = problem(q, k, v, True)
    row["plain"] = timed(lambda: fused.run(p))
    row["observing"] = timed(lambda: fused.look(p, OBSERVING))
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
    for _ in range(9):  # taking turns
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
