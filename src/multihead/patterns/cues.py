"""What a model is shown: random tokens that come twice, a text, and both in another order.

[BOS] + r + gap + r with random tokens, over many seeds; lengths and gaps vary, so that a head that
always looks so far back cannot pass.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .default_text import DEFAULT_TEXT
from .scoring import Cue
from .table import Text, describe

_LONGEST = 112  # tokens of a cue: BOS, 47, a gap of 15, and 47 again


def make_cues(model: nn.Module, tokenizer: Any, seeds: int, vocab: int | None) -> list[Cue]:
    """[BOS] + r + gap + r for each seed, and where the two copies begin."""
    count = _vocabulary(model, vocab)
    special = {*getattr(tokenizer, "all_special_ids", ())}
    plain = torch.tensor([i for i in range(count) if i not in special])
    longest = room_of(model) or _LONGEST
    if len(plain) < _LONGEST // 2 or longest < _LONGEST:
        raise ValueError(
            f"a probe draws texts of up to {_LONGEST} tokens, half of them different, but this "
            f"model has {len(plain)} tokens and room for {longest}; it is too small to be named."
        )
    bos = getattr(tokenizer, "bos_token_id", None)
    found = []
    for seed in range(seeds):
        random = torch.Generator().manual_seed(seed)
        length = int(torch.randint(16, 48, (), generator=random))
        gap = int(torch.randint(0, 16, (), generator=random))
        drawn = plain[torch.randperm(len(plain), generator=random)[: length + gap]]
        front = [] if bos is None else [torch.tensor([bos])]
        ids = torch.cat([*front, drawn, drawn[:length]])
        first = len(front)
        found.append((describe(ids, tokenizer), first, first + length + gap))
    return found


def _vocabulary(model: nn.Module, vocab: int | None) -> int:
    """How many tokens to draw from: as given, or all that the model knows."""
    known = known_tokens(model)
    if vocab is None:
        if known is None:
            raise ValueError("how many tokens the model knows is not told; give vocab=.")
        return known
    if isinstance(vocab, bool) or not isinstance(vocab, int) or vocab < 1:
        raise ValueError(f"vocab is a number of tokens, but {vocab!r} came; give 1000, say.")
    if known is not None and vocab > known:
        raise ValueError(
            f"vocab={vocab} came, but the model knows {known} tokens; give at most so many, or "
            "leave vocab= out."
        )
    return vocab


def room_of(model: nn.Module) -> int | None:
    """How many tokens a model's configuration has room for, None where it does not say."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    room = getattr(config, "max_position_embeddings", None)
    for name, table in model.named_modules():  # RoBERTa counts positions from its padding's on
        if isinstance(table, nn.Embedding) and "position" in name and table.padding_idx is not None:
            own = table.num_embeddings - table.padding_idx - 1
            room = own if room is None else min(room, own)
    return room


@contextlib.contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model without its dropout, which would be taken for something that heads do."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def known_tokens(model: nn.Module) -> int | None:
    """How many tokens a model's configuration knows, None without one."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(config, "vocab_size", None)


def ids_of(text: str | Tensor | None, tokenizer: Any, model: nn.Module) -> Tensor:
    """The tokens of a text, (token,), that the model knows; of ours where none is given."""
    if text is not None and not isinstance(text, str | Tensor):
        raise ValueError(
            "a text is a string or a tensor of token ids, but a "
            f"{type(text).__name__} came; give one text."
        )
    ids = _given(text) if isinstance(text, Tensor) else _tokenised(text, tokenizer)
    check_known(ids, model)
    return ids


def check_known(ids: Tensor, model: nn.Module) -> None:
    """Raise for a token that the model does not know: a tokenizer may know more than its model."""
    known = known_tokens(model)
    beyond = ids[(ids < 0) | (ids >= known)] if known is not None else ids[ids < 0]
    if len(beyond):
        raise ValueError(
            f"the text has the token {int(beyond[0])}, but the model knows "
            f"{'no tokens below 0' if known is None else f'those from 0 to {known - 1}'}; "
            "give the ids of its own tokenizer."
        )


def _given(ids: Tensor) -> Tensor:
    whole = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if not whole or ids.ndim not in (1, 2) or (ids.ndim == 2 and len(ids) != 1) or not ids.numel():
        raise ValueError(
            "token ids are whole numbers of one text, of shape (tokens,) or (1, tokens), but "
            f"{str(ids.dtype).removeprefix('torch.')} of shape {tuple(ids.shape)} came; give "
            "tokenizer(text, return_tensors='pt')['input_ids'], say."
        )
    return ids.flatten().cpu().long()


def _tokenised(text: str | None, tokenizer: Any) -> Tensor:
    if not callable(tokenizer):
        raise ValueError("a text needs a tokenizer; give tokenizer=, or token ids as text=.")
    if text is not None and not text.strip():
        raise ValueError("the text is empty; give a paragraph, or leave text= out for ours.")
    read: Any = tokenizer(DEFAULT_TEXT if text is None else text)
    return torch.tensor(read["input_ids"])


def scrambled(text: Text, seed: int) -> Text:
    """The same tokens in another order, special ones in their places."""
    random = torch.Generator().manual_seed(10_000 + seed)
    places = (~text.special).nonzero()[:, 0]
    order = places[torch.randperm(len(places), generator=random)]
    ids, marks = text.ids.clone(), text.marks.clone()
    ids[places], marks[places] = text.ids[order], text.marks[order]
    return Text(ids, text.special, marks)


def shuffle_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model in which each matrix holds the same numbers in another order."""
    copied = copy.deepcopy(model)
    random = torch.Generator().manual_seed(seed)
    done: set[int] = set()
    for weight in copied.parameters():
        if weight.ndim > 1 and id(weight) not in done:
            done.add(id(weight))
            order = torch.randperm(weight.numel(), generator=random).to(weight.device)
            weight.data = weight.data.flatten()[order].view_as(weight)
    return copied
