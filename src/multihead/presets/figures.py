"""What attention costs: parameters, operations and bytes, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import torch

from .published import preset
from .shape import AttentionShape


class Figures(NamedTuple):
    """What attention costs, in whole numbers; see `cost`."""

    parameters: int  # of the projections, their biases, the norms of q and k, the sinks
    operations: int  # every query–key pair, masked or not
    visible_operations: int  # the pairs that the mask lets through
    cache_bytes: int
    map_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class Cost:
    """The figures of each layer, and their `total`; prints as a table."""

    shape: AttentionShape
    tokens: int
    batch: int
    element_bytes: int
    layers: tuple[Figures, ...]

    @property
    def total(self) -> Figures:
        return Figures(*map(sum, zip(*self.layers, strict=True)))

    def __str__(self) -> str:
        kinds: dict[int | None, list[Figures]] = {}
        for layer, figures in enumerate(self.layers):
            kinds.setdefault(self.shape.window_of(layer), []).append(figures)
        columns = {
            f"{'full' if width is None else f'window {width}'} × {len(same)}": same[0]
            for width, same in kinds.items()
        }
        columns[f"all {len(self.layers)}"] = self.total
        lines = [
            f"{self.shape.name}: {self.tokens:,} tokens, batch {self.batch}, "
            f"{self.element_bytes} bytes a number"
        ]
        if self.shape.context is not None and self.tokens > self.shape.context:
            lines.append(f"more than its context of {self.shape.context:,} tokens")
        lines.append(f"{'layers':26}" + "".join(f"{head:>18}" for head in columns))
        for row, (label, unit) in enumerate(_ROWS):
            cells = (f"{_short(figures[row], unit):>18}" for figures in columns.values())
            lines.append(f"{label:26}" + "".join(cells))
        return "\n".join(lines)


_ROWS = (
    ("parameters", ""),
    ("operations, every pair", ""),
    ("operations, visible pairs", ""),
    ("cache of keys and values", "B"),
    ("the map, if it were built", "B"),
    ("q, k and lse instead", "B"),
)


def _short(number: int, unit: str) -> str:
    """To the digit below ten million, else four digits: 2,362,368 and 41.94 M."""
    if number < 10**7:
        return f"{number:,} {unit}".rstrip()
    thousands = min((len(str(number)) - 1) // 3, 8)
    digits = f"{number / 1000**thousands:#.4g}".rstrip(".")
    return f"{digits} {' kMGTPEZY'[thousands]}{unit}"


def cost(
    config: AttentionShape | str,
    tokens: int,
    *,
    batch: int = 1,
    dtype: torch.dtype | int = torch.float32,
) -> Cost:
    """What a model's attention costs at so many tokens, layer by layer and in all, exactly.

        parameters    d·(H + 2·KV)·D + H·D·d, biases, 2·D of qk_norm, H sinks
        operations    2·batch·n·(d·(H + 2·KV)·D + H·D·d) + 4·batch·H·D·pairs
        pairs         n²; visible: n(n+1)/2 if causal, n·w − w(w−1)/2 with a window of w < n
        cache         batch·2·KV·D·min(n, w) numbers; an encoder keeps none
        map           batch·H·n² numbers; instead: q, k, and lse in float32 (float64 for float64)

    Operations are of one forward pass, a multiplication and an addition counted as two, and of
    matrix products alone, as `torch.utils.flop_counter` does; a kernel that passes over what the
    mask hides does the visible ones. `dtype` may be a number of bytes.

    >>> print(cost("smollm2-135m", 8192, dtype=torch.bfloat16))
    smollm2-135m: 8,192 tokens, batch 1, 2 bytes a number
    layers                             full × 30            all 30
    parameters                           884,736           26.54 M
    operations, every pair               169.1 G           5.073 T
    operations, visible pairs            91.81 G           2.754 T
    cache of keys and values         6,291,456 B          188.7 MB
    the map, if it were built           1.208 GB          36.24 GB
    q, k and lse instead                12.88 MB          386.3 MB
    """
    shape = preset(config) if isinstance(config, str) else config
    if not isinstance(shape, AttentionShape):
        raise ValueError(
            "cost takes an AttentionShape or the name of a preset; give 'gpt2-small', say, or "
            f"dataclasses.replace(preset('gpt2-small'), …).\n  came {type(config).__name__}"
        )
    size = dtype.itemsize if isinstance(dtype, torch.dtype) else dtype
    _check_sizes(tokens=tokens, batch=batch, dtype=size)
    tokens, batch, size = int(tokens), int(batch), int(size)  # NumPy's would overflow
    layers = (_figures(shape, shape.window_of(i), tokens, batch, size) for i in range(shape.layers))
    return Cost(shape, tokens, batch, size, tuple(layers))


def _check_sizes(**sizes: object) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            what = "a torch.dtype, or its bytes as " if name == "dtype" else ""
            raise ValueError(
                f"{name} must be {what}a whole number, 1 or more; change it.\n  {name} {size!r}"
            )


def _figures(
    shape: AttentionShape, width: int | None, tokens: int, batch: int, size: int
) -> Figures:
    heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    into, out = (heads + 2 * kv_heads) * dim, heads * dim
    projections = shape.d_model * (into + out)
    reach = tokens if width is None else min(width, tokens)
    seen = tokens * reach - reach * (reach - 1) // 2  # up to itself; the other side is its mirror
    pairs = seen if shape.causal else 2 * seen - tokens
    extra = shape.bias * into + shape.out_bias * shape.d_model
    extra += 2 * dim * shape.qk_norm + heads * shape.sinks
    return Figures(
        parameters=projections + extra,
        operations=2 * batch * (tokens * projections + 2 * out * tokens**2),
        visible_operations=2 * batch * (tokens * projections + 2 * out * pairs),
        cache_bytes=batch * 2 * kv_heads * dim * reach * size if shape.causal else 0,
        map_bytes=batch * heads * tokens**2 * size,
        kept_bytes=batch * tokens * ((heads + kv_heads) * dim * size + heads * max(size, 4)),
    )
