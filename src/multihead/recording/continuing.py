"""Whether a call goes on from the one before, or begins another text: its keys tell.

    a cache that grows     earlier keys in front, new ones behind
    one that slides        the last of the earlier keys in front, new ones behind
    one of fixed length    earlier keys where they were, new ones in empty places
    beams                  any of these, with the texts of the batch in another order

More keys than queries alone tell nothing: a few latent queries look at a text of their own too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention.problem import Problem


def goes_on(problem: Problem, last: Tensor, asked: Tensor | None, place: int) -> bool:
    """Whether a call stands behind the one before: over `last` keys, `asked` at `place`."""
    key, rows = problem.key, problem.query.shape[2]
    if not bool(torch.as_tensor(problem.offset).any()) or key.shape[:2] != last.shape[:2]:
        return False
    if isinstance(problem.offset, Tensor):
        earlier = key.shape[2] - rows  # each text of the batch stands elsewhere
    else:
        earlier = min(problem.offset, key.shape[2])
    known = last.shape[2]
    if not 1 <= earlier <= known:
        return False
    if key.shape == last.shape and torch.equal(key, last):
        return False  # nothing new: the same text once more
    if earlier < known and _same_texts(key[:, :, :earlier], last[:, :, known - earlier :]):
        return True  # it slides
    if not _same_texts(key[:, :, :earlier], last[:, :, :earlier]):
        return False
    if not bool(last[:, :, earlier:].any()):
        return True  # it grows, or fills empty places
    if asked is not None and 0 <= earlier - place < asked.shape[2]:
        before = asked[:, :, earlier - place].to(problem.query.device)
        if torch.equal(problem.query[:, :, 0], before):
            return False  # latent queries, over two texts that begin alike
    raise ValueError(
        f"the cache holds {earlier} keys of the {known} that were there: some that had been looked "
        "at were taken back (a draft that was rejected, a cache that was cropped), and their rows "
        "cannot be; generate without an assistant or prompt_lookup_num_tokens, or record each text "
        "from its start."
    )


def _same_texts(here: Tensor, there: Tensor) -> bool:
    """Whether every text of the batch is there too, in whichever order."""
    if torch.equal(here, there):
        return True
    alike = (here[:, None, :, -1] == there[:, :, -1]).flatten(2).all(-1)  # (text, text), by one key
    return all(
        any(torch.equal(one, there[j]) for j in row.nonzero()[:, 0].tolist())
        for one, row in zip(here, alike, strict=True)
    )
