"""Padding changes nothing: a text alone, and the same text among empty places."""

import pytest
import torch
from architectures import SEEN, VOCABULARY, build

import multihead as mh
from multihead.recording import DEFAULT

STATS = (*DEFAULT, "peak_key", "received_mean")
TEXT, EMPTY = 40, 24
CASES = [("bert", "right"), ("llama", "right"), ("llama", "left"), ("gpt2", "right")]


def lively(name):
    """A model whose heads do something: with weights as they are made, all look alike."""
    torch.manual_seed(1)
    model = build(SEEN[name])
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def alone_and_padded(side):
    ids = torch.randint(1, VOCABULARY, (1, TEXT), generator=torch.Generator().manual_seed(4))
    empty = torch.zeros(1, EMPTY, dtype=torch.long)
    real, none = torch.ones_like(ids), empty
    first = (empty, ids) if side == "left" else (ids, empty)
    mask = (none, real) if side == "left" else (real, none)
    return ids, {"input_ids": torch.cat(first, 1), "attention_mask": torch.cat(mask, 1)}


@torch.no_grad()
def both(name, side, **kept):
    model, (ids, padded) = lively(name), alone_and_padded(side)
    if name == "llama":
        padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with mh.record(model, stats=STATS, **kept) as alone:
        model(input_ids=ids)
    with mh.record(model, stats=STATS, **kept) as among:
        model(**padded)
    return alone, among


@pytest.mark.parametrize(("name", "side"), CASES)
def test_the_table_of_heads(name, side):
    alone, among = both(name, side)
    moved = EMPTY if side == "left" else 0
    for one, other in zip(alone.heads(), among.heads(), strict=True):
        assert other["received_top"] == one["received_top"] + moved
        for key in ("entropy", "distance", "peak", "received_top_share"):
            assert other[key] == pytest.approx(one[key], abs=1e-4)


@pytest.mark.parametrize(("name", "side"), CASES)
def test_habits(name, side):
    alone, among = both(name, side)
    moved, some = EMPTY if side == "left" else 0, 0
    for one, other in zip(mh.habits(alone), mh.habits(among), strict=True):
        assert (other.distance, other.always) == (one.distance, one.always)
        assert other.broad == pytest.approx(one.broad, abs=1e-4)
        assert [(s.key, s.resting) for s in other.sinks] == [
            (s.key + moved, s.resting) for s in one.sinks
        ]
        assert [s.share for s in other.sinks] == pytest.approx(
            [s.share for s in one.sinks], abs=1e-4
        )
        some += len(one.sinks)
    assert some or name != "bert"  # there is one to be compared


@torch.no_grad()
@pytest.mark.parametrize(("name", "side"), CASES[:2])
def test_many_texts(name, side):
    model, (ids, padded) = lively(name), alone_and_padded(side)
    alone, among = mh.record_many(model, [{"input_ids": ids}]), mh.record_many(model, [padded])
    for one, other in zip(alone.heads(), among.heads(), strict=True):
        assert other["received_top_share"] == pytest.approx(one["received_top_share"], abs=1e-4)


@torch.no_grad()
def test_the_first_token_of_a_text_padded_on_the_left_is_no_example():
    model, (_, padded) = lively("llama"), alone_and_padded("left")
    corpus = mh.record_many(model, [padded], examples=400)
    keys = [one.key for layer in (0, 1) for one in corpus.examples(layer, 0)]
    assert keys
    assert min(keys) > EMPTY


@torch.no_grad()
@pytest.mark.parametrize(("name", "side"), [*CASES, ("gpt2 eager", "right")])
def test_a_mean_in_place_of_a_head(name, side):
    """Rows of padding are no part of it."""
    name, _, eager = name.partition(" ")
    model, (ids, padded) = lively(name), alone_and_padded(side)
    if eager:
        model.set_attn_implementation("eager")
    if name == "llama":
        padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with mh.ablate(model, [(0, 1), (1, 0)], by="mean"):
        alone, among = model(input_ids=ids)[0], model(**padded)[0]
    real = padded["attention_mask"].bool()
    torch.testing.assert_close(among[real], alone[0], atol=1e-4, rtol=1e-4)


class OneHead(torch.nn.Module):
    """nn.MultiheadAttention with one head, its output as it is."""

    def __init__(self):
        super().__init__()
        self.attn = torch.nn.MultiheadAttention(4, 1, batch_first=True)
        for weight in (self.attn.in_proj_weight[8:], self.attn.out_proj.weight):
            torch.nn.init.eye_(weight.data)

    def forward(self, x, padding):
        return self.attn(x, x, x, key_padding_mask=padding, need_weights=False)[0]


@torch.no_grad()
@pytest.mark.parametrize("by", ["mean", "resample"])
def test_no_row_of_padding_takes_the_place_of_one_of_the_text(by):
    torch.manual_seed(0)
    model, x = OneHead(), torch.randn(2, 9, 4)
    padding = torch.arange(9) >= torch.tensor([[9], [4]])
    plain = model(x, padding)
    with mh.ablate(model, [(0, 0)], by=by):
        changed = model(x, padding)
    text = plain[~padding]
    if by == "mean":
        torch.testing.assert_close(changed[~padding], text.mean(0).expand_as(text))
    else:
        assert not torch.equal(changed[~padding], text)
        torch.testing.assert_close(changed[~padding].sort(0).values, text.sort(0).values)


def test_what_padding_gave_is_not_told_by_statistics_alone():
    alone, among = both("llama", "right", keep_qk=False)
    assert "received_top_share" in alone.heads()[0]
    assert not {"received_top", "received_top_share"} & among.heads()[0].keys()
    with pytest.raises(ValueError, match="text 0 is padded, .* record with keep_qk=True"):
        mh.habits(among)
