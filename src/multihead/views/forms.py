"""What the forms of attention cost: counted exactly, and measured on this machine.

The forms are rungs of the ladder with the same way in and out, (tokens, dims) → (tokens, dims):

    one wide head            1 head of dims               `split` with one head
    h slices, split          h heads of dims / h          `split`
    h slices, stacked        h heads of dims / h          `stacked`, and a matrix that mixes
    h full-width, stacked    h heads of dims              `stacked`, and a matrix that mixes
    h slices, fused          h heads of dims / h          `fused`
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..ladder import FusedMultiHeadAttn, MultiHeadAttentionWrapper, MultiHeadAttn


def _stacked(tokens: int, dims: int, heads: int, head_dim: int) -> nn.Module:
    side_by_side = MultiHeadAttentionWrapper(dims, head_dim, tokens, 0.0, heads)
    return nn.Sequential(side_by_side, nn.Linear(heads * head_dim, dims))


# Each builds a module from tokens, dims and heads.
FORMS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "one wide head": lambda n, d, h: MultiHeadAttn(d, d, n, 0.0, 1),
    "slices, split": lambda n, d, h: MultiHeadAttn(d, d, n, 0.0, h),
    "slices, stacked": lambda n, d, h: _stacked(n, d, h, d // h),
    "full-width, stacked": lambda n, d, h: _stacked(n, d, h, d),
    "slices, fused": lambda n, d, h: FusedMultiHeadAttn(d, d, 0.0, h),
}


class Count(NamedTuple):
    """What is the same on every machine."""

    weights: int  # numbers in the matrices
    multiplications: int  # of one forward pass, in matrix products
    per_score: int  # of these, for the scores of one query and one key, all heads together


class Measure(NamedTuple):
    """What this machine took."""

    seconds: float  # one forward pass, the median
    forward_bytes: int  # the most that lived at once in it, beyond the input and the module
    training_bytes: int  # the same, with the way back


def count(form: str, tokens: int, dims: int, heads: int) -> Count:
    """Follow a form through one forward pass, and count.

    Scores and values take n² · width products each, and the rest are projections.

    >>> count("slices, split", 8, 16, 4)
    Count(weights=1024, multiplications=10240, per_score=16)
    >>> count("full-width, stacked", 8, 16, 4)
    Count(weights=4096, multiplications=40960, per_score=64)
    """
    with torch.device("meta"):  # shapes are enough: nothing is computed
        module, x = _build(form, tokens, dims, heads)
    # The counter does not know the kernel for CPUs, but the formula is that of every other.
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def formula(query, key, value, *_, **__) -> int:
        return sdpa_flop_count(query, key, value)

    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping={kernel: formula}) as seen:
        module(x)
    products = seen.get_total_flops() // 2  # it counts a multiplication and its addition as two
    weights = sum(p.numel() for p in module.parameters() if p.ndim == 2)
    return Count(weights, products, (products - tokens * weights) // (2 * tokens**2))


def measure(
    tokens: int, dims: int, heads: int, *, seconds: float = 1.0, rounds: int = 15
) -> dict[str, Measure]:
    """Time and memory of every form, for about so many seconds, three rounds at least.

    Forms take turns, so that a busy moment falls on all of them, and run on one core: two that
    wait for each other on a busy machine would measure the waiting.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        built = {form: _build(form, tokens, dims, heads) for form in FORMS}
        memory = {form: _memory(*made) for form, made in built.items()}  # a warm-up as well
        times: dict[str, list[float]] = {form: [] for form in FORMS}
        until = time.perf_counter() + seconds
        for done in range(rounds):
            if done >= 3 and time.perf_counter() > until:
                break
            for form, made in built.items():
                times[form].append(_time(*made))
    finally:
        torch.set_num_threads(threads)
    return {form: Measure(statistics.median(times[form]), *memory[form]) for form in FORMS}


def _build(form: str, tokens: int, dims: int, heads: int) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng(devices=[]):  # any numbers will do; leave the caller's alone
        return FORMS[form](tokens, dims, heads).eval(), torch.randn(1, tokens, dims)


def _time(module: nn.Module, x: Tensor) -> float:
    begin = time.perf_counter()
    with torch.no_grad():
        module(x)
    return time.perf_counter() - begin


def _memory(module: nn.Module, x: Tensor) -> tuple[int, int]:
    with torch.no_grad(), Peak() as forward:
        module(x)
    with Peak() as training:
        module(x).sum().backward()
    module.zero_grad()
    return forward.bytes, training.bytes


class Peak(TorchDispatchMode):
    """The most bytes of tensors that lived at once: each operation's results, until they are freed.

    Views share a storage, which counts once. A kernel's own scratch space is not seen: none of it
    outlives the kernel. (Python's tracemalloc sees no tensor at all.)

    >>> with Peak() as peak:
    ...     a = torch.zeros(1000)   # 4,000 bytes
    ...     b = a.view(10, 100) + 1 # and 4,000
    ...     del a                   # but these are free again
    ...     c = b * 2
    >>> peak.bytes
    8000
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.now = 0
        self.live: dict[int, int] = {}  # storage → bytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {_storage(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _storage(tensor) not in given:
                self._made(tensor)
        return result

    def _made(self, tensor: Tensor) -> None:
        name, storage = _storage(tensor), tensor.untyped_storage()
        if name in self.live:  # two results may share one
            return
        self.live[name] = storage.nbytes()
        self.now += storage.nbytes()
        self.bytes = max(self.bytes, self.now)
        weakref.finalize(storage, self._freed, name)

    def _freed(self, name: int) -> None:
        self.now -= self.live.pop(name)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
