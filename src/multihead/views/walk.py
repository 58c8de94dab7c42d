"""One text, one layer, and every number on the way: what `explain` puts into words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.dense import Steps, steps
from ..attention.problem import pose
from ..ladder import merge_heads, split_heads
from ..layer import MultiHeadAttention
from ..masks import causal

# A walk is there to be read: what nobody could read is an error, and not a matter of memory.
MAX_WORDS, MAX_DIMS, MAX_HEADS = 256, 1024, 64


@dataclass(frozen=True)
class Walk:
    """A text through a layer, each step kept. Everything has one batch row, left out of the shapes.

    `dots` are query · key before they are scaled; `steps` has the rest, from `attention/dense.py`.
    """

    words: list[str]
    seed: int
    layer: MultiHeadAttention
    x: Float[Tensor, "words dims"]
    query: Float[Tensor, "heads words head_dim"]
    key: Float[Tensor, "heads words head_dim"]
    value: Float[Tensor, "heads words head_dim"]
    dots: Float[Tensor, "heads words words"]
    steps: Steps
    merged: Float[Tensor, "words dims"]
    y: Float[Tensor, "words dims"]

    @property
    def heads(self) -> int:
        return self.layer.num_heads

    @property
    def dims(self) -> int:
        return self.layer.d_model

    @property
    def head_dim(self) -> int:
        return self.layer.head_dim

    def matrices(self) -> dict[str, Float[Tensor, "heads head_dim dims"]]:
        """What each head owns: its rows of W_q, W_k and W_v, and its columns of W_o."""
        bands = [w.detach() for w in self.layer.qkv.weight.chunk(3)]
        bands.append(self.layer.out.weight.detach().T)
        names = ("W_q", "W_k", "W_v", "W_oᵀ")
        return {n: w.unflatten(0, (self.heads, -1)) for n, w in zip(names, bands, strict=True)}


def walk(
    text: str, *, heads: int = 4, dims: int = 16, seed: int = 0, masked: bool = True
) -> Walk:  # fmt: skip
    """Take a text through seeded random weights, step by step.

    Words and matrices are drawn so that queries and keys have numbers of size 1: scores then grow
    with √head_dim, and the scale takes just that away. Equal words are equal vectors.

    >>> seen = walk("The cat ran", heads=2, dims=6)
    >>> seen.steps.weights.shape
    torch.Size([2, 3, 3])
    >>> torch.allclose(seen.y, seen.layer(seen.x), atol=1e-6)
    True
    """
    words = split_words(text)
    check(len(words), heads, dims, seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # leave the caller's numbers alone
        torch.manual_seed(seed)
        vectors = {word: torch.randn(dims) for word in dict.fromkeys(words)}
        mask = causal() if masked else None
        layer = MultiHeadAttention(dims, heads, bias=False, mask=mask)
        for matrix in (layer.qkv.weight, layer.out.weight):
            nn.init.normal_(matrix, std=dims**-0.5)
        x = torch.stack([vectors[word] for word in words])  # (words, dims)

        projected = layer.qkv(x[None]).chunk(3, dim=-1)
        query, key, value = (split_heads(t, heads) for t in projected)  # (1, heads, words, dim)
        none = dict.fromkeys(("bias", "softcap", "sinks", "offset"))
        asked = {**none, "mask": mask, "dropout": 0.0}
        dots = steps(pose(query, key, value, scale=1.0, **asked)).scaled
        every = steps(pose(query, key, value, scale=None, **asked))
        merged = merge_heads(every.out)  # (1, words, dims)
        return Walk(
            words, seed, layer, x, query[0], key[0], value[0], dots[0],
            Steps(*(t[0] for t in every)), merged[0], layer.out(merged)[0],
        )  # fmt: skip


def split_words(text: str) -> list[str]:
    """Words between spaces, with nothing in them that a terminal would obey.

    >>> split_words("  The cat\\tran \\x1b[31m")
    ['The', 'cat', 'ran', '�[31m']
    """
    return ["".join(c if c.isprintable() else "\ufffd" for c in w) for w in text.split()]


def check(words: int, heads: int, dims: int, seed: int) -> None:
    """Raise a ValueError where there is nothing to walk through, or too much to read."""
    if words < 1:
        raise ValueError('the text has no words; give it a sentence, say "The cat ran away".')
    if words > MAX_WORDS:
        raise ValueError(
            f"the text may have {MAX_WORDS:,} words at most, and it has {words:,}; "
            "give it a sentence or two."
        )
    for name, number, most in (("heads", heads, MAX_HEADS), ("dims", dims, MAX_DIMS)):
        if not 1 <= number <= most:
            raise ValueError(
                f"{name} must be 1 to {most:,}, and {number:,} came; "
                "4 heads in 16 dims show it all."
            )
    if not 0 <= seed < 2**63:
        raise ValueError(f"a seed must be 0 to 2⁶³ − 1, and {seed} came; 0 will do.")
    if dims % heads:
        fitting = [h for h in range(1, MAX_HEADS + 1) if dims % h == 0]
        raise ValueError(
            f"heads must divide dims, and {dims} dims do not make {heads} equal heads; "
            f"{dims} can be cut into {', '.join(map(str, fitting))}."
        )
