"""What went into a model and came out of it: token ids, padding, and the loss of each token."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .call import forbids
from .keeping import kept, settle
from .losses import Losses, Vocabulary, logits_of
from .names import in_backward


class Inputs:
    """Watches the model's own forward; its steps are laid one behind another.

    `sees_ahead` tells of the pass that has just ended whether tokens saw those behind them.
    """

    def __init__(self, model: nn.Module, sees_ahead: Callable[[], bool]) -> None:
        self.model, self._sees_ahead = model, sees_ahead
        self.ids: list[Tensor] = []
        self.losses = Losses()
        self.padding: Tensor | None = None
        self.source: Tensor | None = None  # what an encoder read, where it is told apart
        self.source_padding: Tensor | None = None
        self.given: dict[str, list[int]] = {}  # sizes of what is no text: images and sounds
        config = getattr(model, "config", None)
        has_both = hasattr(model, "get_encoder") and hasattr(model, "get_decoder")
        self._two = has_both and bool(getattr(config, "is_encoder_decoder", False))
        self._decoded: Tensor | None = None  # the ids that a decoder was called with
        self._vocabulary = Vocabulary(model)
        self._hooks: list[Any] = []

    def __enter__(self) -> Inputs:
        hooks = [self.model.register_forward_hook(self._after, with_kwargs=True)]
        hooks += self._vocabulary.hooks()
        if self._two:
            encoder, decoder = self.model.get_encoder(), self.model.get_decoder()  # type: ignore[operator]
            hooks.append(encoder.register_forward_hook(self._after_encoder, with_kwargs=True))
            hooks.append(decoder.register_forward_pre_hook(self._at_decoder, with_kwargs=True))
        self._hooks = hooks
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def new_text(self) -> None:
        self.ids, self.losses, self.padding = [], Losses(), None
        self.source = self.source_padding = None
        self.given = {}

    @property
    def encoder(self) -> str | None:
        """The path of the part that reads another text than the one that is told."""
        if not self._two:
            return None
        found = self.model.get_encoder()  # type: ignore[operator]
        return next((name for name, module in self.model.named_modules() if module is found), None)

    def _after_encoder(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        given = _named(module, args, kwargs)
        ids = given.get("input_ids")
        if isinstance(ids, Tensor) and _looks_like_ids(ids) and not in_backward():
            self.source = kept(ids)
        mask = given.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2 and not in_backward():
            self.source_padding = kept(mask.bool())
        self._note_sizes(given)

    def _at_decoder(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        ids = _named(module, args, kwargs).get("input_ids")
        if not in_backward():
            self._decoded = ids.detach() if isinstance(ids, Tensor) else None

    def _note_sizes(self, given: dict[str, Any]) -> None:
        for name in ("pixel_values", "input_features", "input_values"):
            if isinstance(given.get(name), Tensor):
                self.given[name] = list(given[name].shape)

    @torch.no_grad()
    def _after(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if not in_backward():
            with torch._C.DisableTorchFunction():  # what is asked here is no call of the model
                self._note(_named(module, args, kwargs), args, output)

    def _note(self, given: dict[str, Any], args: tuple, output: Any) -> None:
        self._note_sizes(given)
        ids = self._ids(given, args)
        if ids is None:
            self._vocabulary.forget()
            return
        self._note_padding(
            given.get("decoder_attention_mask" if self._two else "attention_mask"), ids
        )
        logits = logits_of(output, self._vocabulary.sizes(ids))
        if logits is not None and logits.shape[1] > ids.shape[1]:
            logits = None
        self._note_loss(ids, logits, given.get("labels"))
        self.ids.append(kept(ids))

    def _ids(self, given: dict[str, Any], args: tuple) -> Tensor | None:
        """The text that is told: a decoder's own, also where it made it of labels."""
        decoded, self._decoded = self._decoded, None
        ids = given.get("decoder_input_ids") if self._two else None
        ids = decoded if ids is None else ids
        if ids is None and not self._two:
            ids = given.get("input_ids")
            ids = next((t for t in args if _looks_like_ids(t)), None) if ids is None else ids
        return ids.detach() if isinstance(ids, Tensor) and _looks_like_ids(ids) else None

    def _note_loss(self, ids: Tensor, logits: Tensor | None, labels: Any) -> None:
        """By labels where they are one for each token: in place, or behind what a decoder read."""
        if not isinstance(labels, Tensor) or labels.shape != ids.shape:
            self.losses.add(ids, logits, None)
            return
        labels = labels.detach().to(ids.device)
        if self._two:  # a row's label is the next token
            left_out = torch.nn.functional.pad(labels[:, :-1] < 0, (1, 0))
            self.losses.add(ids, logits, left_out)
        elif self._sees_ahead():
            self.losses.add_masked(labels, logits)
        else:
            self.losses.add(torch.where(labels >= 0, labels, ids), logits, labels < 0)

    def _note_padding(self, mask: Any, ids: Tensor) -> None:
        """Which tokens are real: as a mask (batch, token) says, or as one of links lets be seen."""
        if isinstance(mask, dict):  # one for each kind of layer
            mask = mask.get("full_attention", next(iter(mask.values()), None))
        if not isinstance(mask, Tensor) or mask.shape[0] != len(ids):
            return
        if mask.ndim == 2:
            self.padding = kept(mask.bool())
            return
        settle()
        total = sum(known.shape[1] for known in self.ids) + ids.shape[1]
        before = torch.zeros(len(ids), 0).bool() if self.padding is None else self.padding
        # A window lets the last tokens alone be seen: tokens that came since are taken as real.
        real = torch.nn.functional.pad(before, (0, total - before.shape[1]), value=True)
        if mask.ndim == 4 and mask.shape[3] >= total:
            seen = (mask if mask.dtype == torch.bool else ~forbids(mask)).any(1).any(1).cpu()
            known = before.shape[1]
            real = seen[:, :total] | torch.nn.functional.pad(before, (0, total - known))
        self.padding = real

    def text(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """ids, which of them are real, and their losses; (batch, token) each. Waits for them."""
        settle()
        if not self.ids or len({len(ids) for ids in self.ids}) > 1:
            return None, None, None
        ids = torch.cat(self.ids, dim=1)
        real = (
            self.padding if self.padding is not None and self.padding.shape == ids.shape else None
        )
        return ids, real, self.losses.joined(real)


def _named(module: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        return {**bound.arguments, **bound.arguments.get("kwargs", {})}
    except (TypeError, ValueError):
        return dict(kwargs)


def _looks_like_ids(given: object) -> bool:
    if not isinstance(given, Tensor) or given.dtype not in (torch.int64, torch.int32):
        return False
    return given.ndim == 2 and given.numel() > 0
