"""One record: the attention of a model, in numbers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..masks import Mask, causal, window
from ..positions import Rope

POSITIONS = ("alibi", "learned", "sinusoidal", "none")  # or a rope


@dataclass(frozen=True)
class AttentionShape:
    """The attention of a published model, in numbers; its source beside them.

    `context` is the number of positions that its configuration allows. `positions` says where
    tokens stand: a rope, "alibi", or "learned" and "sinusoidal", which are added before the layers.
    Where there is a `window`, every layer has it, or all but the last of each `full_every`.

    >>> from multihead.presets import preset
    >>> print(preset("gpt-oss-20b"))
    gpt-oss-20b: 24 layers, d_model 2880, 64 heads of 64 on 8 key heads, context 131072
      causal() & window(128), every 2nd layer causal(); bias, sinks
      rope(150000, scaling=yarn(32, original_length=4096, truncate=False))
      arXiv:2508.10925; config.json of openai/gpt-oss-20b
    """

    name: str
    layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int | None
    positions: Rope | str
    source: str
    _: KW_ONLY
    causal: bool = True
    bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    softcap: float | None = None
    sinks: bool = False
    window: int | None = None
    full_every: int | None = None
    window_rope: Rope | None = None  # of the layers with a window, where it is not `positions`

    def __post_init__(self) -> None:
        sizes = {name: size for name, size in vars(self).items() if type(size) is int}  # no bools
        if min(sizes.values()) < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                "a shape needs sizes of 1 or more, and num_heads a multiple of num_kv_heads; "
                "change them.\n  " + "  ".join(f"{name} {size}" for name, size in sizes.items())
            )
        if not isinstance(self.positions, Rope) and self.positions not in POSITIONS:
            raise ValueError(
                f"positions must be a rope or one of {', '.join(POSITIONS)}; choose one.\n"
                f"  got {self.positions!r}"
            )

    def window_of(self, layer: int) -> int | None:
        """How many keys back this layer sees, itself included; None where it sees all."""
        if not 0 <= layer < self.layers:
            raise ValueError(
                f"{self.name} has layers 0 to {self.layers - 1}; choose one.\n  got {layer}"
            )
        full = self.full_every is not None and (layer + 1) % self.full_every == 0
        return None if full else self.window

    def mask_of(self, layer: int) -> Mask | None:
        """Who may look at whom in this layer."""
        width = self.window_of(layer)
        if not self.causal:
            return None if width is None else window(width)
        return causal() if width is None else causal() & window(width)

    def layer_arguments(self, layer: int = 0) -> dict[str, Any]:
        """What `MultiHeadAttention` is built with, to be this layer of the model.

        >>> from multihead.presets import preset
        >>> local, full = (preset("gemma-3-1b").layer_arguments(layer) for layer in (0, 5))
        >>> local["mask"], local["rope"], full["mask"], full["rope"]
        (causal() & window(512), rope(10000), causal(), rope(1000000))
        """
        local = self.window_rope is not None and self.window_of(layer) is not None
        positions = self.window_rope if local else self.positions
        return {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "bias": self.bias,
            "out_bias": self.out_bias,
            "mask": self.mask_of(layer),
            "rope": positions if isinstance(positions, Rope) else None,
            "alibi": positions == "alibi",
            "qk_norm": self.qk_norm,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }

    def __str__(self) -> str:
        heads = f"{self.num_heads} heads of {self.head_dim}"
        if self.num_kv_heads < self.num_heads:
            heads += f" on {self.num_kv_heads} key head{'s' if self.num_kv_heads > 1 else ''}"
        context = "any context" if self.context is None else f"context {self.context}"
        return (
            f"{self.name}: {self.layers} layers, d_model {self.d_model}, {heads}, {context}\n"
            f"  {self._say_masks()}; {', '.join(self._say_extras())}\n"
            f"  {self._say_positions()}\n"
            f"  {self.source}"
        )

    def _say_masks(self) -> str:
        without = "causal()" if self.causal else "no mask"
        if self.window is None or self.full_every == 1:
            return without
        if self.full_every is None:
            return str(self.mask_of(0))
        nth = {2: "2nd", 3: "3rd"}.get(self.full_every, f"{self.full_every}th")
        return f"{self.mask_of(0)}, every {nth} layer {without}"

    def _say_extras(self) -> list[str]:
        biases = {(True, True): "bias", (True, False): "bias of q, k, v", (False, False): "no bias"}
        said = [biases.get((self.bias, self.out_bias), "bias of the output")]
        said += ["qk_norm"] if self.qk_norm else []
        said += [f"softcap {self.softcap:g}"] if self.softcap is not None else []
        return said + (["sinks"] if self.sinks else [])

    def _say_positions(self) -> str:
        if isinstance(self.positions, str):
            return f"positions: {self.positions}"
        local = f", and {self.window_rope} where there is a window" if self.window_rope else ""
        return f"{self.positions}{local}"
