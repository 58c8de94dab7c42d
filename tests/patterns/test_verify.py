"""A cut tells whether the name holds: what speaks suffers, what only looks the part does not."""

import pytest
import torch
from puppets import VOCAB, Puppet, Words, text

import multihead as mh


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


def test_a_head_at_rest_says_nothing(verdicts):
    assert verdicts["first token", 1, 2].holds


def test_a_model_without_a_loss_is_refused():
    class Silent(Puppet):
        def forward(self, input_ids):
            return super().forward(input_ids).sum()

    found = mh.probe(Silent(("previous",)), Words(), text=text(), vocab=VOCAB, controls=False)
    with pytest.raises(ValueError, match="causal language model"):
        mh.verify(found)


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
