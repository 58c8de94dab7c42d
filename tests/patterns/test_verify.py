"""A cut tells whether the name holds: what speaks suffers, what only looks the part does not."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from puppets import VOCAB, Puppet, Words, text

import multihead as mh
from multihead.patterns.verdicts import _interval


@pytest.fixture(scope="module")
def verdicts():
    model = Puppet(("previous", "duplicate", "even"), ("induction", "even", "first"))
    found = mh.probe(model, Words(), text=text(), vocab=VOCAB, controls=False)
    return {(v.name.pattern, v.name.layer, v.name.head): v for v in mh.verify(found, most=2)}


def test_an_induction_head_that_speaks_holds(verdicts):
    verdict = verdicts["induction", 1, 0]
    assert verdict.holds
    assert verdict.low > 1  # nats: without its links it knows nothing
    assert abs(verdict.untouched) < 0.2  # the first copy is as it was
    assert abs(verdict.others) < 1e-6
    assert verdict.effect > 5 * abs(verdict.elsewhere)


def test_a_head_that_only_looks_the_part_does_not(verdicts):
    verdict = verdicts["duplicate token", 0, 1]
    assert not verdict.holds
    assert verdict.effect == pytest.approx(0, abs=1e-6)


def test_what_should_stay_is_no_number_where_none_is_measured(verdicts):
    """A previous-token head feeds the induction heads: what they miss has nothing beside it."""
    verdict = verdicts["previous token", 0, 0]
    assert verdict.measured == "what induction heads behind it miss"
    assert math.isnan(verdict.untouched)


def test_a_head_at_rest_says_nothing(verdicts):
    assert verdicts["first token", 1, 2].holds


def test_what_random_tokens_cannot_tell_is_tried_on_the_text():
    found = mh.probe(Puppet(("marks", "even")), Words(), text=text(), vocab=VOCAB, controls=False)
    verdict = next(v for v in mh.verify(found) if v.name.pattern == "separator")
    assert verdict.mass > 0.9  # not NaN: there are marks in the text
    assert abs(verdict.effect) < 1e-6


@pytest.mark.parametrize("given", [None, Puppet(("even",)), [1, 2]])
def test_what_is_no_probe_is_refused(given):
    with pytest.raises(ValueError, match="verify takes what mh.probe gives, but a"):
        mh.verify(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": 0}, "texts must be 1 or more, but 0 came"),
        ({"most": "a"}, "most must be 1 or more, but 'a' came"),
        ({"names": ["induction"]}, "names are of probe.names\\(\\), but 'induction' came"),
        ({"names": 3}, "names are of probe.names\\(\\), but 3 came"),
    ],
)
def test_bad_input(options, message):
    found = mh.probe(Puppet(("previous",)), Words(), text=text(), vocab=VOCAB, controls=False)
    with pytest.raises(ValueError, match=message):
        mh.verify(found, **options)


def test_a_name_of_another_model_is_refused():
    found = mh.probe(Puppet(("previous",)), Words(), text=text(), vocab=VOCAB, controls=False)
    other = dataclasses.replace(found.names()[0], layer=7)
    with pytest.raises(ValueError, match="the probe has no head 7.0"):
        mh.verify(found, [other])


def test_a_model_without_a_loss_is_refused():
    class Silent(Puppet):
        def forward(self, input_ids):
            return super().forward(input_ids).sum()

    found = mh.probe(Silent(("previous",)), Words(), text=text(), vocab=VOCAB, controls=False)
    with pytest.raises(ValueError, match="causal language model"):
        mh.verify(found)


def test_a_model_that_sees_what_comes_next_is_refused():
    class Ahead(Puppet):
        def forward(self, input_ids):
            seen = F.one_hot(input_ids, VOCAB)[:, None].float()
            F.scaled_dot_product_attention(seen, seen, seen)
            return super().forward(input_ids)

    found = mh.probe(Ahead(("previous",)), Words(), text=text(), vocab=VOCAB, controls=False)
    with pytest.raises(ValueError, match="this model sees it.*causal language model"):
        mh.verify(found)


def test_a_pattern_that_is_none_is_refused():
    found = mh.probe(Puppet(("previous",)), Words(), text=text(), vocab=VOCAB, controls=False)
    other = dataclasses.replace(found.names()[0], pattern="nonsense")
    with pytest.raises(ValueError, match="there is no pattern 'nonsense'"):
        mh.verify(found, [other])


def test_the_lower_end_is_of_as_many_texts_as_there_are():
    changes = [torch.tensor([one]) for one in (0.1, 0.2, 0.3, 0.4)]
    mean, low = _interval(changes)
    error = torch.tensor([0.1, 0.2, 0.3, 0.4]).std().item() / 2
    assert (mean, low) == pytest.approx((0.25, 0.25 - 3.1824 * error), abs=1e-4)


def test_progress_is_told():
    told = []
    model = Puppet(("previous", "even"))
    found = mh.probe(
        model,
        Words(),
        text=text(),
        vocab=VOCAB,
        controls=False,
        progress=lambda w, s: told.append(s),
    )
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)
    assert torch.is_tensor(found.scores[0].values)
