"""The same queries over shards of the keys → what one pass over all keys gives.

A shard's weights are those of the whole times w = exp(its lse − lse). So expectations add up with
w, peaks and tops are compared after it, and  H = Σ w·(H_shard − R·ln w)  with R its real weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..masks import Mask, prefix
from .result import Observation
from .statistics import Expectation, Statistic, Top
from .statistics.entropy import Effective, Entropy
from .statistics.expect import Expect
from .statistics.mass import Mass
from .statistics.peak import MaxScore, Peak, PeakKey
from .statistics.top import TopK


def merge(shards: Sequence[Observation], starts: Sequence[int] | None = None) -> Observation:
    """Observations of the same queries over shards of the keys, as one over all of them.

    `starts` says at which key each shard begins, for peak_key and top. Each shard was observed with
    an `offset` that places its queries among its own keys. A sink counts in one shard alone. What
    keys receive, and maps, need the lse of the whole: observe each shard again with
    `lse=merged.lse`, and lay the results side by side.
    """
    if isinstance(shards, Observation) or not isinstance(shards, Sequence) or not len(shards):
        raise ValueError("merge takes a list of observations; give one for each shard of the keys.")
    if any(not isinstance(shard, Observation) for shard in shards):
        raise ValueError("merge takes a list of observations; give what mh.observe returned.")
    _check_shards(shards)
    asked = shards[0].asked
    for statistic in asked:
        if not isinstance(statistic, Expectation | Expect | Peak | PeakKey | MaxScore | TopK):
            raise ValueError(
                f"{statistic.key} of shards cannot be merged: it needs the lse of all keys; "
                "observe each shard again with lse=merge(...).lse, and lay the results together."
            )
        _check_alike(statistic, shards)
    if any(isinstance(s, PeakKey) for s in asked) and "peak" not in shards[0].found:
        raise ValueError("to merge peak_key the peaks are needed; observe 'peak' too.")
    places = any(isinstance(s, PeakKey | TopK) for s in asked)
    whole = isinstance(starts, Sequence) and all(type(start) is int for start in starts)
    if places and (starts is None or not whole or len(starts) != len(shards)):
        raise ValueError(
            "peak_key and top need to know where each shard's keys begin; give starts=[0, …]."
        )
    if places and starts is not None:  # of equal weights the lower key comes first
        pairs = sorted(zip(starts, shards, strict=True), key=lambda pair: pair[0])
        starts, shards = [start for start, _ in pairs], [shard for _, shard in pairs]
    lse = torch.stack([s.lse for s in shards]).logsumexp(0)
    lse = torch.where(torch.stack([s.lse != -torch.inf for s in shards]).any(0), lse, -torch.inf)
    shares = [torch.exp(s.lse - lse).masked_fill(s.lse == -torch.inf, 0.0) for s in shards]
    found = {s.key: _merge(s, shards, shares, lse, starts or [0] * len(shards)) for s in asked}
    whole_lse = torch.stack([s.whole_lse for s in shards]).logsumexp(0)
    safe = whole_lse.masked_fill(whole_lse == -torch.inf, 0.0)
    parts = [torch.exp(s.whole_lse - safe) for s in shards]
    out = sum(part[..., None] * s.out for part, s in zip(parts, shards, strict=True))
    real = sum(share * s.real for share, s in zip(shares, shards, strict=True))
    assert isinstance(out, Tensor)
    assert isinstance(real, Tensor)
    backend = " + ".join(dict.fromkeys(s.backend for s in shards))
    return Observation(
        out.to(shards[0].out.dtype), lse, found, backend=backend, queries=shards[0].queries,
        real=real, asked=asked, whole_lse=whole_lse, has_sinks=any(s.has_sinks for s in shards),
    )  # fmt: skip


def _check_alike(statistic: Statistic, shards: Sequence[Observation]) -> None:
    """The same name must mean the same thing in every shard."""
    same = [next(s for s in shard.asked if s.key == statistic.key) for shard in shards]
    if any(type(s) is not type(statistic) for s in same) or (
        isinstance(statistic, TopK) and len({s.count for s in same if isinstance(s, TopK)}) > 1
    ):
        raise ValueError(f"{statistic.key!r} is not the same statistic in every shard; ask alike.")
    masks = [s.mask for s in same if isinstance(s, Mass)]
    if len(masks) > 1 and all(mask == masks[0] for mask in masks) and _counts_keys(masks[0]):
        raise ValueError(
            f"{statistic.key} counts keys from the first of each shard, not of the whole; give "
            "each shard a mask of its own under one name=, as mass(prefix(2), name='first') in the "
            "first and mass(dense(...), name='first') in the others."
        )


def _counts_keys(mask: Mask) -> bool:
    return isinstance(mask, prefix) or any(
        _counts_keys(part) for part in mask.parts() if isinstance(part, Mask)
    )


def _check_shards(shards: Sequence[Observation]) -> None:
    first = shards[0]
    for shard in shards:
        alike = {*shard} == {*first} and shard.out.shape == first.out.shape
        if not alike or not torch.equal(shard.queries, first.queries):
            raise ValueError(
                "merge takes observations of the same queries and statistics, but these differ.\n"
                f"  {', '.join(first)} of {tuple(first.lse.shape)}, out {tuple(first.out.shape)}\n"
                f"  {', '.join(shard)} of {tuple(shard.lse.shape)}, out {tuple(shard.out.shape)}"
            )
        if not shard.of_all_keys:
            raise ValueError(
                "an observation made with lse= is part of a whole already; "
                "merge those made without, and observe again with the merged lse."
            )
    if sum(shard.has_sinks for shard in shards) > 1:
        raise ValueError("a sink counts in one shard alone; leave sinks= out of the others.")


def _merge(statistic: Statistic, shards, shares: list[Tensor], lse: Tensor, starts) -> object:
    values = [shard.found[statistic.key] for shard in shards]
    pairs = list(zip(shares, values, strict=True))
    if isinstance(statistic, Effective | Entropy):
        if isinstance(statistic, Effective):
            values = [v.clamp(min=1e-30).log() for v in values]
        parts = zip(shares, values, shards, strict=True)
        total = sum(w * h - torch.special.xlogy(w, w) * s.real for w, h, s in parts)
        assert isinstance(total, Tensor)
        if isinstance(statistic, Effective):
            return total.exp().masked_fill(lse == -torch.inf, 0.0)
        return total
    if isinstance(statistic, Expectation | Expect):
        return sum(share.reshape(share.shape + (1,) * (v.ndim - 3)) * v for share, v in pairs)
    if isinstance(statistic, Peak):
        return torch.stack([share * v for share, v in pairs]).amax(0)
    if isinstance(statistic, PeakKey):  # the shard with the larger peak; of equal ones the first
        peaks = torch.stack(
            [share * s.found["peak"] for share, s in zip(shares, shards, strict=True)]
        )
        keys = [torch.where(v < 0, -1, v + at) for v, at in zip(values, starts, strict=True)]
        best = peaks.eq(peaks.amax(0)).int().argmax(0, keepdim=True)
        return torch.stack(keys).gather(0, best)[0]
    if isinstance(statistic, MaxScore):
        dead = torch.stack(
            [
                torch.where((s.real > 0) | (v != 0), v, -torch.inf)  # a sink may round `real` to 0
                for (_, v), s in zip(pairs, shards, strict=True)
            ]
        )
        top = dead.amax(0)
        return torch.where(top == -torch.inf, 0.0, top)
    if isinstance(statistic, TopK):
        weights = torch.cat([share[..., None] * v.weights for share, v in pairs], dim=-1)
        keys = [
            torch.where(v.keys < 0, -1, v.keys + at)
            for (_, v), at in zip(pairs, starts, strict=True)
        ]
        ranked = torch.where(torch.cat(keys, -1) < 0, -1.0, weights)
        order = ranked.sort(dim=-1, descending=True, stable=True).indices[..., : statistic.count]
        return Top(weights.gather(-1, order), torch.cat(keys, -1).gather(-1, order))
    raise AssertionError(statistic)
