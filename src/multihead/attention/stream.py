"""Attention tile by tile in O(n) memory: the two passes of the `tiled` backend.

Each strip of queries visits only the runs of keys that its mask leaves it (plan.py). A run gives a
`Partial`, from PyTorch's fused kernel where that can answer (flash.py) and in plain torch where it
cannot (tile.py), and the partials are merged by lse: the online softmax. Backward keeps out and
lse alone and visits the same tiles again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..positions import Alibi, alibi
from . import flash, tile
from .dropout import keep
from .merge import add_sinks, awake, merge, row_pull, sinks_gradient
from .plan import Run, Size, Strip, plan
from .problem import Partial, Problem, exact

_FUSED = Size(queries=256, tallest=2048, block=128, partial_run=2048, full_run=8192)
_PLAIN_ELEMENTS = 2**21  # scores of one plain tile over all heads: 8 MB, near the last cache


def stream_forward(p: Problem) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = p.query.shape
    out = p.query.new_zeros(batch, heads, queries, p.value.shape[-1])
    lse = p.query.new_full((batch, heads, queries), -torch.inf, dtype=exact(p.query.dtype))
    tiles = _Tiles(p, fused=_kernel_answers(p))
    for rows, strips in plan(p, tiles.size, tiles.rows_at_once):
        part = p.row(rows)
        for strip in strips:
            seen = tiles.look(part, rows, strip)
            if seen is None:  # nobody here may see anything
                continue
            out[rows, :, strip.queries], lse[rows, :, strip.queries] = seen
    if p.sinks is not None:
        shared, lse = add_sinks(Partial(out, lse), p.sinks)
        out = shared.to(out.dtype)
    return out, lse


def stream_backward(
    p: Problem,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    want_added: bool,
) -> list[Tensor]:
    """Gradients of query, key, value, bias, slopes and sinks; empty tensors where not asked."""
    grads = _Gradients(p, want_added)
    tiles = _Tiles(p, fused=_kernel_answers(p) and not want_added)
    pull = row_pull(grad_out, grad_lse, out, exact(p.query.dtype))
    for rows, strips in plan(p, tiles.size, tiles.rows_at_once):
        part = p.row(rows)
        for strip in strips:
            here = (rows, slice(None), strip.queries)
            asked = None if grad_lse is None else grad_lse[here]
            given = (grad_out[here], asked, out[here], lse[here], pull[here])
            grad_query = None
            for run in strip.runs:
                part_query, *others = tiles.pull(part, rows, strip, run, *given)
                grad_query = part_query if grad_query is None else grad_query + part_query
                grads.add(rows, strip, run, *others)
            if grad_query is not None:
                grads.query[here] = grad_query
    if p.sinks is not None:
        grads.sinks = sinks_gradient(p.sinks, lse, pull)
    return grads.all()


class _Tiles:
    """How a tile is worked out: by the fused kernel or in plain torch, and in what size."""

    def __init__(self, p: Problem, fused: bool) -> None:
        batch, heads = p.query.shape[:2]
        self.fused, self.size, self.rows_at_once = fused, _FUSED, max(1, batch)
        if not fused:
            self.rows_at_once = max(1, 16 // heads)
            side = _PLAIN_ELEMENTS // (heads * self.rows_at_once)
            height = max(32, min(256, 1 << (side.bit_length() // 2)))
            width = max(32, min(512, side // height))
            self.size = Size(height, height, block=width, partial_run=width, full_run=width)
        self.scratch = tile.Scratch(p.query, exact(p.query.dtype))

    def look(self, p: Problem, rows: slice, strip: Strip) -> Partial | None:
        """Attention of one strip over all its runs."""
        query = p.query[:, :, strip.queries]
        seen = None
        for run in strip.runs:
            key, value = p.key[:, :, run.keys], p.value[:, :, run.keys]
            extra = added(p, indices(p, strip.queries), run.keys, full=run.full)
            if self.fused:
                here = flash.forward(query, key, value, scale=p.scale, causal=False, bias=extra)
            else:
                extras = self._extras(p, extra, self._kept(p, rows, strip, run))
                here = tile.forward(*exactly(query, key, value), **extras)
            seen = Partial(*here) if seen is None else merge(seen, Partial(*here))
        return seen

    def pull(self, p, rows, strip, run, grad_out, grad_lse, out, lse, pull):
        """Gradients of one tile: query, key, value, and the scores if a bias asks for them."""
        query = p.query[:, :, strip.queries]
        key, value = p.key[:, :, run.keys], p.value[:, :, run.keys]
        extra = added(p, indices(p, strip.queries), run.keys, full=run.full)
        if self.fused:
            grads = flash.backward(
                grad_out, grad_lse, query, key, value, out, lse,
                scale=p.scale, causal=False, bias=extra,
            )  # fmt: skip
            return *grads, None
        lse = awake(lse)
        grad_out, query, key, value = exactly(grad_out, query, key, value)
        return tile.backward(
            grad_out, pull, query, key, value, lse,
            **self._extras(p, extra, self._kept(p, rows, strip, run)),
        )  # fmt: skip

    def _extras(self, p: Problem, added: Tensor | None, kept: Tensor | None) -> dict:
        extras = {"scale": p.scale, "softcap": p.softcap, "scratch": self.scratch}
        return {**extras, "added": added, "kept": kept}

    def _kept(self, p: Problem, rows: slice, strip: Strip, run: Run) -> Tensor | None:
        if not p.dropout:
            return None
        assert p.seed is not None
        first = rows.start
        spans = (slice(first, first + p.query.shape[0]), slice(0, p.query.shape[1]))
        axes = (indices(p, span) for span in (*spans, strip.queries, run.keys))
        return keep(p.seed, p.dropout, *axes).to(exact(p.query.dtype)) / (1.0 - p.dropout)


class _Gradients:
    """Sums of the tiles' gradients, in the exact dtype, rounded once at the end."""

    def __init__(self, p: Problem, want_added: bool) -> None:
        dtype = exact(p.query.dtype)
        self.p = p
        # A strip finishes its queries' gradients at once; those of keys grow from strip to strip.
        self.query = torch.zeros(p.query.shape, dtype=p.query.dtype, device=p.query.device)
        self.key, self.value = (
            torch.zeros(t.shape, dtype=dtype, device=t.device) for t in (p.key, p.value)
        )
        self.bias, self.slopes, self.sinks = (p.query.new_empty(0) for _ in range(3))
        if want_added and isinstance(p.bias, Alibi):
            self.slopes = torch.zeros_like(p.bias.slopes, dtype=dtype)
        elif want_added and isinstance(p.bias, Tensor):
            self.bias = torch.zeros_like(p.bias, dtype=dtype)

    def add(self, rows: slice, strip: Strip, run: Run, key, value, scores) -> None:
        self.key[rows, :, run.keys] += key
        self.value[rows, :, run.keys] += value
        if self.slopes.numel():
            distance = alibi(torch.ones_like(self.slopes)).values(
                indices(self.p, strip.queries), indices(self.p, run.keys), self.p.row(rows).offset
            )
            self.slopes += (scores * distance).sum((0, 2, 3))
        elif self.bias.numel():
            here = _window(self.bias, rows, strip.queries, run.keys)
            here += scores.sum_to_size(here.shape)

    def all(self) -> list[Tensor]:
        p = self.p
        bias = self.bias.to(p.bias.dtype) if isinstance(p.bias, Tensor) else self.bias
        slopes = self.slopes.to(p.bias.slopes.dtype) if isinstance(p.bias, Alibi) else self.slopes
        main = ((self.query, p.query), (self.key, p.key), (self.value, p.value))
        return [*(grad.to(tensor.dtype) for grad, tensor in main), bias, slopes, self.sinks]


def _kernel_answers(p: Problem) -> bool:
    return p.query.device.type == "cpu" and p.softcap is None and not p.dropout


def added(p: Problem, queries: Tensor, keys: slice | Tensor, *, full: bool) -> Tensor | None:
    """What is added to the scores of a tile: its bias, and −inf where the mask forbids.

    `full` says that the mask is known to forbid nothing there.
    """
    dtype = exact(p.query.dtype)
    places = indices(p, keys) if isinstance(keys, slice) else keys
    total = None
    if isinstance(p.bias, Alibi):
        total = p.bias.values(queries, places, p.offset).to(dtype)
    elif p.bias is not None:
        total = p.bias if p.bias.shape[3] == 1 else p.bias[..., keys]
        total = (total if total.shape[2] == 1 else total[:, :, queries]).to(dtype)
        total = total.expand(-1, -1, len(queries), len(places))
    if full or p.mask is None:
        return total
    allowed = p.mask.allows(queries, places, p.offset)
    if total is None:
        total = torch.zeros((), dtype=dtype, device=allowed.device)
    return total.where(allowed, -torch.inf).expand(-1, -1, len(queries), len(places))


def _window(tensor: Tensor, rows: slice, queries: slice, keys: slice) -> Tensor:
    """A tile of a tensor that may have 1 in place of any axis, as a view."""
    spans = (rows, slice(None), queries, keys)
    return tensor[
        tuple(slice(None) if n == 1 else s for n, s in zip(tensor.shape, spans, strict=True))
    ]


def indices(p: Problem, span: slice) -> Tensor:
    return torch.arange(span.start, span.stop, device=p.query.device)


def exactly(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.to(exact(tensor.dtype)) for tensor in tensors)
