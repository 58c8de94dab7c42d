"""Names: each role is found by its name, nothing else is, and chance and rows are right."""

import pytest
import torch
from puppets import VOCAB, Puppet, Words, text
from transformers import LlamaConfig, LlamaModel

import multihead as mh
from multihead.patterns.probing import make_cues, shuffle_weights
from multihead.patterns.table import PATTERNS, describe, opportunities

ROLES = (
    ("previous", "self", "even"),
    ("first", "far", "random"),
    ("duplicate", "induction", "even"),
)
NAMES = {
    "previous": {"previous token"},  # so near the beginning every head is local by chance
    "self": {"self"},
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
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(Puppet(("even",)))
