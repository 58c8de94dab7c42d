"""A Hopper that is played in Python: what its kernels do beyond what Triton's interpreter knows.

The interpreter runs what a tile computes. Here is what waits for what: tiles that are fetched land
some time later, products are worked out when they are waited for, groups of warps go on in any
order. Each order is drawn at random, and whatever only works by luck is an error that says so:

- a tile that is read before it has landed, or a place in which none ever did (NaN);
- a place that is written while the tensor cores or a store still read it;
- what was written by hand, a barrier's beginning too, and met by them without a fence between;
- a product that is used before it was waited for;
- everybody waiting, something still under way at the end, more arriving than are waited for.

Layouts and registers mean nothing here, nor what a product reads of them before it is waited for:
that kernels compile is tested beside (test_hopper.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import hopper_events as events
import hopper_words as words
import numpy as np
import triton.language as tl
from hopper_events import PLAY, Barrier, Shared, Tiles
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime.interpreter import InterpretedFunction

from multihead.attention.fused import (
    decode,
    hopper,
    hopper_fetch,
    hopper_fold,
    hopper_steps,
    hopper_sweep,
    launch,
    sizes,
    tensors,
)
from multihead.observation.fused import hopper as observing

ROOMS = (decode, hopper, hopper_fetch, hopper_fold, hopper_steps, hopper_sweep, observing)


class Layout:
    """Where numbers lie means nothing here."""

    def __init__(self, *_: Any) -> None: ...

    get_default_for = classmethod(lambda cls, *_: cls())


class Language:
    """Triton's, but for layouts, shared memory and groups of warps."""

    NVMMADistributedLayout = NVMMASharedLayout = SliceLayout = DotOperandLayout = Layout

    def __getattr__(self, name: str) -> Any:
        return getattr(tl, name)

    def arange(self, start, end, _):
        return tl.arange(start, end)

    def zeros(self, shape, dtype, _):
        return tl.zeros(shape, dtype)

    def full(self, shape, value, dtype, _):
        return tl.full(shape, value, dtype)

    def convert_layout(self, tile, _, assert_trivial=False):
        return tile

    def allocate_shared_memory(self, dtype, shape, _) -> Shared:
        PLAY.end()  # the program before this one
        shape = [int(n) for n in shape]
        if dtype == tl.int64:
            return Shared(np.array([[Barrier()] for _ in range(shape[0])], dtype=object), dtype)
        return Shared(np.full(shape, np.nan, np.float16), dtype)

    def inline_asm_elementwise(self, asm, constraints, given, dtype, is_pure, pack):
        return words.run(asm, given)

    def warp_specialize(self, groups, warps, registers):
        PLAY.side_by_side([partial(function, *given) for function, given in groups])


class Played(InterpretedFunction):
    """A function in Gluon, which the interpreter takes for one in Triton."""

    def run(self, *given, **named):
        super().run(*given, **named)
        PLAY.end()

    def rewrite(self):
        found = super().rewrite()
        named = found.__annotations__.items()
        found.__annotations__ = {name: kind.replace("gl.", "tl.") for name, kind in named}
        return found


def play(monkeypatch, seed: int = 0, **instead: Callable) -> None:
    """From here on this machine is a Hopper, and its orders of events are drawn by that seed.

    What it does can be replaced by name, by what a wrong kernel would do.
    """
    PLAY.begin(seed)
    does = SimpleNamespace(**{**vars(events), "MBarrierLayout": Layout, **instead})
    played = {
        "gl": Language(), "load_tile": does.load_tile, "store_tile": does.store_tile,
        "mbarrier": does, "tma": does, "fence_async_shared": does.fence,
        "gdc_launch_dependents": PLAY.until, "gdc_wait": PLAY.until,
        "warpgroup_mma": does.product, "warpgroup_mma_wait": does.product_wait,
    }  # fmt: skip
    for room in (sizes, launch):
        monkeypatch.setattr(room, "is_hopper", lambda _: True)
    monkeypatch.setattr(tensors, "_tiles", lambda: Tiles)
    monkeypatch.setattr(tensors, "_layout", Layout)
    monkeypatch.setattr(tl.block_type, "layout", Layout(), raising=False)
    for room in ROOMS:
        monkeypatch.setattr(room, "tl", tl, raising=False)  # where the interpreter looks for it
        for name, value in [*vars(room).items()]:
            if name in played:
                monkeypatch.setattr(room, name, played[name])
            elif isinstance(value, GluonJITFunction):
                monkeypatch.setattr(room, name, Played(value.fn))
