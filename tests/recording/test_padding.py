"""Padding changes nothing: a text alone, and the same text among empty places."""

import pytest
import torch
from architectures import SEEN, VOCABULARY, build

import multihead as mh
from multihead.recording import DEFAULT

FIRST = mh.mass(mh.prefix(1), name="first")
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
        for key in ("entropy", "distance", "peak", "first", "received_top_share"):
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


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("told", [True, False], ids=["both padded", "the source alone"])
@torch.no_grad()
def test_an_encoder_and_its_decoder_have_padding_of_their_own(name, told, tmp_path):
    """Also where their lengths are the same, so that one mask would fit the other's rows."""
    model, random = lively(name), torch.Generator().manual_seed(4)
    source, text = torch.randint(2, VOCABULARY, (2, 1, 9), generator=random)
    given = {"input_ids": source, "decoder_input_ids": text}
    mask = (torch.arange(9) < 5).long()[None]
    padded = {**given, "attention_mask": mask}
    if told:
        padded["decoder_attention_mask"] = (torch.arange(9) < 7).long()[None]
    with mh.record(model) as alone:
        model(input_ids=source[:, :5], decoder_input_ids=text[:, :7] if told else text)
    with mh.record(model) as among:
        model(**padded)
    among.save(tmp_path / "run.heads")
    for rec in (among, mh.load(tmp_path / "run.heads")):
        for one, other in zip(alone.heads(), rec.heads(), strict=True):
            for key in ("entropy", "peak", "received_top"):
                assert other[key] == pytest.approx(one[key], abs=1e-4), (one["name"], key)


def test_a_mask_by_which_no_token_sees_itself_hides_no_padding():
    class Strict(torch.nn.Module):
        def forward(self, x):
            mask = torch.ones(6, 6, dtype=torch.bool).tril(-1)
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    torch.manual_seed(0)
    with mh.record(model := Strict()) as rec:
        model(torch.randn(1, 2, 6, 8))
    assert rec.real is None
    seen = rec[0]["entropy"][0, 0, 1:].mean()  # all rows but the first, which sees nothing
    assert rec.heads()[0]["entropy"] == pytest.approx(float(seen))


@torch.no_grad()
def test_padding_of_a_source_is_not_laid_on_a_decoder_that_looks_at_itself():
    torch.manual_seed(0)
    model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    source, text = torch.randn(2, 1, 6, 8)
    with mh.record(model) as alone:
        model(source[:, :4], text)
    with mh.record(model) as among:
        model(source, text, src_key_padding_mask=(torch.arange(6) >= 4)[None])
    for one, other in zip(alone.heads(), among.heads(), strict=True):
        if one["name"] == "decoder.layers.0.self_attn":
            assert other["entropy"] == pytest.approx(one["entropy"], abs=1e-4), one["name"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_recording_that_was_cut_inside_its_first_pass_knows_its_padding(side, tmp_path):
    model, (_, padded) = lively("llama"), alone_and_padded(side)
    with torch.no_grad(), mh.record(model) as whole:
        model(**padded)
    last = model.model.layers[-1]
    stop = last.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with (
        pytest.raises(KeyboardInterrupt),
        torch.no_grad(),
        mh.record(model, to=tmp_path / "run.heads"),
    ):
        model(**padded)
    stop.remove()
    cut = mh.load(tmp_path / "run.heads")
    assert cut.ids is None
    assert cut.layers
    for one, other in zip(whole.heads(), cut.heads(), strict=False):
        for key in ("entropy", "distance", "first", "received_top_share"):
            assert other[key] == pytest.approx(one[key], abs=1e-4)


def test_the_first_token_of_a_text_padded_in_front_is_not_told_without_queries_and_keys():
    _, among = both("llama", "left", keep_qk=False)
    assert "first" not in among.heads()[0]
    assert "entropy" in among.heads()[0]
    _, among = both("llama", "right", keep_qk=False)
    assert "first" in among.heads()[0]


@torch.no_grad()
def test_the_first_token_of_a_source_padded_in_front():
    model, (_, padded) = lively("bart"), alone_and_padded("left")
    answer = torch.randint(1, VOCABULARY, (1, 7), generator=torch.Generator().manual_seed(5))
    with mh.record(model) as rec:
        model(**padded, decoder_input_ids=answer)
    crossing = [layer for layer in rec.layers if layer.crosses]
    assert crossing
    for layer in crossing:
        told = [row["first"] for row in rec.heads() if row["layer"] == layer.index]
        on = [rec.weights(layer.index, h)[:, EMPTY].mean().item() for h in range(layer.heads)]
        assert told == pytest.approx(on, abs=1e-5)
        assert min(on) > 0
    seen = mh.record_many(model, [padded | {"decoder_input_ids": answer}], stats=(FIRST,))
    assert [*seen.values] == ["first"]
    for layer in crossing:
        assert all(one.key > EMPTY for one in seen.examples(layer.index, 0))


@torch.no_grad()
def test_an_encoder_recorded_by_itself():
    model, (ids, padded) = lively("bart"), alone_and_padded("left")
    encoder = model.get_encoder()
    with mh.record(model) as whole:
        model(**padded, decoder_input_ids=ids[:, :3])
    with mh.record(encoder) as alone:
        encoder(**padded)
    for one, other in zip(alone.heads(), whole.heads(), strict=False):
        for key in ("entropy", "first", "distance"):
            assert one[key] == pytest.approx(other[key], abs=1e-5)


def read_and_answer(side="right"):
    """A torch encoder and decoder, and texts alone and among padding of their own."""
    torch.manual_seed(0)
    model = torch.nn.Transformer(24, 4, 2, 2, 48, dropout=0.0, batch_first=True).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.4)
    source, text = torch.randn(1, 9, 24), torch.randn(1, 9, 24)
    hidden = torch.arange(9) < 5 if side == "left" else torch.arange(9) >= 4
    masks = {
        "src_key_padding_mask": hidden[None],
        "memory_key_padding_mask": hidden[None],
        "tgt_key_padding_mask": (torch.arange(9) >= 7)[None],
    }
    ahead = torch.ones(9, 9, dtype=torch.bool).triu(1)
    alone = {"src": source[:, ~hidden], "tgt": text[:, :7], "tgt_mask": ahead[:7, :7]}
    return model, alone, {"src": source, "tgt": text, "tgt_mask": ahead, **masks}


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_torch_encoder_and_its_decoder_have_padding_of_their_own(side, tmp_path):
    model, plain, padded = read_and_answer(side)
    with mh.record(model, stats=STATS) as alone:
        model(**plain)
    with mh.record(model, stats=STATS) as among:
        model(**padded)
    among.save(tmp_path / "run.heads")
    moved = 5 if side == "left" else 0
    for rec in (among, mh.load(tmp_path / "run.heads")):
        for one, other in zip(alone.heads(), rec.heads(), strict=True):
            reads = not one["name"].endswith("self_attn") or one["name"].startswith("encoder")
            assert other["received_top"] == one["received_top"] + (moved if reads else 0)
            for key in ("entropy", "peak", "first", "received_top_share"):
                assert other[key] == pytest.approx(one[key], abs=1e-4), (one["name"], key)
            if one["name"].endswith("self_attn"):  # places in two texts are no distance
                assert other["distance"] == pytest.approx(one["distance"], abs=1e-4)
    for one, other in zip(mh.habits(alone), mh.habits(among), strict=True):
        assert other.broad == pytest.approx(one.broad, abs=1e-4)


@torch.no_grad()
def test_many_texts_of_a_torch_encoder_and_its_decoder():
    model, plain, padded = read_and_answer()
    alone, among = mh.record_many(model, [plain]), mh.record_many(model, [padded])
    for one, other in zip(alone.heads(), among.heads(), strict=True):
        for key in ("entropy", "peak", "first", "received_top_share"):
            assert other[key] == pytest.approx(one[key], abs=1e-4), (one["name"], key)


@torch.no_grad()
def test_links_cut_in_one_layer_of_a_stack_make_no_padding():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(1, 6, 8)
    with mh.cut(model, [(0, 0), (0, 1)], links=mh.prefix(2)), mh.record(model) as rec:
        model(x)
    assert rec.real_rows(rec[0]) is None
    assert rec.heads()[0]["entropy"] == pytest.approx(float(rec[0]["entropy"][0, 0].mean()))
