"""How RoPE's frequencies change so that a model reads further than it was trained to.

Pair i of `dim` channels turns by θᵢ = base^(−2i/dim) a position: the first pairs fast, the last so
slowly that training never showed them a whole turn. Beyond the trained length those meet angles
they have not seen. Each scaling slows some pairs down by up to `factor`; its `amplitude` multiplies
cos and sin.
"""

import math
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

Frequencies = Float64[Tensor, " pairs"]  # radians a position, one for each pair of channels


def as_written(self: Any) -> str:
    """Print a frozen value as the call that makes it: its first field, then what is not default."""
    first, *others = [(field, getattr(self, field.name)) for field in fields(self)]
    shown = [first, *((field, value) for field, value in others if value != field.default)]
    words = ", ".join(f"{field.name}={value!r}".removesuffix(".0") for field, value in shown)
    return f"{type(self).__name__.lower()}({words.partition('=')[2]})"


def require(holds: bool, rule: str, got: object) -> None:
    """Raise a ValueError that says the rule and what came, unless the rule holds."""
    if not holds:
        raise ValueError(f"{rule}.\n  got {got!r}")


def _check_factor(self: Any) -> None:
    require(self.factor >= 1, "factor must be 1 or more; give new length / trained length", self)


@dataclass(frozen=True)
class linear:
    """Squeeze all positions alike (position interpolation; Chen et al. 2023, arXiv:2306.15595).

        θ'ᵢ = θᵢ / factor

    >>> linear(4)(torch.tensor([1.0, 0.01]), base=10_000)
    tensor([0.2500, 0.0025])
    """

    factor: float
    amplitude: ClassVar[float] = 1.0
    __post_init__, __repr__ = _check_factor, as_written

    def __call__(self, frequencies: Frequencies, base: float) -> Frequencies:
        return frequencies / self.factor


@dataclass(frozen=True)
class ntk:
    """Keep the fastest pair, squeeze the slowest by the whole factor, by a larger base.

        base' = base · factor^(dim/(dim−2)),  that is  θ'ᵢ = θᵢ · factor^(−i/(dim/2−1))

    "NTK-aware" interpolation: Peng et al. 2023, arXiv:2309.00071, section 3.1. It is the static
    kind: the factor does not follow the length of the input.

    >>> ntk(4)(torch.tensor([1.0, 0.1, 0.01]), base=1_000)
    tensor([1.0000, 0.0500, 0.0025])
    """

    factor: float
    amplitude: ClassVar[float] = 1.0
    __post_init__, __repr__ = _check_factor, as_written

    def __call__(self, frequencies: Frequencies, base: float) -> Frequencies:
        pair = torch.arange(len(frequencies), device=frequencies.device)
        slowest = max(len(frequencies) - 1, 1)
        return frequencies * self.factor ** (-pair.to(frequencies) / slowest)


@dataclass(frozen=True)
class yarn:
    """Squeeze the pairs that turned too seldom in training (Peng et al. 2023, arXiv:2309.00071).

        i(β) = dim · ln(original_length / 2πβ) / (2 ln base)           the pair that turned β times
        kept = 1 up to i(beta_fast), 0 from i(beta_slow), linear between; truncate rounds outwards
        θ'ᵢ  = θᵢ · (kept + (1 − kept) / factor)

    The amplitude is `attention_factor`: scores grow by its square, which sharpens the softmax. If
    not given it is m(1), or m(mscale) / m(mscale_all_dim), where m(c) = 0.1 · c · ln(factor) + 1.

    >>> qwen = yarn(4, original_length=32_768)
    >>> qwen, qwen.amplitude
    (yarn(4, original_length=32768), 1.138629436111989)
    """

    factor: float
    _: KW_ONLY
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    __repr__ = as_written

    def __post_init__(self):
        _check_factor(self)
        require(self.original_length > 0, "original_length must be above 0; give the trained", self)
        ordered = 0 < self.beta_slow < self.beta_fast
        require(ordered, "beta_fast must be above beta_slow, and both above 0; swap them?", self)
        together = (self.mscale is None) == (self.mscale_all_dim is None)
        require(together, "mscale and mscale_all_dim must come together; give both or none", self)
        once = self.attention_factor is None or self.mscale is None
        require(once, "attention_factor and mscale both set the amplitude; give one", self)

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        growth = 0.1 * math.log(self.factor)
        if self.mscale is None or self.mscale_all_dim is None:
            return growth + 1
        return (growth * self.mscale + 1) / (growth * self.mscale_all_dim + 1)

    def __call__(self, frequencies: Frequencies, base: float) -> Frequencies:
        pairs, circles = len(frequencies), self.original_length / (2 * math.pi)
        first = pairs * math.log(circles / self.beta_fast) / math.log(base)
        last = pairs * math.log(circles / self.beta_slow) / math.log(base)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        pair = torch.arange(pairs, device=frequencies.device).to(frequencies)
        kept = 1 - ((pair - first) / (last - first or 0.001)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class llama3:
    """Squeeze the pairs that turned less than `high` times in training, as Llama 3.1 does.

        turns = original_length · θᵢ / 2π
        kept  = 0 up to `low` turns, 1 from `high` turns, linear between
        θ'ᵢ   = θᵢ · (kept + (1 − kept) / factor)

    The Llama 3 herd of models: Llama team 2024, arXiv:2407.21783, and the code that came with 3.1.

    >>> llama3(8)(torch.tensor([1.0, 2e-3, 1e-6]), base=500_000)
    tensor([1.0000e+00, 1.1878e-03, 1.2500e-07])
    """

    factor: float
    _: KW_ONLY
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192
    amplitude: ClassVar[float] = 1.0
    __repr__ = as_written

    def __post_init__(self):
        _check_factor(self)
        require(self.original_length > 0, "original_length must be above 0; give the trained", self)
        ordered = 0 < self.low < self.high
        require(ordered, "high must be above low, and both above 0; swap them?", self)

    def __call__(self, frequencies: Frequencies, base: float) -> Frequencies:
        turns = frequencies * (self.original_length / (2 * math.pi))
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


Scaling = linear | ntk | yarn | llama3
