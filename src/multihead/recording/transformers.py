"""transformers models: whichever attention function a model asks its library for, it asks us.

Models of today fetch their function from one table, by the name in their configuration. While one
is watched, what the table gives out looks first whose call it is. Names and configurations stay as
they are, and with them the masks that transformers builds for each name.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import causal, dense
from .call import Call, forbids
from .names import of_kind

Answer = Callable[[Call], Any]
_LOCK = threading.Lock()
_OWNERS: list[tuple[Callable[[nn.Module], bool], Answer]] = []  # whose module it is, whom to ask


@contextlib.contextmanager
def borrowed(
    modules: Iterable[nn.Module], owns: Callable[[nn.Module], bool], answer: Answer
) -> Iterator[None]:
    """Have the calls of every transformers model inside go to `answer`, until the end."""
    if "transformers" not in sys.modules:  # then nothing inside can be one
        yield
        return
    from transformers import AttentionInterface

    owner = (owns, answer)
    with _LOCK:
        if not _OWNERS:
            _LENT.append(AttentionInterface.get_interface)
            AttentionInterface.get_interface = _get_interface
        _OWNERS.append(owner)
    try:
        with _readable_masks(modules):
            yield
    finally:
        with _LOCK:
            _OWNERS.remove(owner)
            if not _OWNERS:
                AttentionInterface.get_interface = _LENT.pop()


_LENT: list[Callable[..., Callable]] = []  # transformers' own way to look a function up


def _get_interface(self: Any, attn_implementation: str, default: Callable) -> Callable:
    theirs, name = _LENT[0](self, attn_implementation, default), attn_implementation

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs):
        answer = next((answer for owns, answer in _OWNERS if owns(module)), None)
        if answer is None:
            return theirs(module, query, key, value, *args, **kwargs)
        asked = read(module, query, key, value, *args, **kwargs, eager=name == "eager")
        # Eager attention gives weights too. Who asks for them pays for them.
        weighs = name == "eager" and _asks_weights(module, kwargs)
        call = Call(
            query, key, value, **asked, give=_give, give_weights=_give if weighs else None,
            plain=lambda: theirs(module, query, key, value, *args, **kwargs),
            only_plain=asked["dropout"] > 0 or weighs,
        )  # fmt: skip
        return answer(call)

    return attention


def _give(out: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    return out.transpose(1, 2).contiguous(), weights


def refuse_drafts() -> None:
    """Speculative generation looks at drafts that are taken back: their rows would stay."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "_assisted_decoding" and name.startswith("transformers."):
            raise ValueError(
                "a generation from drafts cannot be recorded: drafts that are rejected would stay "
                "as rows of the text; generate without an assistant or prompt_lookup_num_tokens."
            )
        frame = frame.f_back


@contextlib.contextmanager
def _readable_masks(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Flash and flex kernels get masks of their own kind: have SDPA's built for those models."""
    from transformers import PreTrainedModel

    models: list[Any] = of_kind(modules, lambda kind: issubclass(kind, PreTrainedModel))
    configs = {id(m.config): m.config for m in models}.values()
    before = [(c, c._attn_implementation_internal) for c in configs]
    before = [(c, old) for c, old in before if old not in (None, "eager", "sdpa")]
    try:
        for config, _ in before:
            config._attn_implementation_internal = "sdpa"
        yield
    finally:
        for config, old in before:
            config._attn_implementation_internal = old


def _asks_weights(module: nn.Module, kwargs: dict) -> bool:
    """Whether somebody wants the weights: said in the call, the configuration or by a collector."""
    config = getattr(module, "config", None)
    if kwargs.get("output_attentions") or getattr(config, "output_attentions", False):
        return True
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collected = None if capturing is None else capturing._active_collector.get()
    return any("attentions" in key for key in collected or ())


def read(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    eager: bool = False,
    **_: Any,
) -> dict[str, Any]:
    """What is asked in transformers' words, as a Call has it. `is_causal` seldom arrives: the
    module tells.
    """
    looks_back = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias, queries, keys = None, None, query.shape[2], key.shape[2]
    if attention_mask is not None:
        # The very same tensor where it fits: the layers share it, and it is read once.
        fits = attention_mask.shape[-1] == keys
        given = attention_mask if fits else attention_mask[..., :keys]
        mask, bias = (dense(given), None) if given.dtype == torch.bool else (None, given)
    elif looks_back and queries > 1 and not eager:  # which does what its mask says
        mask = causal()
    if position_bias is not None:
        position_bias = position_bias[..., :keys]
        bias = position_bias if bias is None else bias + position_bias
    return {
        "mask": mask, "bias": bias, "scale": scaling, "softcap": softcap, "sinks": s_aux,
        "dropout": dropout,
        "offset": _place(attention_mask, queries, keys) if looks_back else 0,
    }  # fmt: skip


def _place(mask: Tensor | None, queries: int, keys: int) -> int:
    """Where the first query stands: a cache of fixed length has keys beyond the last one."""
    if mask is None:
        return 0 if queries > 1 else keys - 1
    if keys == queries:
        return 0
    last = mask[..., -1, :keys].flatten(0, -2)  # what the last query sees, in any text
    seen = (last if last.dtype == torch.bool else ~forbids(last)).any(0).nonzero()
    return int(seen[-1]) + 1 - queries if len(seen) else keys - queries
