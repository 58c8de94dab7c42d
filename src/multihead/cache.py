"""Keys and values kept for decoding: explicit state that you make, hand over, and may cut back.

length 8, every key kept        a mask that reaches 3 keys back: old keys make room, for ever
■ ■ ■ ■ ■ · · ·                 · · · · ■ ■ ■ →
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .masks import Mask

Keys = Float[Tensor, "batch kv_heads tokens dim"]
Values = Float[Tensor, "batch kv_heads tokens value_dim"]
Kept = tuple[
    Float[Tensor, "batch kv_heads kept dim"], Float[Tensor, "batch kv_heads kept value_dim"]
]

_SLACK = 256  # a sliding buffer moves its keys once in so many tokens, not at each


class Cache:
    """The keys and values of the tokens so far, for one attention layer.

    `MultiHeadAttention.new_cache` makes one that fits its layer. Where the layer's mask never looks
    further than some keys back, those are all that is kept, and there is no limit to the tokens.
    Gradients flow through the tokens of a call, not through those that were there before.

    >>> cache = Cache(1, 2, 8, 4, 4)
    >>> keys, values = cache.append(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))
    >>> cache
    Cache(5 tokens, room for 8, batch 1, 2 heads, 512 bytes)
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        length: int,
        head_dim: int,
        v_head_dim: int,
        *,
        mask: Mask | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if any(type(n) is not int or n < 1 for n in (batch, length)):
            raise ValueError(
                "a cache needs at least one batch row and room for one token, but batch "
                f"{batch!r} and length {length!r} came; give whole numbers."
            )
        back = float("inf") if mask is None or not mask.relative() else -mask.reach()[0]
        self.back = int(back) if back < float("inf") else None  # keys to keep, if the mask says so
        room = length if self.back is None else self.back + 1 + min(self.back, _SLACK)
        shape = (batch, num_kv_heads, room)
        self._key = torch.zeros(*shape, head_dim, dtype=dtype, device=device)
        self._value = torch.zeros(*shape, v_head_dim, dtype=dtype, device=device)
        self._held = 0  # keys in the buffer: its first places
        self.seen = 0  # tokens so far, and the position of the next one
        self.context = False  # whether these are the keys of a context, made once

    def append(self, key: Keys, value: Values) -> Kept:
        """Take in the next tokens; give all keys and values that they may see, themselves last."""
        whole, commit = self.preview(key, value)
        commit()
        return whole

    def preview(self, key: Keys, value: Values) -> tuple[Kept, Callable[[], None]]:
        """What `append` would give, and the step that makes it so: nothing is kept before that.

        A caller can use the keys, see that all went well, and only then commit.
        """
        self._check(key, value, "new tokens")
        held, tokens, room = self._held, key.shape[2], self._key.shape[2]
        overflows = held + tokens > room
        if overflows and self.back is None:
            raise ValueError(
                f"the cache has room for {room} tokens and holds {held}, but {tokens} more came; "
                "make a longer one with new_cache(batch, length)."
            )
        first = 0 if self.back is None else max(0, held - self.back)  # the oldest still visible
        pairs = ((self._key, key), (self._value, value))
        copies = overflows or torch.is_grad_enabled()
        if copies:
            # A copy: the buffer will be overwritten, and a graph may still need what was seen.
            seen = [torch.cat([old[:, :, first:held].to(new), new], dim=2) for old, new in pairs]
        else:
            for buffer, new in pairs:  # beyond what is held there is nothing to harm
                buffer[:, :, held : held + tokens] = new
            seen = [buffer[:, :, first : held + tokens].to(new) for buffer, new in pairs]

        def commit() -> None:
            if overflows:
                assert self.back is not None
                keep = min(self.back, seen[0].shape[2])
                for buffer, every in zip((self._key, self._value), seen, strict=True):
                    buffer[:, :, :keep] = every[:, :, every.shape[2] - keep :].detach()
                self._held = keep
            else:
                for buffer, new in pairs if copies else ():
                    buffer[:, :, held : held + tokens] = new.detach()
                self._held = held + tokens
            self.seen += tokens

        return (seen[0], seen[1]), commit

    def hold(self, key: Keys, value: Values) -> None:
        """Keep the keys and values of a context, once and for all calls to come."""
        if self.seen:
            raise ValueError(
                f"this cache holds {self.seen} tokens and cannot hold a context too; "
                "make one for the context with new_cache."
            )
        self._check(key, value, "a context")
        self._key, self._value = key.detach(), value.detach()
        self._held = self.seen = key.shape[2]
        self.context = True

    def held(self) -> Kept:
        """The keys and values that are there."""
        return self._key[:, :, : self._held], self._value[:, :, : self._held]

    def reorder(self, index: Int[Tensor, "beams"]) -> None:
        """Let row i go on from what row `index[i]` has seen: for beams, which die and multiply."""
        batch = self._key.shape[0]
        whole = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
        if not whole or index.ndim != 1:
            came = (
                f"{index.dtype} {tuple(index.shape)}" if isinstance(index, Tensor) else repr(index)
            )
            raise ValueError(
                f"reorder takes a 1-D tensor of row numbers, but {came} came; "
                "give one, as torch.tensor([1, 0])."
            )
        if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < batch):
            raise ValueError(
                f"reorder takes row numbers from 0 to {batch - 1}, but {index.tolist()} came."
            )
        self._key, self._value = self._key[index], self._value[index]

    def truncate(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens, where the keys before them are still there."""
        if self.context:
            raise ValueError("this cache holds a context, which cannot be cut; make a new one.")
        if type(tokens) is not int or not 0 <= tokens <= self.seen:
            raise ValueError(
                f"cannot cut back to {tokens!r} tokens: the cache has seen {self.seen}; "
                "give a whole number from 0 to that."
            )
        gone = self.seen - self._held  # the position of the oldest key that is there
        needed = max(0, tokens - (self.seen if self.back is None else self.back))
        if tokens and needed < gone:
            raise ValueError(
                f"cannot cut back to {tokens} tokens: the next would look at keys from {needed} "
                f"on, but those before {gone} have made room; cut back to {gone + (self.back or 0)}"
                " or more, or start a new cache."
            )
        self._held = max(0, tokens - gone)
        self.seen = tokens

    def _check(self, key: Keys, value: Values, what: str) -> None:
        if self.context:
            raise ValueError(f"this cache holds a context already; make another for {what}.")
        (batch, heads, _, dim), value_dim = self._key.shape, self._value.shape[3]
        fits = (key.shape[0], key.shape[1], key.shape[3]) == (batch, heads, dim)
        if not fits or value.shape[:3] != key.shape[:3] or value.shape[3] != value_dim:
            raise ValueError(
                "these keys and values do not fit the cache; make one with new_cache of the same "
                f"layer.\n  keys {tuple(key.shape)}  cache ({batch}, {heads}, tokens, {dim})\n"
                f"  values {tuple(value.shape)}  cache ({batch}, {heads}, tokens, {value_dim})"
            )

    def __repr__(self) -> str:
        batch, heads, room, _ = self._key.shape
        size = self._key.nbytes + self._value.nbytes
        limit = f"room for {room}" if self.back is None else f"the last {self.back} kept"
        limit = "a context" if self.context else limit
        return f"Cache({self.seen} tokens, {limit}, batch {batch}, {heads} heads, {size:,} bytes)"
