"""Layers that see differently: opportunities and chance are those of the head's own layer."""

import math

import pytest
import torch
import torch.nn.functional as F
from puppets import VOCAB, Words, text
from torch import nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import multihead as mh

WINDOW, HEADS = 8, 4
FULL, SLIDING = range(HEADS), range(HEADS, 2 * HEADS)  # the order of probe.heads


@pytest.fixture(scope="module")
def mixed():
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=2, head_dim=8, sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention"],
    )  # fmt: skip
    return Gemma3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def probed(mixed):
    return mh.probe(mixed, Words(), text=text(), controls=False)


def score_of(probed, pattern, where):
    return next(s for s in probed.scores if (s.pattern.name, s.where) == (pattern, where))


@torch.no_grad()
def test_the_first_token_of_each_layer_by_its_own_weights(mixed, probed):
    mixed.set_attn_implementation("eager")
    maps = mixed(text()[None], output_attentions=True).attentions
    mixed.set_attn_implementation("sdpa")
    ids = text()
    plain = torch.ones(len(ids), dtype=torch.bool)
    plain[0] = False
    plain[1:] &= ids[1:] != ids[:-1]  # rows inside a run are left out
    place = torch.arange(len(ids))
    score = score_of(probed, "first token", "at rest")
    column = maps[0][0, :, plain, 0]  # (heads, row): every row of the full layer sees it
    parts = torch.stack([part.mean(1) for part in column.tensor_split(20, dim=1)])
    torch.testing.assert_close(score.mean[FULL], parts.mean(0), rtol=1e-3, atol=1e-5)
    assert score.rows[FULL].tolist() == [int(plain.sum())] * HEADS
    uniform = (1 / (place + 1.0))[plain].tensor_split(20)
    expected = float(torch.stack([part.mean() for part in uniform]).mean())
    assert score.chance[0] == pytest.approx(expected, rel=1e-4)
    # Of the layer with a window the first 8 rows see it: too few for an interval.
    assert score.mean[SLIDING].isnan().all()
    assert score.rows[SLIDING].tolist() == [0] * HEADS


def test_what_a_window_cannot_reach_is_no_opportunity(probed):
    for pattern in ("induction", "duplicate token"):
        score = score_of(probed, pattern, "on cue")
        assert score.mean[FULL].isfinite().all()
        assert score.mean[SLIDING].isnan().all()  # the first copy is 16 tokens away or more
        assert (score.rows[FULL] > 20 * 16).all()


def test_chance_counts_the_keys_of_the_layer(probed):
    score = score_of(probed, "previous token", "at rest")
    assert score.chance[HEADS] == pytest.approx(1 / WINDOW, rel=0.05)
    assert score.chance[0] < 0.03
    name = mh.Probe.names(probed)
    assert all(isinstance(n.chance, float) and isinstance(n.rows, int) for n in name)


def test_the_table_has_every_head_in_every_pattern(probed):
    rows = probed.table()
    assert len({tuple(row) for row in rows}) == 1
    assert math.isnan(rows[HEADS]["induction, on cue"])
    assert rows[0]["induction, on cue"] >= 0


class Apart(nn.Module):
    """One layer of two heads: the first sees all before it, the second its last three."""

    def __init__(self, by):
        super().__init__()
        self.by, self.anchor = by, nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        n = ids.shape[1]
        before = torch.ones(n, n).tril().bool()
        sees = torch.stack([before, before.triu(-2)])[None]  # (1, head, query, key)
        mask = sees if self.by == "mask" else torch.zeros(1).masked_fill(~sees, -torch.inf)
        x = torch.zeros(1, 2, n, 4)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("by", ["mask", "bias"])
def test_heads_of_one_layer_that_see_differently(by):
    found = mh.probe(Apart(by), Words(), text=text(), vocab=VOCAB, controls=False)
    score = score_of(found, "previous token", "at rest")
    assert score.mean[1] == pytest.approx(1 / 3, rel=0.05)
    torch.testing.assert_close(score.mean, score.chance, rtol=1e-3, atol=0)  # it looks at all alike
    assert score_of(found, "induction", "on cue").rows.tolist()[1] == 0
    local = score_of(found, "local", "at rest")
    assert local.rows[1] == 0  # all that it sees is near
    assert abs(float(local.mean[0])) < 1e-5
