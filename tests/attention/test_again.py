"""A kernel that was compiled is launched again for arguments of the same kind, and for no others."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
from multihead.attention.fused import again


class Kernel:
    """As Triton's: called with a grid it compiles, and gives back what it compiled."""

    names = ("tile_at", "lse_at", "spare_at", "heads", "keys", "scale", "DIM")

    def __init__(self):
        self.arg_names, self.compiled = [*self.names], []
        self.params = [
            SimpleNamespace(do_not_specialize=name == "keys", is_constexpr=name == "DIM")
            for name in self.names
        ]
        self.fn = lambda: None

    def __getitem__(self, grid):
        def run(*first, num_warps, **named):
            given = dict(zip(self.names, first, strict=False)) | named
            self.compiled.append(Compiled(grid, [given[name] for name in self.names]))
            return self.compiled[-1]

        return run


class Compiled:
    def __init__(self, grid, values):
        self.launches = [(grid, values)]

    def __getitem__(self, grid):
        return lambda *values: self.launches.append((grid, [*values]))


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(again, "_BY_TRITON", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return Kernel()


def asked(**changes):
    rows = torch.zeros(64, dtype=torch.bfloat16)
    tile = SimpleNamespace(base=rows, block_shape=[1, 1, 64, 64])
    usual = {
        "tile_at": tile, "lse_at": torch.zeros(8), "spare_at": None, "heads": 4, "keys": 8192,
        "scale": 0.5, "DIM": 64,
    }  # fmt: skip
    return usual | changes


def launch(kernel, grid=(3, 2), warps=4, **changes):
    given = asked(**changes)
    tile = given.pop("tile_at")
    again.launch(kernel, grid, {"num_warps": warps}, tile, **given)


def test_the_same_kind_is_compiled_once(kernel):
    lse = torch.ones(8)
    launch(kernel)
    launch(kernel, (5, 7), lse_at=lse, keys=77, scale=0.25)
    (compiled,) = kernel.compiled
    grid, (_, *values) = compiled.launches[1]
    assert grid == (5, 7, 1)
    assert values[0] is lse
    assert values[1:] == [None, 4, 77, 0.25, 64]


@pytest.mark.parametrize(
    "changes",
    [
        {"DIM": 128},
        {"heads": 1},
        {"keys": 2**40},
        {"spare_at": torch.zeros(8)},
        {"lse_at": torch.zeros(9)[1:]},  # not in steps of 16 bytes
        {"lse_at": torch.zeros(8).double()},
        {"tile_at": SimpleNamespace(base=torch.zeros(64), block_shape=[1, 1, 64, 64])},
        {"warps": 8},
    ],
    ids=str,
)
def test_another_kind_is_compiled_anew(kernel, changes):
    launch(kernel)
    launch(kernel, **changes)
    launch(kernel, **changes)
    assert [len(one.launches) for one in kernel.compiled] == [1, 2]


def test_each_device_has_its_own(kernel, monkeypatch):
    launch(kernel)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    launch(kernel)
    assert len(kernel.compiled) == 2


def test_not_more_than_many_are_kept(kernel, monkeypatch):
    monkeypatch.setattr(again, "_COMPILED", {})
    monkeypatch.setattr(again, "_MANY", 3)
    for heads in range(2, 9):
        launch(kernel, heads=heads)
    assert len(kernel.compiled) == 7
    assert len(again._COMPILED) <= 3
