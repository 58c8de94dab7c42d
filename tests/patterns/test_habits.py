"""Habits: a favourite distance, sinks and whether they rest, and breadth; and copying."""

import pytest
import torch
import torch.nn.functional as F
from puppets import VOCAB, Puppet
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import multihead as mh
from multihead.patterns import copying, habits
from multihead.recording import DEFAULT

STATS = (*DEFAULT, "peak_key", "received_mean")


@pytest.fixture(scope="module")
def seen():
    model = Puppet(("previous", "even", "far"), ("first", "self", "random"))
    with torch.no_grad(), mh.record(model, stats=STATS) as rec:
        model(torch.randint(0, VOCAB, (1, 80)))
    return {(h.layer, h.head): h for h in habits(rec)}


def test_a_favourite_distance(seen):
    assert (seen[0, 0].distance, seen[0, 0].positional) == (-1, True)
    assert (seen[1, 1].distance, seen[1, 1].positional) == (0, True)
    assert seen[0, 2].distance == -23
    assert seen[0, 2].always == pytest.approx(57 / 72)  # before row 23 there is no such key
    assert not seen[1, 2].positional


def test_breadth(seen):
    assert seen[0, 1].broad == pytest.approx(1, abs=1e-5)
    assert seen[1, 0].broad < 0.2


def test_a_sink(seen):
    assert [sink.key for sink in seen[1, 0].sinks] == [0]
    assert seen[1, 0].sinks[0].share > 0.9
    assert seen[0, 1].sinks == ()


class Told(nn.Module):
    """One head whose rows look at some keys as hard as they can."""

    def __init__(self, tokens, keys, mask):
        super().__init__()
        self.scores, self.mask = torch.zeros(1, 1, tokens, tokens), mask
        self.scores[..., keys] = 9.0

    def forward(self, x):
        q = torch.zeros_like(x)[:, None]
        return mh.attend(q, q, x[:, None], mask=self.mask, bias=self.scores)


def sinks_of(tokens, keys, mask=None):
    with torch.no_grad(), mh.record(model := Told(tokens, keys, mask), stats=STATS) as rec:
        model(torch.randn(1, tokens, 8))
    return [sink.key for sink in habits(rec)[0].sinks]


def test_a_model_that_sees_all_can_rest_on_its_last_token():
    assert sinks_of(40, [39]) == [39]


@pytest.mark.parametrize(("key", "found"), [(0, [0]), (29, [29]), (30, []), (39, [])])
def test_what_only_the_last_rows_see_is_no_sink(key, found):
    assert sinks_of(40, [key], mh.causal()) == found


def test_a_sink_inside_a_window_is_one_by_the_rows_that_it_reaches():
    """Each key is seen by 16 rows of 200, the last ones by fewer."""
    assert sinks_of(200, [50, 190, 198], mh.causal() & mh.window(16)) == [50, 190]


@pytest.mark.parametrize("loud", [False, True])
def test_a_sink_rests_where_it_has_little_to_say(loud):
    class OneHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(8, 8, bias=False)

        def forward(self, x):
            n = x.shape[1]
            look = torch.full((n, n), -torch.inf)
            look = look.masked_fill(torch.ones(n, n).tril().bool(), 0.0)
            look[:, 0] = 9.0
            value = x[:, None].clone()
            value[:, :, 0] *= 3.0 if loud else 0.01
            q = torch.zeros(1, 1, n, 8)
            return self.out(F.scaled_dot_product_attention(q, q, value, attn_mask=look)[:, 0])

    model = OneHead()
    with torch.no_grad(), mh.record(model, stats=STATS) as rec:
        model(torch.randn(1, 40, 8))
    assert habits(rec)[0].sinks[0].resting is not loud


def test_what_was_not_recorded_is_told():
    model = Puppet(("even",))
    with torch.no_grad(), mh.record(model) as rec:
        model(torch.randint(0, VOCAB, (1, 9)))
    with pytest.raises(ValueError, match="peak_key was not recorded"):
        habits(rec)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rec: mh.habits(None), "of a recording, but a NoneType came"),
        (lambda rec: mh.habits(rec, batch=1), "batch must lie from 0 to 0, but 1 came"),
        (lambda rec: mh.habits(rec, batch="a"), "batch must lie from 0 to 0, but 'a' came"),
        (lambda rec: mh.habits(mh.Recording([], model="none")), "nothing was recorded"),
        (lambda rec: mh.copying(None), "a model is an nn.Module, but a NoneType came"),
    ],
)
def test_bad_input(call, message):
    model = Puppet(("even",))
    with torch.no_grad(), mh.record(model, stats=STATS) as rec:
        model(torch.randint(0, VOCAB, (1, 9)))
    with pytest.raises(ValueError, match=message):
        call(rec)


def test_copying_of_a_head_made_to_copy():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    attn = model.model.layers[0].self_attn
    with torch.no_grad():
        eye = torch.eye(16)
        attn.v_proj.weight.copy_(eye)
        attn.o_proj.weight.copy_(torch.cat([eye[:, :8], -eye[:, 8:]], dim=1))
    found = {row["head"]: row["copying"] for row in copying(model)}
    assert found[0] > 0.99  # it writes what it reads
    assert found[1] < -0.99  # and this one takes it back


def test_copying_counts_eigenvalues_that_turn_in_full():
    """A head that turns what it reads by 60°: each λ = e^{±iπ/3}, so that Σ λ / Σ |λ| is ½."""
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    attn, eye, third = model.model.layers[0].self_attn, torch.eye(16), torch.tensor(torch.pi / 3)
    turn = torch.tensor([[third.cos(), -third.sin()], [third.sin(), third.cos()]])
    with torch.no_grad():
        for weight in (model.get_input_embeddings(), model.get_output_embeddings(), attn.v_proj):
            weight.weight.copy_(eye)
        attn.o_proj.weight.copy_(torch.block_diag(*[turn] * 8))
    assert [row["copying"] for row in copying(model)] == pytest.approx([0.5, 0.5], abs=1e-5)


def test_models_without_such_weights_have_no_copying():
    assert copying(nn.Linear(2, 2)) == []


def test_habits_of_a_model_that_hides_its_last_token():
    """Nobody sees it, so that it passes for padding: that is told by queries and keys alone."""

    class Behind(Puppet):
        def forward(self, input_ids):
            n = input_ids.shape[1]
            x = torch.randn(1, 1, n, 4, generator=torch.Generator().manual_seed(1))
            F.scaled_dot_product_attention(x, x, x, torch.ones(n, n).tril(-1).bool())
            return super().forward(input_ids)

    probed = mh.probe(Behind(("even",)), text=torch.arange(80), vocab=VOCAB, controls=False)
    assert len(probed.habits()) == 2
