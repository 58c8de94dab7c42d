"""Names: each role is found by its name, nothing else is, and chance and rows are right."""

import pytest
import torch
from puppets import VOCAB, Puppet, Words, text
from transformers import LlamaConfig, LlamaModel

import multihead as mh
from multihead.patterns.cues import make_cues, shuffle_weights
from multihead.patterns.table import PATTERNS, describe, opportunities

ROLES = (
    ("previous", "self", "even"),
    ("first", "far", "random"),
    ("duplicate", "induction", "even"),
)
NAMES = {
    "previous": {"previous token", "local"},
    "self": {"self", "local"},
    "first": {"first token"},
    "far": set(),
    "random": set(),
    "even": set(),
    "duplicate": {"duplicate token"},
    "induction": {"induction"},
}


@pytest.fixture(scope="module")
def probed():
    return mh.probe(Puppet(*ROLES), Words(), text=text(), vocab=VOCAB, controls=False)


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("head", range(3))
def test_every_role_by_its_names(probed, layer, head):
    names = {
        n.pattern
        for n in probed.names()
        if (n.layer, n.head) == (layer, head) and n.where == "on cue"
    }
    assert names == NAMES[ROLES[layer][head]]


def test_a_head_may_have_a_name_at_rest_too(probed):
    rest = {
        n.pattern for n in probed.names() if (n.layer, n.head) == (0, 0) and n.where == "at rest"
    }
    assert rest == {"previous token", "local"}


def test_scores_are_what_the_head_was_told(probed):
    name = next(n for n in probed.names() if n.pattern == "induction" and n.where == "on cue")
    assert 0.9 < name.score <= 1  # e⁴·n beside the n others
    assert name.low <= name.score
    assert name.chance < 0.03


def test_local_is_the_excess_over_a_head_that_looks_at_all_alike(probed):
    for where in ("on cue", "at rest"):
        score = next(s for s in probed.scores if (s.pattern.name, s.where) == ("local", where))
        even, previous = (probed.heads.index(pair) for pair in ((0, 2), (0, 0)))
        assert float(score.mean[even]) == pytest.approx(0, abs=1e-5)
        assert 0.95 < float(score.mean[previous]) <= 1
        assert (score.chance == 0).all()


def test_rows_that_see_nothing_farther_have_no_opportunity_to_be_local():
    allowed = torch.ones(7, 7).tril().bool()
    counts, chance = opportunities(PATTERNS["local"], describe(torch.arange(7), None), allowed)
    assert counts.tolist() == [False] * 5 + [True, True]
    assert chance[5:].tolist() == pytest.approx([5 / 6, 5 / 7])


def test_a_probe_says_what_it_was_shown(probed):
    assert "each with a BOS before it" in repr(probed)
    assert "301 tokens, with a BOS before it" in repr(probed)
    assert probed.unmeasured == []
    bare = mh.probe(Puppet(("even",)), text=text()[1:], vocab=VOCAB, controls=False)
    assert not bare.has_bos
    assert "each with no BOS before it" in repr(bare)
    assert bare.unmeasured == ["separator"]  # without a tokenizer nothing is known to be a mark


def test_a_text_too_short_to_tell_is_said_to_be(probed):
    short = mh.probe(Puppet(("even",)), Words(), text=text()[:9], vocab=VOCAB, controls=False)
    assert len(short.unmeasured) == len(PATTERNS) - 1  # none looks ahead
    assert "fewer than 20 rows to tell by: anything at all" in repr(short)


def test_habits_of_the_text(probed):
    found = {(h.layer, h.head): h for h in probed.habits()}
    assert [*found] == probed.heads
    assert (found[0, 0].distance, found[0, 0].positional) == (-1, True)
    assert found[0, 2].broad == pytest.approx(1, abs=1e-5)
    assert found[1, 0].sinks[0].key == 0


def test_a_fixed_distance_does_not_pass_for_induction(probed):
    score = next(s for s in probed.scores if s.pattern.name == "induction" and s.where == "on cue")
    far = probed.heads.index((1, 1))
    assert float(score.mean[far]) < 0.2  # the gaps vary, so it hits only by chance


def test_cues_repeat_and_vary():
    cues = make_cues(Puppet(("even",)), Words(), 20, VOCAB)
    assert len({len(cue.ids) for cue, _, _ in cues}) > 5
    assert len({second - first for _, first, second in cues}) > 10
    for cue, first, second in cues:
        length = len(cue.ids) - second
        assert torch.equal(cue.ids[first : first + length], cue.ids[second:])
        assert int(cue.ids[0]) == 0
        assert bool(cue.special[0])


def test_rows_with_an_opportunity_by_hand():
    ids = torch.tensor([0, 5, 6, 5, 5, 6, 7])
    allowed = torch.ones(7, 7).tril().bool()
    counts, chance = opportunities(PATTERNS["induction"], describe(ids, Words()), allowed)
    # 3 follows 5 at 1 → key 2; 4 is inside a run; 5 follows 6 at 2 → key 3.
    assert counts.tolist() == [False, False, False, True, False, True, False]
    assert chance[3] == pytest.approx(1 / 4)
    counts, _ = opportunities(PATTERNS["duplicate token"], describe(ids, Words()), allowed)
    assert counts.tolist() == [False, False, False, True, False, True, False]
    counts, _ = opportunities(
        PATTERNS["separator"], describe(torch.tensor([0, 1, 5]), Words()), allowed[:3, :3]
    )
    assert counts.tolist() == [False, True, True]


@pytest.mark.parametrize("sharper", [1.0, 8.0])
def test_random_weights_earn_hardly_a_name(sharper):
    torch.manual_seed(0)
    model = LlamaModel(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=64, intermediate_size=32, num_hidden_layers=7,
            num_attention_heads=16, num_key_value_heads=4,
        )
    ).eval()  # fmt: skip
    for name, weight in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            weight.data *= sharper
    found = mh.probe(model, None, text=torch.randint(0, VOCAB, (150,)))
    named = {(n.layer, n.head) for n in found.names()}
    assert len(found.heads) == 112
    assert len(named) <= 1  # 1 %


def test_shuffled_weights_hold_the_same_numbers():
    model = torch.nn.Linear(7, 5)
    other = shuffle_weights(model)
    assert not torch.equal(model.weight, other.weight)
    assert torch.equal(model.weight.flatten().sort().values, other.weight.flatten().sort().values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: mh.probe(m, Words(), seeds=3, vocab=VOCAB), "at least 20 seeds"),
        (lambda m: mh.probe(m, Words(), text=text()), "give vocab="),
        (lambda m: mh.probe(m, None, vocab=VOCAB), "needs a tokenizer"),
        (lambda m: mh.probe(m, "tok"), "has decode\\(\\), but a str came"),
        (lambda m: mh.probe(None, Words()), "a model is an nn.Module, but a NoneType came"),
        (lambda m: mh.probe(m, Words(), seeds="a", vocab=VOCAB), "seeds='a' came"),
        (lambda m: mh.probe(m, Words(), seeds=True, vocab=VOCAB), "seeds=True came"),
        (lambda m: mh.probe(m, Words(), text=["a"], vocab=VOCAB), "but a list came"),
        (lambda m: mh.probe(m, Words(), text=text().float(), vocab=VOCAB), "but float32 of shape"),
        (lambda m: mh.probe(m, Words(), text=text().view(7, 43), vocab=VOCAB), "\\(7, 43\\) came"),
        (lambda m: mh.probe(m, Words(), text=text()[:0], vocab=VOCAB), "\\(0,\\) came"),
        (lambda m: mh.probe(m, Words(), text=-text(), vocab=VOCAB), "no tokens below 0"),
        (lambda m: mh.probe(m, Words(), text=text(), vocab="a"), "vocab is a number of tokens"),
        (lambda m: mh.probe(m, Spoken(), text="", vocab=VOCAB), "the text is empty"),
        (lambda m: mh.probe(m, Spoken(), text=" \n", vocab=VOCAB), "the text is empty"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(Puppet(("even",)))


class Spoken(Words):
    def __call__(self, text):
        return {"input_ids": [0, *(ord(c) % VOCAB for c in text)]}


def test_a_token_beyond_the_models_own_is_refused():
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1,
    )  # fmt: skip
    model = LlamaModel(config)
    with pytest.raises(ValueError, match=f"token {VOCAB}, but the model knows those from 0 to 96"):
        mh.probe(model, text=torch.tensor([3, VOCAB]))
    with pytest.raises(ValueError, match="vocab=98 came, but the model knows 97"):
        mh.probe(model, text=text(), vocab=VOCAB + 1)


def small(**changes):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=128, **changes,
    )  # fmt: skip
    return LlamaModel(config)


def test_a_text_longer_than_the_model_has_room_for_is_cut_and_that_is_said():
    found = mh.probe(small().eval(), Words(), text=text(), controls=False)
    assert (len(found.text.ids), found.cut_from) == (128, 301)
    assert "128 tokens, with" in repr(found)
    assert "the text has 301" in repr(found)


def test_dropout_is_off_while_heads_are_measured():
    model = small(attention_dropout=0.5).train()
    tables = [mh.probe(model, Words(), text=text(), controls=False).table() for _ in range(2)]
    assert str(tables[0]) == str(tables[1])
    assert all(module.training for module in model.modules())


def test_positions_that_begin_behind_the_padding_leave_less_room():
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=130,
    )  # fmt: skip
    found = mh.probe(RobertaModel(config), Words(), text=text(), controls=False)
    assert len(found.text.ids) == 128


def test_a_model_of_two_texts_is_refused():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="reads one text and writes another"):
        mh.probe(T5ForConditionalGeneration(config), Words(), text=text())
