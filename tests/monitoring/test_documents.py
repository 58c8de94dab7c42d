"""Where a document begins, as masks, bits and biases tell it: its first token is the one meant."""

import math

import pytest
import torch
from watched_models import TOKENS, Biased, close, column, sample, vectors, watched

import multihead as mh
from multihead.attention.problem import pose
from multihead.monitoring.allowed import document_starts


def starts(mask, tokens=8, bias=None):
    q = torch.zeros(1, 1, tokens, 4)
    asked = {"bias": bias, "scale": None, "softcap": None, "sinks": None, "offset": 0}
    found = document_starts(pose(q, q, q, mask=mask, dropout=0.0, **asked))
    return None if found is None else found[0].tolist()


def test_where_a_document_begins():
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    own = [0, 0, 0, 3, 3, 5, 5, 5]
    assert starts(mh.causal() & mh.documents(ids)) == starts(mh.documents(ids)) == own
    assert starts(mh.causal() & mh.documents(ids) & mh.window(2)) == own
    assert starts(mh.causal()) is starts(None) is starts(mh.causal() & mh.window(3)) is None
    assert starts(mh.causal() & mh.padding([5])) is None
    rows = torch.arange(8)
    steps = (rows[:, None] - rows) % 2 == 0  # itself, two before, four before, …: no documents
    assert starts(mh.causal() & mh.dense(steps)) == [0, 1, 1, 1, 1, 1, 1, 1]
    pads = (rows > 2)[None, :] & (rows > 2)[:, None]  # three in front, which see nothing
    assert starts(mh.causal() & mh.dense(pads)) == [0, 0, 0, 3, 3, 3, 3, 3]
    lone = pads | torch.eye(8, dtype=torch.bool)  # or themselves
    assert starts(mh.causal() & mh.dense(lone)) == [0, 1, 2, 3, 3, 3, 3, 3]
    later = torch.ones(8, 8, dtype=torch.bool).triu(1)  # rows that never see themselves
    assert starts(mh.dense(later)) is None


@pytest.mark.parametrize("least", [-math.inf, torch.finfo(torch.float32).min, -1e4])
def test_where_a_document_begins_as_a_bias_tells(least):
    rows, ids = torch.arange(8), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    slope = -0.1 * (rows[:, None] - rows).abs()[None, None]
    packed = (mh.causal() & mh.documents(ids)).allows(rows, rows)
    assert starts(None, bias=slope.masked_fill(~packed, least)) == [0, 0, 0, 3, 3, 5, 5, 5]
    front = torch.zeros(1, 1, 1, 8).masked_fill(rows < 3, least)  # whatever the row
    assert starts(mh.causal(), bias=front) == [0, 0, 0, 3, 3, 3, 3, 3]
    assert starts(None, bias=front) == [0, 0, 0, 3, 3, 3, 3, 3]
    assert starts(mh.causal() & mh.documents(ids), bias=front) == [0, 0, 0, 3, 3, 5, 5, 5]
    assert starts(mh.causal(), bias=slope) is starts(None, bias=torch.zeros(1, 1, 8, 1)) is None


def test_the_first_token_of_documents_that_a_bias_packs():
    rows = torch.arange(TOKENS)
    mask = mh.causal() & mh.documents(rows // 5)
    slope = -0.1 * (rows[:, None] - rows).abs() * torch.tensor([1.0, 2.0, 5.0])[:, None, None]
    model, x = Biased(slope.masked_fill(~mask.allows(rows, rows)[0], -torch.inf)), vectors()
    record = sample(model, {"x": x}, rows=None)
    with torch.no_grad():
        query, key, _ = model.parts(x)
    scores = query.double() @ key.double().mT / 2 + model.bias.double()  # √4 is 2
    first = (rows // 5 * 5).expand(2, 3, TOKENS)[..., None]
    expected = scores.softmax(-1).gather(-1, first)[..., 0].mean((0, 2))
    close(column(record, 0, "mass:prefix(1)"), expected)


@pytest.mark.parametrize("kind", ["gpt2, eager", "encoder"])
def test_padding_in_front_inside_a_bias_with_rows_that_see_nothing(kind):
    """Causal and padding in one mask of numbers: rows of padding are forbidden everything."""
    torch.manual_seed(0)
    pads, tokens = 4, 9
    real = torch.arange(pads + tokens) >= pads
    if kind == "encoder":
        model, whole = watched("encoder")[0].eval(), vectors(tokens=pads + tokens)  # no dropout
        later = torch.ones(pads + tokens, pads + tokens, dtype=torch.bool).triu(1)
        padded = {"src": whole, "mask": later, "src_key_padding_mask": ~real.expand(2, -1)}
        plain = {"src": whole[:, pads:], "mask": later[pads:, pads:]}
    else:
        model, given = watched("gpt2")
        model.set_attn_implementation("eager")
        model.eval()
        ids = given["input_ids"][:, : pads + tokens]
        places = (real.long().cumsum(0) - 1).clamp(0).expand(len(ids), -1)
        padded = {"input_ids": ids, "attention_mask": real.long().expand(len(ids), -1)}
        padded |= {"position_ids": places}
        plain = {"input_ids": ids[:, pads:], "attention_mask": None}
    with mh.monitor(model, every=1, rows=None) as watch:
        out = model(**padded)
        (out if kind == "encoder" else out[0])[:, pads:].square().mean().backward()
        two = watch.step()
    one = sample(model, plain, rows=None)
    for key in ("entropy", "peak", "mass:prefix(1)"):
        close(column(two, 0, key), column(one, 0, key), 1e-4)
