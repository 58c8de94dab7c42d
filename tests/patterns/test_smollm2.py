"""The real model: recorded heads agree with its own eager attentions, and names hold when cut."""

import dataclasses

import pytest
import torch

import multihead as mh
from multihead.patterns.verdicts import losses

TEXT = "The cat sat on the mat. The dog sat on the mat, and the cat sat on the dog."


@pytest.fixture(scope="module")
def smollm2():
    try:
        return mh.load_model("smollm2")
    except (ValueError, OSError) as reason:
        pytest.skip(f"SmolLM2 cannot be had here: {reason}")


@pytest.fixture(scope="module")
def probed(smollm2):
    return mh.probe(*smollm2, controls=False)


@torch.no_grad()
def test_recorded_heads_are_the_models_own(smollm2):
    model, tokenizer = smollm2
    inputs = tokenizer(TEXT, return_tensors="pt")
    plain = model(**inputs).logits
    with mh.record(model, tokenizer=tokenizer) as rec:
        out = model(**inputs).logits
    torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    assert len(rec.layers) == 30
    for layer in range(30):
        weights = maps[layer][0].double()
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        torch.testing.assert_close(rec[layer]["entropy"][0].double(), entropy, rtol=0, atol=2e-5)
        for head in (0, 5, 8):
            torch.testing.assert_close(
                rec.weights(layer, head).double(), weights[head], rtol=0, atol=1e-5
            )
    assert "".join(rec.words[0]) == tokenizer.decode(inputs["input_ids"][0])


def strongest(probed, pattern):
    return next(n for n in probed.names() if n.pattern == pattern and n.where == "on cue")


def test_known_heads_have_their_names(probed):
    found = {(n.layer, n.head) for n in probed.names() if n.pattern == "induction"}
    assert {(17, 3), (17, 4), (18, 6)} <= found
    assert (
        strongest(probed, "previous token").layer,
        strongest(probed, "previous token").head,
    ) == (16, 0)
    rests = {
        (n.layer, n.head)
        for n in probed.names()
        if n.pattern == "first token" and n.where == "at rest"
    }
    assert (18, 6) in rests or len(rests) > 50  # a head at rest in prose can be strong on cue


def test_verify_tells_induction_from_what_it_feeds_on(probed):
    reads, feeds = strongest(probed, "induction"), strongest(probed, "previous token")
    mistaken = dataclasses.replace(reads, layer=feeds.layer, head=feeds.head)
    held = mh.verify(probed, [reads, feeds, mistaken], texts=4)
    induction, previous, wrong = held
    assert induction.holds
    assert induction.effect > 0.5  # nats on the second copy
    assert abs(induction.untouched) < 1e-3  # the first copy is as it was
    assert previous.holds
    assert previous.measured.startswith("what induction heads")
    assert previous.effect > 0.2  # of what the induction heads read
    assert not wrong.holds  # cutting its induction links does nothing: it has none
    text, _, second = probed.cues[0]
    with torch.no_grad(), mh.ablate(probed.model, [(feeds.layer, feeds.head)]):
        without = losses(probed, text)[second:].mean()
    with torch.no_grad():
        whole = losses(probed, text)[second:].mean()
    assert float(without - whole) > 0.5  # though without the whole head induction is gone, too
