"""What is recorded of a model is what its own eager attention gives, architecture by architecture."""

import architectures
import pytest
import torch
from architectures import (
    BATCH,
    DECODERS,
    ENCODERS,
    OTHERS,
    SEEN,
    TOKENS,
    build,
    implementations,
    inputs,
)
from dense_maps import check_maps, close

import multihead as mh

every_one = pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, one) for name, what in SEEN.items() for one in implementations(what)],
)


def layers_of(rec):
    """All but the head by which SigLIP pools, of which transformers gives no weights."""
    return [layer for layer in rec.layers if not layer.name.endswith("head.attention")]


def test_there_are_many():
    assert len({what.family for what in SEEN.values()}) >= 30


@every_one
def test_weights_and_statistics_are_those_of_eager_attention(name, implementation):
    model = build(SEEN[name], implementation)
    given = inputs(SEEN[name].kind)
    with torch.no_grad():
        before = architectures.outputs(model(**given))
        with mh.record(model) as rec:
            during = architectures.outputs(model(**given))
        after = architectures.outputs(model(**given))
    assert before
    for one, two, three in zip(before, during, after, strict=True):
        close(two, one, 5e-5, "the output while recorded")
        assert torch.equal(one, three)
    check_maps(rec, layers_of(rec), architectures.maps(model, **given))


def test_offsets_say_where_rows_stand():
    for name in ("llama", "bert", "bart"):
        what = SEEN[name]
        with torch.no_grad(), mh.record(model := build(what)) as rec:
            model(**inputs(what.kind))
        assert {c.offset for layer in rec.layers for c in layer.chunks} == {0}


def test_masks_are_kept_as_rules():
    rules = {
        "mistral": ["causal() & window(5)"] * 2,
        "bert": [None] * 2,
        "llama": ["causal()"] * 2,
        "modernbert": [None, "window(3)"],
        "t5": [None, None, "causal()", None, "causal()", None],
    }
    for name, masks in rules.items():
        with torch.no_grad(), mh.record(model := build(SEEN[name])) as rec:
            model(**inputs(SEEN[name].kind))
        assert [layer.chunks[0].mask for layer in rec.layers] == masks, name


def test_layers_that_share_weights_are_told_apart():
    with torch.no_grad(), mh.record(model := build(SEEN["albert"])) as rec:
        model(**inputs("encoder"))
    one, two = (layer.name for layer in rec.layers)
    assert two == f"{one}#1"


@pytest.mark.parametrize("name", ["bart", "t5", "whisper"])
def test_cross_attention_is_kept_apart(name):
    with torch.no_grad(), mh.record(model := build(SEEN[name])) as rec:
        model(**inputs(SEEN[name].kind))
    assert [layer.crosses for layer in rec.layers] == [False] * 3 + [True, False, True]


def test_eager_attention_does_what_its_mask_says_alone():
    """Under SDPA a module that calls itself causal is, without a mask; its eager twin is not."""
    model, given = build(SEEN["bert"], "eager"), inputs("encoder")
    for layer in model.encoder.layer:
        layer.attention.self.is_causal = True
    with torch.no_grad(), mh.record(model) as rec:
        model(**given)
    check_maps(rec, rec.layers, architectures.maps(model, **given))


def padding(side):
    lengths = torch.tensor([[TOKENS], [TOKENS - 4]])
    places = torch.arange(TOKENS)
    return places < lengths if side == "right" else places >= TOKENS - lengths


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        (name, one)
        for name, what in {**DECODERS, **ENCODERS}.items()
        for one in implementations(what)
    ],
)
def test_padded_texts(name, implementation, side):
    what = SEEN[name]
    model, real = build(what, implementation), padding(side)
    given = {**inputs(what.kind), "attention_mask": real.long()}
    with torch.no_grad():
        before = model(**given)[0]
        with mh.record(model) as rec:
            during = model(**given)[0]
    close(during[real], before[real], 5e-5)
    check_maps(rec, rec.layers, architectures.maps(model, **given), rows=real)
    assert torch.equal(rec.real, real)
    for layer in rec.layers:
        blind = layer.lse == -torch.inf  # rows of padding that see nothing, under SDPA
        assert not blind[real[:, None].expand_as(blind)].any()
        for statistic in ("entropy", "distance", "peak", "first"):
            assert not layer[statistic][blind].any()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_padded_texts_of_encoder_decoders(name, side):
    model, real = build(SEEN[name]), padding(side)
    given = {**inputs("both"), "attention_mask": real.long()}
    with torch.no_grad(), mh.record(model) as rec:
        model(**given)
    maps = architectures.maps(model, **given)
    check_maps(rec, rec.layers[:2], maps[:2], rows=real)
    check_maps(rec, rec.layers[2:], maps[2:])


@pytest.mark.parametrize("name", ["llama", "bert", "bart", "gpt_oss"])
def test_an_eager_model_that_is_asked_for_weights_still_gives_them(name):
    model, given = build(SEEN[name], "eager"), inputs(SEEN[name].kind)
    expected = architectures.maps(model, **given)
    with mh.record(model) as rec:
        found = architectures.maps(model, **given)
    for one, two in zip(expected, found, strict=True):
        assert torch.equal(one, two)
    check_maps(rec, rec.layers, expected)
    assert all(layer.output_norm() is not None for layer in rec.layers)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "bert", "t5", "whisper"])
def test_dropout_drops_the_same(name, implementation):
    options = {"t5": {"dropout_rate": 0.3}, "bert": {"attention_probs_dropout_prob": 0.3}}
    more = options.get(name, {"attention_dropout": 0.3})
    model, given = build(SEEN[name], implementation, **more).train(), inputs(SEEN[name].kind)
    torch.manual_seed(0)
    before = model(**given)[0]
    torch.manual_seed(0)
    with mh.record(model) as rec:
        during = model(**given)[0]
    assert torch.equal(before, during)
    assert all(layer.queries in (TOKENS, 7, 11) for layer in rec.layers)


def test_all_is_given_back():
    from transformers import AttentionInterface, AttentionMaskInterface

    model = build(SEEN["clip"])
    tables = (AttentionInterface, AttentionMaskInterface)
    configs = [model.config, model.config.text_config, model.config.vision_config]

    def state():
        named = [dict(table._global_mapping) for table in tables]
        return named, AttentionInterface.get_interface, [c._attn_implementation for c in configs]

    before = state()
    with torch.no_grad(), mh.record(model):
        model(**inputs("clip"))
    assert state() == before
    with pytest.raises(ZeroDivisionError), mh.record(model):
        _ = 1 / 0
    assert state() == before


def test_kernels_with_masks_of_their_own_are_seen_as_sdpa():
    model = build(SEEN["mistral"])
    expected = architectures.maps(build(SEEN["mistral"]), **inputs("decoder"))
    model.config._attn_implementation_internal = "flash_attention_2"  # which is not installed here
    with torch.no_grad(), mh.record(model) as rec:
        model(**inputs("decoder"))
    assert model.config._attn_implementation == "flash_attention_2"
    check_maps(rec, rec.layers, expected)
    assert len(rec.heads()) == 12
    assert rec.ids.shape == (BATCH, TOKENS)


def test_every_kind_is_tried():
    assert {what.kind for what in OTHERS.values()} == {"whisper", "images", "clip", "speech"}
