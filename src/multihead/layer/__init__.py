"""The layer: project → place → attend → merge → project."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from ..attention import attend
from ..attention.checks import bias_of
from ..cache import Cache
from ..masks import Mask, dense
from ..observation import Observation, observe
from ..observation.statistics import Stats
from ..observation.view import Rows
from ..positions import Alibi, Rope, rotate
from ..positions import alibi as make_alibi
from .checks import check, check_cache, check_options, described, require
from .output import with_output
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
        check_options(
            {"d_model": d_model, "num_heads": num_heads, "num_kv_heads": num_kv_heads,
             "head_dim": head_dim, "v_head_dim": v_head_dim, "d_context": d_context,
             "d_out": d_out},
            mask=mask, rope=rope, alibi=alibi, head_gate=head_gate, dropout=dropout,
        )  # fmt: skip
        if head_dim is None:
            require(d_model % num_heads == 0, "give head_dim, or a d_model that num_heads divides",
                     d_model=d_model, num_heads=num_heads)  # fmt: skip
            head_dim = d_model // num_heads
        require(num_heads % num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads",
                 num_heads=num_heads, num_kv_heads=num_kv_heads)  # fmt: skip
        self.d_model, self.d_context, self.d_out = d_model, d_context, d_out or d_model
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim or head_dim
        if rope is not None:
            rope.frequencies(head_dim)  # says now, not at the first call, if it does not fit
        self.mask, self.rope, self.softcap, self.scale = mask, rope, softcap, scale
        self.alibi = make_alibi(num_heads) if alibi is True else None if alibi is False else alibi
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

    def forward(
        self,
        x: Float[Tensor, "*batch tokens d_model"],
        context: Float[Tensor, "*batch keys d_context"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Float[Tensor, "..."] | None = None,
        positions: Int[Tensor, "*batch tokens"] | None = None,
        cache: Cache | None = None,
        observing: dict[str, Any] | None = None,
    ) -> Float[Tensor, "*batch tokens d_out"]:
        """Attend from x to itself, or to a context; a mask or bias given here joins the layer's.

        With a cache, x is what comes next: its keys join those that are there. The keys of a
        context are made once, at the first call. (`observing` is `observe`'s, which comes through
        here so that hooks, and whoever records or cuts, see one layer and not two; what was seen
        is laid into it.)
        """
        check(self, x, context, positions, cache)
        alone = x.ndim == 2
        if alone:
            x, context = x[None], None if context is None else context[None]
        tensors, asked, commit = self._ask(x, context, mask, bias, positions, cache)
        if observing is None:
            out = attend(*tensors, **asked)
        else:
            stats = with_output(self, tensors[2], observing["stats"])
            seen = observing["seen"] = observe(
                *tensors, stats=stats, rows=observing["rows"], **asked
            )
            out = seen.out
        y = self._merge(out)
        commit()  # all went well: only now does the cache take the tokens in
        return y[0] if alone else y

    def observe(
        self,
        x: Float[Tensor, "*batch tokens d_model"],
        context: Float[Tensor, "*batch keys d_context"] | None = None,
        *,
        stats: Stats = ("entropy", "distance", "peak", "received"),
        rows: Rows = None,
        mask: Mask | Tensor | None = None,
        bias: Float[Tensor, "..."] | None = None,
        positions: Int[Tensor, "*batch tokens"] | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Observation]:
        """What `forward` gives, and what every head did: see `mh.observe`.

        The layer knows its W_O: `"output_norm"` is Σ p·‖v W_O‖, how much each row is moved, and
        `"received_output"` what each key gives in that measure (Kobayashi et al. 2020).
        """
        asked = {"mask": mask, "bias": bias, "positions": positions, "cache": cache}
        observing: dict[str, Any] = {"stats": stats, "rows": rows}
        y = self(x, context, **asked, observing=observing)
        return y, observing["seen"]

    def _ask(
        self, x: Tensor, context, mask, bias, positions, cache
    ) -> tuple[tuple, dict, Callable[[], None]]:
        """What to ask of attention, and what is left to do for the cache when it has answered."""
        mask, commit = _join(self.mask, mask), _nothing
        if cache is not None and cache.context:  # the keys of a context are made once
            query = self._query(x)
            key, value = (kept.to(query.dtype) for kept in cache.held())
        else:
            query, key, value = self._project(x, context)  # (batch, heads, tokens, dim)
            query, key = self._place(query, key, positions, cache)
            if cache is not None and context is not None:
                commit = functools.partial(cache.hold, key, value)
            elif cache is not None:
                check_cache(cache, mask)
                (key, value), commit = cache.preview(key, value)
        asked = {
            "mask": mask,
            "bias": self._bias(query, key, bias),
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "dropout": self.dropout if self.training else 0.0,
            "backend": self.backend,
        }
        return (query, key, value), asked, commit

    def _merge(self, out: Float[Tensor, "batch heads tokens v_head_dim"]) -> Tensor:
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

    def _bias(self, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor | Alibi | None:
        if self.alibi is None or bias is None:
            return self.alibi if bias is None else bias
        added: Any = bias_of(bias, query, key)
        queries, keys = query.shape[2], key.shape[2]
        rows, columns = (torch.arange(n, device=query.device) for n in (queries, keys))
        return added + self.alibi.to(query.device).values(rows, columns, keys - queries)

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
        return described(self)

    def _sizes(self) -> tuple[int, int, int]:
        key = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, key, self.num_kv_heads * self.v_head_dim

    def _linear(self, x: Tensor, rows: slice) -> Tensor:
        """Some rows of the projection in, whether it is one matrix or two."""
        if self.d_context is not None:
            return self.q(x) if rows.start == 0 else self.kv(x)
        bias = self.qkv.bias
        return linear(x, self.qkv.weight[rows], None if bias is None else bias[rows])


def _split(flat: Tensor, heads: int) -> Float[Tensor, "batch heads tokens dim"]:
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join(mask: Mask | None, other: Mask | Tensor | None) -> Mask | None:
    if isinstance(other, Tensor) and other.dtype == torch.bool:
        other = dense(other)
    if mask is None or not isinstance(other, Mask):  # what is no mask, attend refuses
        return mask if other is None else other  # type: ignore[return-value]
    return mask & other


def _nothing() -> None:
    """Where there is no cache there is nothing left to do."""
