"""Cut some links of a head, and let the rest of its rows be as if they had never been allowed.

What a model hides by numbers (−10⁹, the least float) is hidden only as long as there is something
else to see: a softmax over such numbers alone is uniform. So before links are cut, those numbers
are read as what they mean; else a row that lost all it could see would see all that it must not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..masks import Mask, dense
from .call import Call, crosses, forbids, last_seen
from .chosen import Chosen, Heads
from .recorder import exactly
from .rules import Rules
from .watch import Hand, Place, watching


@contextlib.contextmanager
def cut(model: nn.Module, heads: Heads, links: Mask | Tensor) -> Iterator[None]:
    """Forbid some heads the links inside a mask, inside the with statement.

    What is left of a row is renormalised, as if the mask had never allowed them: softmax over the
    rest. A row with nothing left gives 0, whether its model hides the others by bits or by numbers.
    """
    links = dense(links) if isinstance(links, Tensor) else links
    if not isinstance(links, Mask):
        raise ValueError(
            f"links are a mask, but a {type(links).__name__} came; give mh.offset(-1), say."
        )
    hand = _Cut(Chosen(heads), links)
    with watching(model, hand):
        yield
    hand.chosen.check_met()


class _Cut(Hand):
    recomputes = False

    def __init__(self, chosen: Chosen, links: Mask) -> None:
        self.chosen, self.links = chosen, links
        self._rows: dict[Place, int] = {}  # how many each layer has been asked, up to now
        self._last: dict[Place, Tensor] = {}  # its keys then, where a cache may be at work
        self._rules = Rules()

    def question(self, place: Place, call: Call) -> Call:
        heads = self.chosen.of(place, call.query.shape[1])
        if not heads:
            return call
        mine = torch.zeros(1, call.query.shape[1], 1, 1, dtype=torch.bool)
        mine[:, heads] = True
        links = self._placed(place, call).to(call.query.device)
        with exactly(call.query):
            call = self._rules.simplify(call)
            if isinstance(call.bias, Tensor):
                links = links | dense(_hidden(call, call.bias))
        kept = ~(links & dense(mine.to(call.query.device)))
        return call.replace(mask=kept if call.mask is None else call.mask & kept)

    def _placed(self, place: Place, call: Call) -> Mask:
        """The links where they stand among the keys of this call: a cache may have dropped some."""
        queries, keys = call.query.shape[2], call.key.shape[2]
        if queries >= keys or crosses(place, call):
            self._rows[place] = queries
            self._last[place] = call.key.detach().clone()
            return self.links
        end = last_seen(call)  # keys behind it are empty places of a cache of fixed length
        dropped = max(0, self._rows.get(place, 0) + queries - end)
        before = max(0, end - queries)  # keys that were there already
        if dropped and not (before and _slid(call.key, self._last.get(place), before)):
            dropped = 0  # no cache that slides: another text, or rows that read one from elsewhere
        self._rows[place] = dropped + end
        self._last[place] = call.key.detach().clone()
        rows, columns = torch.arange(queries), dropped + torch.arange(keys)
        return dense(
            self.links.to(torch.device("cpu")).allows(rows, columns, dropped + end - queries)
        )


def _hidden(call: Call, bias: Tensor) -> Tensor:
    """Where a bias forbids, (batch, heads, query, key), in rows to which it leaves something.

    A row to which it leaves nothing, one of padding, stays the model's own affair.
    """
    hides = forbids(bias)[(None,) * (4 - bias.ndim)]
    seen = ~hides
    if call.mask is not None:
        sizes = (call.query.shape[2], call.key.shape[2])
        rows, keys = (torch.arange(n, device=bias.device) for n in sizes)
        place = sizes[1] - sizes[0] if call.offset is None else call.offset
        seen = seen & call.mask.allows(rows, keys, place)
    return hides & seen.any(-1, keepdim=True)


def _slid(key: Tensor, last: Tensor | None, same: int) -> bool:
    """Whether the first keys are the last ones of before; texts may have changed places (beams)."""
    if last is None or last.shape[2] < same or last.shape[:2] != key.shape[:2]:
        return False
    now, before = key[:, :, :same], last[:, :, last.shape[2] - same :]
    return all(any(torch.equal(one, other) for other in before) for one in now)
