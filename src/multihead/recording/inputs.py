"""What went into a model and came out of it: token ids, padding, and the loss of each token."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from .call import forbids
from .names import in_backward

_AT_ONCE = 64  # rows of logits at a time


class Inputs:
    """Watches the model's own forward; its steps are laid one behind another."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.ids: list[Tensor] = []
        self.losses: list[Tensor] = []
        self.padding: Tensor | None = None
        self.source: Tensor | None = None  # what an encoder read, where it is told apart
        self.given: dict[str, list[int]] = {}  # sizes of what is no text: images and sounds
        self._last: Tensor | None = None  # the last logits, which speak of a token to come
        self._hooks: list[Any] = []

    def __enter__(self) -> Inputs:
        hooks = [self.model.register_forward_hook(self._after, with_kwargs=True)]
        config = getattr(self.model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            encoder = self.model.get_encoder()  # type: ignore[operator]
            hooks.append(encoder.register_forward_hook(self._after_encoder, with_kwargs=True))
        self._hooks = hooks
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def new_text(self) -> None:
        self.ids, self.losses, self.padding, self._last = [], [], None, None
        self.source, self.given = None, {}

    def _after_encoder(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        given = _named(module, args, kwargs)
        ids = given.get("input_ids")
        if isinstance(ids, Tensor) and _looks_like_ids(ids) and not in_backward():
            self.source = ids.detach().cpu()
        self._note_sizes(given)

    def _note_sizes(self, given: dict[str, Any]) -> None:
        for name in ("pixel_values", "input_features", "input_values"):
            if isinstance(given.get(name), Tensor):
                self.given[name] = list(given[name].shape)

    @torch.no_grad()
    def _after(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if in_backward():
            return
        given = _named(module, args, kwargs)
        self._note_sizes(given)
        ids = given.get("input_ids", given.get("decoder_input_ids"))
        if "decoder_input_ids" in given and given["decoder_input_ids"] is not None:
            ids = given["decoder_input_ids"]
        if ids is None:
            ids = next((t for t in args if _looks_like_ids(t)), None)
        if not isinstance(ids, Tensor) or not _looks_like_ids(ids):
            return
        self._note_padding(given.get("attention_mask"), ids)
        logits = _logits(output)
        if logits is not None and logits.shape[1] > ids.shape[1]:
            logits = None
        config = getattr(module, "config", None)
        if getattr(config, "is_encoder_decoder", False) and given.get("decoder_input_ids") is None:
            logits = None  # they speak of the decoder's tokens, which are not told
        self.losses.append(self._loss(ids.detach(), logits, given.get("labels")))
        self.ids.append(ids.detach().cpu())

    def _note_padding(self, mask: Any, ids: Tensor) -> None:
        """Which tokens are real: as a mask (batch, token) says, or as one of links lets be seen."""
        if isinstance(mask, dict):  # one for each kind of layer
            mask = mask.get("full_attention", next(iter(mask.values()), None))
        if not isinstance(mask, Tensor) or mask.shape[0] != len(ids):
            return
        if mask.ndim == 2:
            self.padding = mask.detach().bool().cpu()
            return
        total = sum(known.shape[1] for known in self.ids) + ids.shape[1]
        before = ids.new_zeros(len(ids), 0).bool() if self.padding is None else self.padding
        # A window lets the last tokens alone be seen: tokens that came since are taken as real.
        real = torch.nn.functional.pad(before.cpu(), (0, total - before.shape[1]), value=True)
        if mask.ndim == 4 and mask.shape[3] >= total:
            seen = (mask if mask.dtype == torch.bool else ~forbids(mask)).any(1).any(1).cpu()
            known = before.shape[1]
            real = seen[:, :total] | torch.nn.functional.pad(before.cpu(), (0, total - known))
        self.padding = real

    def _loss(self, ids: Tensor, logits: Tensor | None, labels: Tensor | None) -> Tensor:
        """−ln p of each token given those before it, NaN where nothing was said of it."""
        loss = torch.full(ids.shape, torch.nan)
        last, self._last = self._last, None
        if logits is None or logits.ndim != 3 or logits.shape[0] != ids.shape[0]:
            return loss
        if int(ids.max()) >= logits.shape[-1]:
            return loss
        if labels is not None and labels.shape == ids.shape:
            ids = torch.where(labels >= 0, labels, ids)
        if last is not None and ids.shape[1]:
            loss[:, 0] = _nats(last, ids[:, :1])[:, 0]
        rows = logits.shape[1]  # the last ones, where a model gives only those that are needed
        first = ids.shape[1] - rows
        if rows > 1:
            loss[:, first + 1 :] = _nats(logits[:, :-1], ids[:, first + 1 :])
        self._last = logits[:, -1:].detach().clone()  # a view would keep them all
        return loss

    def text(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """ids, which of them are real, and their losses; (batch, token) each."""
        if not self.ids or len({len(ids) for ids in self.ids}) > 1:
            return None, None, None
        ids = torch.cat(self.ids, dim=1)
        real = (
            self.padding if self.padding is not None and self.padding.shape == ids.shape else None
        )
        loss = torch.cat(self.losses, dim=1)
        if real is not None:
            loss = loss.masked_fill(~real, torch.nan)
            loss[:, 1:] = loss[:, 1:].masked_fill(~real[:, :-1], torch.nan)
        return ids, real, None if bool(loss.isnan().all()) else loss


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    """−ln softmax at the targets, (batch, row), a few rows at a time through one buffer."""
    found = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    buffer = found.new_empty(len(logits), min(_AT_ONCE, targets.shape[1]), logits.shape[2])
    for first in range(0, targets.shape[1], _AT_ONCE):
        some = logits[:, first : first + _AT_ONCE]
        rows = slice(first, first + some.shape[1])
        top = some.amax(-1, keepdim=True).float()
        powers = torch.sub(some, top, out=buffer[:, : some.shape[1]]).exp_()
        own = some.gather(-1, targets[:, rows, None].long()).float()
        found[:, rows] = (powers.sum(-1).log_() + (top - own)[..., 0]).to(found.dtype)
    return found.cpu()


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


def _logits(output: Any) -> Tensor | None:
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Tensor) and output.ndim == 3:
        found = output
    return found if isinstance(found, Tensor) and found.is_floating_point() else None
