"""What happens on a Hopper, event by event: barriers, copies, products and stores under way.

Groups of warps are greenlets, copies land some time after they were sent, and each order is drawn
at random. Whatever only works by luck is an error that says so (see hopper_played.py).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from greenlet import getcurrent, greenlet
from triton.runtime.interpreter import TensorHandle


class Barrier:
    """Passes when so many arrived and all bytes that were announced have landed."""

    def __init__(self) -> None:
        self.count = self.missing = self.phase = self.bytes = 0

    def arrived(self, count: int, announced: int = 0) -> None:
        self.bytes += announced
        self.missing -= count
        assert self.missing >= 0, "more arrived at a barrier than it waits for"
        self._pass()

    def landed(self, size: int) -> None:
        self.bytes -= size
        self._pass()

    def _pass(self) -> None:
        if not self.missing and not self.bytes:
            self.phase, self.missing = self.phase + 1, self.count

    def has_passed(self, parity: int) -> bool:
        return self.phase & 1 != parity


class Shared:
    """Shared memory, or a part of it."""

    def __init__(self, data: np.ndarray, dtype: tl.dtype) -> None:
        self.data, self.dtype = data, dtype

    def index(self, place: Any) -> Any:
        found = self.data[int(place)]
        return found[0] if found.dtype == object else Shared(found, self.dtype)

    def slice(self, start: int, length: Any) -> Shared:
        return Shared(self.data[start : start + int(length)], self.dtype)

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.data.transpose(order), self.dtype)

    def load(self, _: Any) -> tl.tensor:
        PLAY.may_read(self.data)
        found = self.data.astype(np.float16)
        return tl.tensor(TensorHandle(found, tl.float16), tl.block_type(tl.float16, [*found.shape]))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def store(self, tile: tl.tensor) -> None:
        PLAY.may_write(self.data)
        self.data[...] = tile.handle.data
        PLAY.unfenced.append((getcurrent(), self.data))


class Tiles:
    """What `tiles_of` gives: where tiles are fetched from, zeros beyond, and stored to."""

    def __init__(self, base: torch.Tensor, shape, strides, block: list[int], layout) -> None:
        assert base.stride() == (*strides[:3], 1) or 1 in base.shape
        self.base, self.box, self.dtype = base, block[2:], tl.float16
        self.block_type = SimpleNamespace(nbytes=2 * block[2] * block[3])

    def at(self, where: list[Any]) -> torch.Tensor:
        batch, head, first, column = map(int, where)
        assert first >= 0 == column
        return self.base[batch, head, first : first + self.box[0]]

    def tile(self, where: list[Any]) -> np.ndarray:
        found, tile = self.at(where), np.zeros(self.box, np.float16)
        tile[: found.shape[0], : found.shape[1]] = found.numpy()
        return tile


class Product:
    """A product under way in the tensor cores, which read shared memory until it is waited for."""

    def __init__(self, a: Any, b: Shared, into: tl.tensor | None) -> None:
        self.reads = [t.data for t in (a, b) if isinstance(t, Shared)]
        left, right = (t.data if isinstance(t, Shared) else t.handle.data for t in (a, b))
        self.found = left.astype(np.float32) @ right.astype(np.float32)
        if into is not None:
            self.found = self.found + into.handle.data

    def done(self) -> tl.tensor:
        shape = [*self.found.shape]
        return tl.tensor(TensorHandle(self.found, tl.float32), tl.block_type(tl.float32, shape))


class Store(NamedTuple):
    """A tile on its way from shared memory, which is read until it is waited for."""

    into: Tiles
    where: list[Any]
    source: np.ndarray


class Play:
    """One program after the other; of each, its groups of warps and its copies in any order."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.flying: list[tuple[np.ndarray, Callable[[], None]]] = []  # copies: where they land
        self.fresh: list[Barrier] = []  # that the copy engine does not know of
        self.unfenced: list[tuple[greenlet, np.ndarray]] = []
        self.products: dict[greenlet, list[Product]] = defaultdict(list)  # of each, in order
        self.stores: dict[greenlet, list[Store]] = defaultdict(list)
        self.waiting: dict[greenlet, Callable[[], bool]] = {}  # groups, and what each waits for

    def until(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Others may go on, and must until that is so."""
        if getcurrent() in self.waiting:
            self.waiting[getcurrent()] = ready
            getcurrent().parent.switch()
        while not ready():
            assert self.flying, "a program waits for what nobody brings"
            self._land()

    def _land(self) -> None:
        _, lands = self.flying.pop(self.random.randrange(len(self.flying)))
        lands()

    def side_by_side(self, calls: list[Callable[[], None]]) -> None:
        self.waiting = {greenlet(call): lambda: True for call in calls}
        while self.waiting:
            able = [group.switch for group, ready in self.waiting.items() if ready()]
            able += [self._land] if self.flying else []
            assert able, "all groups wait, and no copy is under way"
            self.random.choice(able)()
            self.waiting = {g: ready for g, ready in self.waiting.items() if not g.dead}

    def end(self) -> None:
        """Of a program: nothing may be under way."""
        assert not self.flying, "a copy is under way when its program ends"
        assert not any(self.products.values()), "a product is under way when its program ends"
        assert not any(self.stores.values()), "a store is under way when its program ends"
        self.unfenced.clear()

    def may_write(self, place: np.ndarray) -> None:
        reads = [read for some in self.products.values() for made in some for read in made.reads]
        reads += [store.source for some in self.stores.values() for store in some]
        assert not _in(place, reads), "shared memory is written while it is read"
        landing = [there for there, _ in self.flying]
        assert not _in(place, landing), "shared memory is written while a copy is to land there"

    def may_read(self, place: np.ndarray) -> None:
        landing = [there for there, _ in self.flying]
        assert not _in(place, landing), "shared memory is read before a copy has landed there"
        by_hand = [there for _, there in self.unfenced]
        assert not _in(place, by_hand), "shared memory is read without a fence after it was written"


def _in(place: np.ndarray, others: list[np.ndarray]) -> bool:
    return any(np.may_share_memory(place, other) for other in others)


PLAY = Play()


def wait(barrier: Barrier, parity: Any) -> None:
    parity = int(parity)
    PLAY.until(lambda: barrier.has_passed(parity))


def init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.missing = int(count)
    PLAY.fresh.append(barrier)


def arrive(barrier: Barrier, pred: Any = True) -> None:
    PLAY.until()
    if pred:
        barrier.arrived(1)


def expect(barrier: Barrier, size: int, pred: Any = True) -> None:
    if pred:
        barrier.arrived(1, int(size))


def load_tile(
    source: Tiles, where: list[Any], barrier: Barrier, into: Shared, pred: Any = True
) -> None:
    if not pred:
        return
    PLAY.may_write(into.data)
    assert barrier not in PLAY.fresh, "a copy is to arrive at a barrier that no fence made known"
    tile = source.tile(where)

    def lands() -> None:
        into.data[...] = tile
        barrier.landed(source.block_type.nbytes)

    PLAY.flying.append((into.data, lands))
    PLAY.until()


def store_tile(into: Tiles, where: list[Any], source: Shared) -> None:
    PLAY.may_read(source.data)
    PLAY.stores[getcurrent()].append(Store(into, where, source.data))


def store_wait(under_way: int) -> None:
    """In the order in which they began, all but so many."""
    PLAY.until()
    mine = PLAY.stores[getcurrent()]
    for store in [mine.pop(0) for _ in range(len(mine) - under_way)]:
        there = store.into.at(store.where)
        there.copy_(torch.from_numpy(store.source[: there.shape[0], : there.shape[1]]))


def fence() -> None:
    PLAY.fresh.clear()
    PLAY.unfenced = [(who, place) for who, place in PLAY.unfenced if who is not getcurrent()]


def product(a: Any, b: Shared, into: tl.tensor, *, use_acc: bool = True, is_async: bool) -> Product:
    assert is_async
    made = Product(a, b, into if use_acc else None)
    for place in made.reads:
        PLAY.may_read(place)
    PLAY.products[getcurrent()].append(made)
    PLAY.until()
    return made


def product_wait(under_way: int, asked: tuple) -> Any:
    """In the order in which they began, all but so many."""
    PLAY.until()
    mine = PLAY.products[getcurrent()]
    del mine[: len(mine) - under_way]
    assert not any(t in mine for t in asked), "a product is used before it was waited for"
    told = tuple(t.done() if isinstance(t, Product) else t for t in asked)
    return told if len(told) > 1 else told[0]
