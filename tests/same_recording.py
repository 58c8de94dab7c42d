"""Whether two recordings say the same, and what lies in the folder of one."""

import os
import re

import torch


def same(one, two):
    assert (one.model, one.words, one.about) == (two.model, two.words, two.about)
    for name in ("ids", "real", "loss"):
        ours, theirs = getattr(one, name), getattr(two, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert len(one.layers) == len(two.layers)
    for ours, theirs in zip(one.layers, two.layers, strict=True):
        same_layer(one, ours, two, theirs)


def same_layer(one, ours, two, theirs):
    assert (ours.name, ours.index, ours.chunks) == (theirs.name, theirs.index, theirs.chunks)
    assert {*ours.tensors} == {*theirs.tensors}
    for head in range(ours.heads):
        for by in ("weight", "norm", "value"):
            found = [rec.weights(ours.index, head, batch=1, by=by) for rec in (one, two)]
            assert torch.equal(*found)
        for a, b in zip(*(rec.heatmap(ours.index, head, 4) for rec in (one, two)), strict=True):
            assert torch.equal(a, b)
    for name in ours.statistics:
        a, b = ours[name], theirs[name]
        for x, y in zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]:
            assert torch.equal(x, y)


def kinds_of_files(folder):
    """Names in a folder, the number of the saving left out: there is but one."""
    found = [re.fullmatch(r"(.*)-([0-9a-f]{8})\.safetensors", f) for f in os.listdir(folder)]
    assert len({named[2] for named in found if named}) == 1
    assert sum(named is None for named in found) == 1
    assert "meta.json" in os.listdir(folder)
    return sorted(named[1] for named in found if named)
