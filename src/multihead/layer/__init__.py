"""The layer: project → place → attend → merge → project."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import attend
from ..cache import Cache
from ..masks import Mask, dense
from ..positions import Alibi, Rope, rotate
from ..positions import alibi as make_alibi
from .prune import prune


class MultiHeadAttention(nn.Module):
    """Multi-head attention with what today's models ask of it.

        x (tokens, d_model) ──project──▶ q k v ──place──▶ norm, rope ──attend──▶ heads
                                                                                  │
        y (tokens, d_out) ◀──project── (tokens, num_heads · v_head_dim) ◀──merge──┘

    - `num_kv_heads`: grouped-query attention; query head h reads key head h // group.
    - `head_dim`: d_model / num_heads unless given; `v_head_dim`: head_dim unless given.
    - `d_context`: the size of a context to attend to, where it is not d_model (cross-attention).
    - `bias` of the projections in, `out_bias` of the one out (the same unless given).
    - `mask`, `softcap`, `scale`: as in `attend`, in every call. `dropout` acts in training only.
    - `rope=mh.rope(10_000)`, `alibi=True` or `mh.alibi(slopes)`: where tokens stand.
    - `qk_norm`: an RMS norm of each query and key, before rope. `sinks`: a learnt logit a head.
    - `head_gate`: a multiplier a head on its output, fixed at 1 until you set it, or "trained".

    >>> from multihead import causal, rope, window
    >>> attn = MultiHeadAttention(64, 8, num_kv_heads=2, mask=causal(), rope=rope(10_000))
    >>> x = torch.randn(2, 10, 64)
    >>> attn(x).shape, attn(x[0]).shape, attn(x[:, :3], mask=window(2)).shape
    (torch.Size([2, 10, 64]), torch.Size([10, 64]), torch.Size([2, 3, 64]))
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        d_context: int | None = None,
        d_out: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        mask: Mask | None = None,
        rope: Rope | None = None,
        alibi: Alibi | bool = False,
        qk_norm: bool = False,
        softcap: float | None = None,
        sinks: bool = False,
        scale: float | None = None,
        head_gate: bool | str = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if head_dim is None:
            _require(d_model % num_heads == 0, "give head_dim, or a d_model that num_heads divides",
                     d_model=d_model, num_heads=num_heads)  # fmt: skip
            head_dim = d_model // num_heads
        _require(num_heads % num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads",
                 num_heads=num_heads, num_kv_heads=num_kv_heads)  # fmt: skip
        self.d_model, self.d_context, self.d_out = d_model, d_context, d_out or d_model
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim or head_dim
        self.mask, self.rope, self.softcap, self.scale = mask, rope, softcap, scale
        self.alibi = make_alibi(num_heads) if alibi is True else alibi or None
        self.dropout, self.backend = dropout, backend

        new = {"device": device, "dtype": dtype}
        sizes = self._sizes()
        if d_context is None:  # one product gives queries, keys and values
            self.qkv = nn.Linear(d_model, sum(sizes), bias=bias, **new)
        else:
            self.q = nn.Linear(d_model, sizes[0], bias=bias, **new)
            self.kv = nn.Linear(d_context, sum(sizes[1:]), bias=bias, **new)
        out_bias = bias if out_bias is None else out_bias
        self.out = nn.Linear(num_heads * self.v_head_dim, self.d_out, bias=out_bias, **new)
        self.q_norm = nn.RMSNorm(head_dim, eps=1e-6, **new) if qk_norm else None
        self.k_norm = nn.RMSNorm(head_dim, eps=1e-6, **new) if qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(num_heads, **new)) if sinks else None
        self.register_buffer("head_gate", None)  # may be set to a tensor, or to a Parameter
        if head_gate:
            gate = torch.ones(num_heads, **new)
            self.head_gate = nn.Parameter(gate) if head_gate == "trained" else gate

    # ---- the way through ------------------------------------------------------------------------

    def forward(
        self,
        x: Float[Tensor, "*batch tokens d_model"],
        context: Float[Tensor, "*batch keys d_context"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Float[Tensor, "..."] | None = None,
        positions: Int[Tensor, "*batch tokens"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "*batch tokens d_out"]:
        """Attend from x to itself, or to a context; a mask or bias given here joins the layer's.

        With a cache, x is what comes next: its keys join those that are there. The keys of a
        context are made once, at the first call.
        """
        self._check(x, context, positions, cache)
        if x.ndim == 2:
            asked = {"mask": mask, "bias": bias, "positions": positions, "cache": cache}
            return self(x[None], None if context is None else context[None], **asked)[0]
        mask = _join(self.mask, mask)
        if cache is not None and cache.context:  # the keys of a context are made once
            query, (key, value) = self._query(x), cache.held()
        else:
            query, key, value = self._project(x, context)  # (batch, heads, tokens, dim)
            query, key = self._place(query, key, positions, cache)
            if cache is not None:
                key, value = self._remember(cache, mask, context, key, value)
        out = attend(
            query, key, value,
            mask=mask, bias=self._bias(query, key, bias), scale=self.scale, softcap=self.softcap,
            sinks=self.sinks, dropout=self.dropout if self.training else 0.0, backend=self.backend,
        )  # (batch, heads, tokens, v_head_dim)  # fmt: skip
        if self.head_gate is not None:
            out = out * self.head_gate.to(out.dtype)[:, None, None]
        return self.out(out.transpose(1, 2).flatten(2))  # (batch, tokens, d_out)

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, keys and values of x or of the context."""
        q_size, k_size, v_size = self._sizes()
        if self.d_context is None and context is None:
            query, key, value = self.qkv(x).split((q_size, k_size, v_size), dim=-1)
        else:
            query = self._linear(x, slice(0, q_size))
            pair = self._linear(x if context is None else context, slice(q_size, None))
            key, value = pair.split((k_size, v_size), dim=-1)
        kv_heads = self.num_kv_heads
        return _split(query, self.num_heads), _split(key, kv_heads), _split(value, kv_heads)

    def _query(self, x: Tensor) -> Tensor:
        """Queries alone, for a context whose keys are there."""
        query = _split(self._linear(x, slice(0, self._sizes()[0])), self.num_heads)
        return query if self.q_norm is None else self.q_norm(query)

    def _place(self, query: Tensor, key: Tensor, positions: Tensor | None, cache: Cache | None):
        """Norm, then rope, at positions given or counted on from what the cache has seen."""
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rope is not None:
            if positions is None:
                first = 0 if cache is None else cache.seen
                positions = torch.arange(first, first + query.shape[2], device=query.device)
            wide = torch.promote_types(query.dtype, torch.float32)
            tables = self.rope.tables(positions, self.head_dim, wide)
            query, key = (
                rotate(t, *tables, interleaved=self.rope.interleaved) for t in (query, key)
            )
        return query, key

    def _remember(
        self, cache: Cache, mask: Mask | None, context: Tensor | None, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put keys and values into the cache, and take out all that there are to see."""
        if context is not None:
            cache.hold(key, value)
            return key, value
        if mask is None or mask.reach()[1] > 0:
            raise ValueError(
                f"with a cache no query may look ahead, but the mask is {mask}; add mh.causal()."
            )
        if cache.back is not None and not mask.relative():
            raise ValueError(
                f"this cache keeps {cache.back} keys, and {mask} looks at where keys stand in the "
                "whole text; build the layer without a window, or leave this mask out."
            )
        return cache.append(key, value)

    def _bias(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor | Alibi | None:
        if self.alibi is None or bias is None:
            return self.alibi if bias is None else bias
        queries, keys = query.shape[2], key.shape[2]
        rows, columns = (torch.arange(n, device=query.device) for n in (queries, keys))
        return bias + self.alibi.to(query.device).values(rows, columns, keys - queries)

    # ---- state ----------------------------------------------------------------------------------

    def new_cache(self, batch: int, length: int, *, dtype: torch.dtype | None = None) -> Cache:
        """Room for the keys and values of `length` tokens, or of the few that the mask reaches.

        >>> from multihead import causal
        >>> attn = MultiHeadAttention(64, 8, mask=causal())
        >>> x, cache = torch.randn(1, 5, 64), attn.new_cache(batch=1, length=4096)
        >>> steps = [attn(x[:, i : i + 1], cache=cache) for i in range(5)]
        >>> torch.allclose(torch.cat(steps, dim=1), attn(x), atol=1e-6)
        True
        """
        weight = self.out.weight
        return Cache(
            batch, self.num_kv_heads, length, self.head_dim, self.v_head_dim,
            mask=self.mask, dtype=dtype or weight.dtype, device=weight.device,
        )  # fmt: skip

    def prune_heads(self, heads: Iterable[int]) -> None:
        """Remove heads for good, exactly as if each had a gate of 0.

        A key head goes with the last query head that reads it. Where groups end up uneven, each
        query head gets a key head of its own.
        """
        prune(self, heads)

    def extra_repr(self) -> str:
        words = [f"{self.d_model}, {self.num_heads}"]
        words += [f"num_kv_heads={self.num_kv_heads}", f"head_dim={self.head_dim}"]
        for name in ("v_head_dim", "d_context", "mask", "rope", "alibi", "softcap", "scale"):
            value = getattr(self, name)
            if value is not None and (name, value) != ("v_head_dim", self.head_dim):
                words.append(f"{name}={value}")
        return ", ".join(words + ([f"dropout={self.dropout}"] if self.dropout else []))

    # ---- small steps ----------------------------------------------------------------------------

    def _sizes(self) -> tuple[int, int, int]:
        key = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, key, self.num_kv_heads * self.v_head_dim

    def _linear(self, x: Tensor, rows: slice) -> Tensor:
        """Some rows of the projection in, whether it is one matrix or two."""
        if self.d_context is not None:
            return self.q(x) if rows.start == 0 else self.kv(x)
        bias = self.qkv.bias
        return linear(x, self.qkv.weight[rows], None if bias is None else bias[rows])

    def _check(
        self, x: Tensor, context: Tensor | None, positions: Tensor | None, cache: Cache | None
    ) -> None:
        if x.ndim not in (2, 3) or x.shape[-1] != self.d_model:
            raise ValueError(
                f"x must be (batch, tokens, {self.d_model}) or (tokens, {self.d_model}), "
                f"but {tuple(x.shape)} came."
            )
        size = self.d_context or self.d_model
        if context is not None and (context.ndim != x.ndim or context.shape[-1] != size):
            raise ValueError(
                f"context must have the axes of x and {size} features, but it does not.\n"
                f"  x {tuple(x.shape)}  context {tuple(context.shape)}"
            )
        if size != self.d_model and context is None and not (cache and cache.context):
            raise ValueError(
                f"this layer attends to a context of {size} features, but none came; "
                "give one, as in attn(x, context)."
            )
        if self.rope is not None and context is not None:
            raise ValueError(
                "rope places the tokens of one text, and a context is another; "
                "build a layer without rope to attend to a context."
            )
        if positions is not None and self.rope is None:
            raise ValueError(
                "positions place tokens by rope, and this layer has none; leave them out."
            )


def _split(flat: Tensor, heads: int) -> Float[Tensor, "batch heads tokens dim"]:
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(mask: Mask | None, other: Mask | Tensor | None) -> Mask | None:
    if isinstance(other, Tensor):
        other = dense(other)
    return mask if other is None else other if mask is None else mask & other


def _require(holds: bool, rule: str, **came: int) -> None:
    if not holds:
        raise ValueError(f"{rule}.\n  " + "  ".join(f"{name} {n}" for name, n in came.items()))
