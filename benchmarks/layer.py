"""MultiHeadAttention against the layers people use today, and decoding with and without a cache.

    python benchmarks/layer.py             a few minutes; writes results/layer.json
    python benchmarks/layer.py --quick     a smaller layer, nothing written

Causal, float32, CPU, 8 × 1024 × 768, 12 heads. Medians of calls that take turns; ratios are to a
hand-written layer around SDPA. The scalar rung is left out: at this size it would take a day.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import torch
from measure import machine, medians, save
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh
from multihead import ladder


class HandWritten(nn.Module):
    """What a careful engineer writes: one projection, SDPA, one projection."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = sdpa(*heads.unbind(0), is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class TorchLayer(nn.Module):
    """nn.MultiheadAttention, as its documentation says to call it."""

    def __init__(self, d_model: int, num_heads: int, tokens: int, weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.weights = weights
        self.ignore = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)

    def forward(self, x: Tensor) -> Tensor:
        asked = {"need_weights": self.weights, "attn_mask": self.ignore}
        return self.inner(x, x, x, is_causal=not self.weights, **asked)[0]


class Gpt2Layer(nn.Module):
    """transformers' GPT-2 attention."""

    def __init__(self, d_model: int, num_heads: int, tokens: int, kind: str) -> None:
        super().__init__()
        from transformers import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

        config = GPT2Config(
            n_embd=d_model, n_head=num_heads, n_positions=tokens, attn_pdrop=0.0, resid_pdrop=0.0
        )
        config._attn_implementation = kind
        self.inner = GPT2Attention(config, layer_idx=0)
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        bias = torch.zeros(1, 1, tokens, tokens).masked_fill(later, torch.finfo(torch.float32).min)
        self.mask = None if kind == "sdpa" else bias

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, attention_mask=self.mask)[0]


def streaming(x: Tensor, d_model: int, num_heads: int) -> Callable[[], object]:
    """Rung 5, which works on heads that are split already: NumPy, one batch row after another."""
    heads = torch.randn(3, x.shape[0], num_heads, x.shape[1], d_model // num_heads).double().numpy()
    return lambda: [ladder.stream(*row) for row in zip(*heads, strict=True)]


def layers(batch: int, tokens: int, d_model: int, num_heads: int) -> dict[str, nn.Module]:
    head_dim = d_model // num_heads
    return {
        "hand-written SDPA layer": HandWritten(d_model, num_heads),
        "MultiHeadAttention": mh.MultiHeadAttention(d_model, num_heads, mask=mh.causal()),
        "nn.MultiheadAttention": TorchLayer(d_model, num_heads, tokens, weights=False),
        "nn.MultiheadAttention, weights": TorchLayer(d_model, num_heads, tokens, weights=True),
        "transformers GPT-2, sdpa": Gpt2Layer(d_model, num_heads, tokens, "sdpa"),
        "transformers GPT-2, eager": Gpt2Layer(d_model, num_heads, tokens, "eager"),
        "rung 2, one head of 12": ladder.CausalAttention(d_model, head_dim, tokens, 0.0),
        "rung 3, stacked": ladder.MultiHeadAttentionWrapper(
            d_model, head_dim, tokens, 0.0, num_heads
        ),
        "rung 4, split": ladder.MultiHeadAttn(d_model, d_model, tokens, 0.0, num_heads),
        "rung 6, fused": ladder.FusedMultiHeadAttn(d_model, d_model, 0.0, num_heads),
    }


def time_layers(batch: int, tokens: int, d_model: int, num_heads: int) -> list[dict]:
    x = torch.randn(batch, tokens, d_model)
    built = layers(batch, tokens, d_model, num_heads)
    rows = []
    for train in (False, True):
        calls: dict[str, Callable[[], object]] = {}
        for name, layer in built.items():
            calls[name] = functools.partial(
                _train if train else layer, *([layer, x] if train else [x])
            )
        if not train:
            calls["rung 5, streaming (NumPy, float64)"] = streaming(x, d_model, num_heads)
        with torch.set_grad_enabled(train):
            # The two that a bar compares are timed alone too: more turns, less noise.
            names = ("hand-written SDPA layer", "MultiHeadAttention")
            pair = medians({name: calls[name] for name in names}, seconds=25)
            every = medians(calls, seconds=20)
        ratio = pair["MultiHeadAttention"] / pair["hand-written SDPA layer"]
        for name, seconds in every.items():
            rows.append({"layer": name, "pass": "both" if train else "forward", "seconds": seconds})
            share = seconds / every["hand-written SDPA layer"]
            share = ratio if name == "MultiHeadAttention" else share
            rows[-1]["ratio"] = share
            print(
                f"{name:38}{rows[-1]['pass']:9}{seconds * 1e3:>10.1f} ms{share:>8.3f}", flush=True
            )
    return rows


def _train(layer: nn.Module, x: Tensor) -> None:
    for parameter in layer.parameters():
        parameter.grad = None
    layer(x).sum().backward()


@torch.no_grad()
def time_decoding(tokens: int, d_model: int, num_heads: int) -> dict:
    """One text, token by token: through the cache, and by starting anew each time."""
    attn = mh.MultiHeadAttention(d_model, num_heads, mask=mh.causal())
    x = torch.randn(1, tokens, d_model)

    def cached() -> None:
        cache = attn.new_cache(1, tokens)
        for i in range(tokens):
            attn(x[:, i : i + 1], cache=cache)

    def anew() -> None:
        for i in range(tokens):
            attn(x[:, : i + 1])

    found = medians({"cached": cached, "anew": anew}, seconds=20)
    print(f"decoding {tokens} tokens: cache {found['cached']:.2f} s, anew {found['anew']:.2f} s")
    return {"tokens": tokens, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller layer, nothing written")
    quick = parser.parse_args().quick
    print("  ".join(f"{name} {value}" for name, value in machine().items()))
    torch.manual_seed(0)
    rows = time_layers(*((2, 256, 192, 12) if quick else (8, 1024, 768, 12)))
    decoding = time_decoding(64 if quick else 512, 768, 12)
    if not quick:
        save("layer", {"times": rows, "decoding": decoding})


if __name__ == "__main__":
    main()
