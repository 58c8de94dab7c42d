"""What the tests of observation share."""

import dataclasses

import torch

from multihead.attention import dense
from multihead.masks.mask import stand
from multihead.observation.statistics import Matrix
from multihead.observation.view import View, choose_rows


def matrix(problem, rows=None, lse=None):
    """The whole map of the rows asked for, by the definition."""
    steps = dense.steps(problem)
    queries = choose_rows(rows, problem.query.shape[2], problem.query.device)
    lse = steps.lse if lse is None else lse
    scores = steps.masked[:, :, queries]
    row_lse = lse[:, :, queries]
    safe = row_lse.masked_fill(row_lse == -torch.inf, 0.0)
    view = View(
        dataclasses.replace(problem, query=problem.query[:, :, queries]), row_lse, queries,
        problem.query.shape[2],
    )  # fmt: skip
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if problem.mask is not None:
        keys = torch.arange(problem.key.shape[2])
        allowed = problem.mask.allows(queries, keys, problem.offset)
    place = stand(queries, problem.offset)
    return Matrix(
        torch.exp(scores - safe[..., None]),
        scores,
        allowed.expand(scores.shape),
        row_lse,
        place,
        view,
    )


def close(found, expected, name, atol):
    found = found if isinstance(found, tuple) else (found,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.double(), two.double(), rtol=0, atol=atol, msg=lambda t: f"{name}: {t}"
        )
