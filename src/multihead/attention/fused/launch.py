# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The launch of each kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ..band import FAR, Band
from .again import launch
from .backward import key_kernel, query_kernel
from .decode import merge_kernel, share_kernel
from .forward import forward_kernel
from .masses import masses_kernel
from .question import Asked, Pulls, Question, Told
from .sizes import (
    Ring,
    backward_sizes,
    decode_sizes,
    forward_sizes,
    is_hopper,
    processors,
    ring_of,
    sweep_sizes,
)
from .tensors import (
    blocks,
    empty_like_rows,
    numbers_of,
    on_its_device,
    plain,
    rows_of,
    tiles_of,
    width,
)

_FEW_ROWS = 64  # of all heads of a group: for these the keys are shared out
_LONG_CACHE, _IDLE = 2048, 3  # and for more, where else two of three multiprocessors would idle
_MANY_BLOCKS = 8  # a multiprocessor: with fewer, some wait for the last ones
_SHARES = 2  # of the keys, for each multiprocessor at most: all of them are at work at once


def pointers_of(question: Question, spare: Tensor) -> dict:
    """The numbers of a question for a kernel in Gluon: where there is nothing, a spare pointer."""
    return {name: spare if n is None else n for name, n in question.numbers.items()}


def decodes(query: Tensor, key: Tensor) -> bool:
    """Whether so few rows see so many keys that these are shared out."""
    (batch, heads, queries, _), (_, kv_heads, keys, _) = query.shape, key.shape
    if heads // kv_heads * queries <= _FEW_ROWS:
        return keys > 2 * _FEW_ROWS
    rows = batch * heads * queries  # of which a multiprocessor takes 128 where none are shared out
    return keys >= _LONG_CACHE and _IDLE * rows <= 128 * processors(query.device)


def outruns(query: Tensor, ring: Ring) -> bool:
    """Whether the kernel is faster than cuDNN's, and there are rows enough to share out."""
    batch, heads, queries, _ = query.shape
    rows, of_a_block = batch * heads * queries, 64 * ring.groups
    return ring.outruns and rows >= _MANY_BLOCKS * of_a_block * processors(query.device)


@on_its_device
def forward(question: Question, asked: Asked) -> Told:
    """out, lse and what was asked, by whichever kernel fits."""
    if decodes(question.query, question.key):
        return _decode(question, asked)
    q, k, v = (plain(t) for t in question.tensors)
    batch, heads, queries, dim = q.shape
    dims, value_dims = width(dim), width(v.shape[3])
    ring = ring_of(q.device, dims) if dims == value_dims else None
    if ring is not None:
        return _on_hopper(question._replace(query=q, key=k, value=v), asked, ring)
    band = question.band
    rows, keys, warps, stages = forward_sizes(
        q.device, max(dims, value_dims), causal=band.right <= 0
    )
    out = empty_like_rows(q, heads, queries, v.shape[3])
    told = Told.empty(out, asked)
    forward_kernel[(blocks(queries, rows) * heads, batch)](
        rows_of(q, rows, dims), rows_of(k, keys, dims), rows_of(v, keys, value_dims),
        rows_of(out, rows, value_dims), *told[1:], numbers_of(asked.masses, q.device),
        question.sinks, **question.numbers, SINKS=question.sinks is not None, **asked.flags,
        MASSES=len(asked.masses), ONE_SIDED=band.right <= 0, ROWS=rows, KEYS=keys, DIM=dims,
        VALUE_DIM=value_dims, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return told


def _on_hopper(question: Question, asked: Asked, ring: Ring) -> Told:
    """The same by a warp that fetches and groups of warps that compute."""
    from .hopper import hopper_kernel
    from .hopper_work import shared_out, three_end_sooner

    q, k, v = question.tensors
    batch, heads, queries, dim = q.shape
    dims, sinks, unbounded = width(dim), question.sinks, question.band.left == FAR
    # The first keys lie in one tile, which the kernel looks at once more; other bands need a walk.
    first = asked.masses[0] if len(asked.masses) == 1 else Band()
    in_a_tile = first.length <= ring.keys and (first.left, first.right) == (FAR, FAR)
    first_keys = 0 if not in_a_tile else 8 if first.length <= 8 else ring.keys  # that are looked at
    one_sided, multiprocessors = question.band.right <= 0, processors(q.device)
    # By two groups, where a thread of three has too few registers, or blocks of three are too few.
    spills = question.softcap is not None or asked.peak_key or first_keys > 8 or not unbounded
    alike = not one_sided or 2 * queries <= k.shape[2]  # the last rows see all, the first half
    if spills or not three_end_sooner(batch * heads, queries, multiprocessors, alike=alike):
        ring = ring.by_two()
    out = empty_like_rows(q, heads, queries, v.shape[3])
    told = Told.empty(out, asked if in_a_tile else asked._replace(masses=()))

    pointers = [told.lse if t is None else t for t in (*told[1:7], sinks)]  # None is not touched
    # A program takes block after block where the next queries find room in shared memory, where one
    # order of all blocks, the longest first, shares them out evenly (which is another one for each
    # text that begins or ends elsewhere), and where the time between two of them counts.
    one_order = batch == 1 or (question.offsets is None and question.band.lengths is None)
    laps = ring.laps and (one_order or not one_sided) and k.shape[2] <= 1 << 15
    programs = multiprocessors if laps else 0
    grid, works = shared_out(batch, heads, blocks(queries, 64 * ring.groups), one_sided, programs)
    launch(
        hopper_kernel, grid, {"num_warps": 4},
        *(tiles_of(t, n, dims) for t, n in ((q, 64), (k, ring.keys), (v, ring.keys), (out, 64))),
        *pointers, **pointers_of(question, told.lse),
        **works, prefix=first.length, FIRST_KEYS=first_keys, SINKS=sinks is not None, **asked.flags,
        ONE_SIDED=one_sided, UNBOUNDED=unbounded, KEYS=ring.keys, DIM=dims, STAGES=ring.stages,
        TURNS=ring.turns if asked.by_tile else ring.plain_turns, LAPS=laps, GROUPS=ring.groups,
    )  # fmt: skip
    if in_a_tile or not asked.masses:
        return told
    return told._replace(masses=masses(question, told.lse, asked.masses))


def _decode(question: Question, asked: Asked) -> Told:
    """The same for a few queries over many keys."""
    q, (k, v) = question.query, (plain(t) for t in question.tensors[1:])
    q = q if q.stride(-1) == 1 else q.contiguous()
    batch, heads, queries, dim = q.shape
    value_dim = v.shape[3]
    rows, keys, warps, stages = decode_sizes(q.device, max(dim, value_dim))
    rows = rows if question.group * queries <= rows else _FEW_ROWS
    row_blocks = blocks(question.group * queries, rows)
    wanted = max(1, _SHARES * processors(q.device) // (batch * k.shape[1] * row_blocks))
    first, last = question.in_sight
    first = first // keys * keys
    per_share = keys * max(1, blocks(blocks(last - first, keys), wanted))
    shares = max(1, blocks(last - first, per_share))
    total = batch * heads * queries
    parts = q.new_empty(shares, total, value_dim, dtype=torch.float32)
    carried = q.new_empty(4, shares, total, dtype=torch.float32)
    best = q.new_empty(shares, total, dtype=torch.int32) if asked.peak_key else None
    flags = asked.flags
    carries = {name: flags[name] for name in ("ENTROPY", "DISTANCE", "PEAK_KEY")}
    value_dims = width(value_dim)
    early = is_hopper(q.device)  # it can set up a kernel while the one before is still at work
    launch(
        share_kernel, (shares * row_blocks, k.shape[1], batch),
        {"num_warps": warps, "num_stages": stages},
        q, rows_of(k, keys, width(dim)), rows_of(v, keys, value_dims), parts, carried, best,
        q_batch=q.stride(0), q_head=q.stride(1), q_row=q.stride(2), dim=dim, value_dim=value_dim,
        first=first, shares=shares, per_share=per_share, **question.numbers, **carries, ROWS=rows,
        KEYS=keys, DIM=width(dim), VALUE_DIM=value_dims, EARLY=early,
    )  # fmt: skip
    told = Told.empty(q.new_empty(batch, heads, queries, value_dim), asked)
    launch(
        merge_kernel, (total,), {"num_warps": 1, **({"launch_pdl": True} if early else {})},
        parts, carried, best, *told[:6], question.sinks, heads=heads, queries=queries, total=total,
        shares=shares, value_dim=value_dim, SINKS=question.sinks is not None, **flags,
        SHARES=4 if shares <= 4 else 32 if shares <= 32 else 64, VALUE_DIM=value_dims, EARLY=early,
    )  # fmt: skip
    return told._replace(masses=masses(question, told.lse, asked.masses)) if asked.masses else told


@on_its_device
def masses(question: Question, lse: Tensor, bands: tuple[Band, ...]) -> Tensor:
    """The weight of each row inside each band, given lse, (band, batch, heads, query)."""
    q, k = plain(question.query), plain(question.key)
    batch, heads, queries, dim = q.shape
    dims, lse = width(dim), lse.contiguous()
    found = q.new_empty(len(bands), batch, heads, queries, dtype=torch.float32)
    numbers = numbers_of(bands, q.device)
    if (ring := ring_of(q.device, dims)) is not None:
        from .hopper_sweep import masses_on_hopper

        rows, stages = ring.sweep
        launch(
            masses_on_hopper, (blocks(queries, rows) * heads, batch, len(bands)),
            {"num_warps": rows // 16, "maxnreg": 80},
            tiles_of(q, rows, dims), tiles_of(k, 64, dims), lse, found, numbers,
            **pointers_of(question, lse), ROWS=rows, KEYS=64, DIM=dims, STAGES=stages,
        )  # fmt: skip
        return found
    rows, keys, warps, _ = sweep_sizes(q.device, dims)
    masses_kernel[(blocks(queries, rows) * heads, batch)](
        rows_of(q, rows, dims), rows_of(k, keys, dims), lse, found, numbers, **question.numbers,
        MASSES=len(bands), ROWS=rows, KEYS=keys, DIM=dims, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return found


@on_its_device
def backward(question: Question, grad_out: Tensor, lse: Tensor, pulls: Pulls) -> tuple[Tensor, ...]:
    """Gradients of query, key and value."""
    q, k, v, do = (plain(t) for t in (*question.tensors, grad_out))
    batch, heads, queries, dim = q.shape
    kv_heads, length, value_dim = k.shape[1], k.shape[2], v.shape[3]
    dims, value_dims = width(dim), width(value_dim)
    rows, keys, warps, stages = backward_sizes(q.device, max(dims, value_dims))
    dq = empty_like_rows(q, heads, queries, dim)
    dk = empty_like_rows(k, kv_heads, length, dim)
    dv = empty_like_rows(v, kv_heads, length, value_dim)
    read = (
        rows_of(q, rows, dims), rows_of(k, keys, dims), rows_of(v, keys, value_dims),
        rows_of(do, rows, value_dims),
    )  # fmt: skip
    told = (lse, pulls.back, pulls.entropy, pulls.distance, pulls.masses,
            numbers_of(pulls.bands, q.device))  # fmt: skip
    common = dict(
        **question.numbers, plain_scale=question.scale, ENTROPY=pulls.entropy is not None,
        DISTANCE=pulls.distance is not None, MASSES=len(pulls.bands), ROWS=rows, KEYS=keys,
        DIM=dims, VALUE_DIM=value_dims, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    query_kernel[(blocks(queries, rows) * heads, batch)](
        *read, rows_of(dq, rows, dims), *told, **common
    )
    key_kernel[(blocks(length, keys) * kv_heads, batch)](
        *read, rows_of(dk, keys, dims), rows_of(dv, keys, value_dims), *told, **common
    )
    return dq, dk, dv
