"""torch's own modules: `nn.MultiheadAttention` in all its ways, and what is built of it."""

import itertools

import pytest
import torch
from dense_maps import check_maps
from torch import nn

import multihead as mh

BATCH, QUERIES, KEYS, WIDTH, HEADS = 2, 5, 7, 12, 3


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention(**options):
    torch.manual_seed(1)
    module = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def compare(module, *args, atol=2e-6, **kwargs):
    """What it gives recorded and not is the same; the recording and its own weights are too."""
    torch.manual_seed(0)
    before = module(*args, **kwargs)
    torch.manual_seed(0)
    with mh.record(module) as rec:
        during = module(*args, **kwargs)
    for one, two in zip(before, during, strict=True):
        if one is None:
            assert two is None
        else:
            torch.testing.assert_close(two, one, rtol=0, atol=atol, equal_nan=True)
    return rec


def own_weights(module, *args, **kwargs):
    module.eval()
    with torch.no_grad():
        given = {**kwargs, "need_weights": True, "average_attn_weights": False}
        weights = module(*args, **given)[1]
    return weights if weights.ndim == 4 else weights[None]


def triple(batch_first, kdim=WIDTH, vdim=WIDTH):
    three = (
        made(QUERIES, BATCH, WIDTH),
        made(KEYS, BATCH, kdim, seed=1),
        made(KEYS, BATCH, vdim, seed=2),
    )
    return [t.transpose(0, 1) for t in three] if batch_first else list(three)


PADDED = torch.arange(KEYS) >= torch.tensor([[KEYS], [4]])
FORBIDDEN = (
    torch.rand(BATCH * HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(5)) > 0.7
)
FORBIDDEN[..., 0] = False
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDED},
    "padding in numbers": {"key_padding_mask": torch.where(PADDED, -torch.inf, 0.5)},
    "2-D": {"attn_mask": FORBIDDEN[0]},
    "2-D in numbers": {"attn_mask": made(QUERIES, KEYS, seed=6)},
    "3-D": {"attn_mask": FORBIDDEN},
    "3-D in numbers": {"attn_mask": made(BATCH * HEADS, QUERIES, KEYS, seed=6)},
    "both": {"attn_mask": FORBIDDEN, "key_padding_mask": PADDED},
}
OPTIONS = {
    "plain": {},
    "bias_k": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
    "kdim": {"kdim": 4, "vdim": 10},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("asked", [{"need_weights": False}, {}, {"average_attn_weights": False}],
                         ids=["no weights", "mean", "by head"])  # fmt: skip
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_under_every_mask(option, mask, asked):
    given = OPTIONS[option]
    for batch_first, training in itertools.product([False, True], repeat=2):
        module = attention(**given, batch_first=batch_first).train(training)
        three = triple(batch_first, given.get("kdim", WIDTH), given.get("vdim", WIDTH))
        rec = compare(module, *three, **MASKS[mask], **asked)
        check_maps(rec, rec.layers, [own_weights(module, *three, **MASKS[mask])])
        assert rec.layers[0].crosses


@pytest.mark.parametrize("training", [False, True])
def test_causal_and_unbatched(training):
    module = attention().train(training)
    x = made(KEYS, WIDTH)
    causal = {"attn_mask": nn.Transformer.generate_square_subsequent_mask(KEYS), "is_causal": True}
    for asked in ({"need_weights": False}, {}):
        rec = compare(module, x, x, x, **causal, **asked)
        assert rec.layers[0].chunks[0].mask == "causal()"
        assert not rec.layers[0].crosses
        check_maps(rec, rec.layers, [own_weights(module, x, x, x, **causal)])
        module.train(training)
    short = {"key_padding_mask": torch.arange(KEYS) > 4}
    rec = compare(module, x, x, x, **short)
    check_maps(rec, rec.layers, [own_weights(module, x, x, x, **short)])


@pytest.mark.parametrize("asked", [{"need_weights": False}, {}])
def test_dropout_drops_the_same(asked):
    module = attention(dropout=0.4).train()
    three = triple(False)
    rec = compare(module, *three, **asked, atol=0)
    check_maps(rec, rec.layers, [own_weights(module, *three)])  # statistics are before dropout


def test_a_text_of_nothing_but_padding():
    module, three = attention().eval(), triple(False)
    mask = {"key_padding_mask": torch.tensor([[False], [True]]).expand(-1, KEYS)}
    for asked in ({"need_weights": False}, {}):
        for grads in (True, False):
            with torch.set_grad_enabled(grads):
                compare(module, *three, **mask, **asked)


def encoder(norm=True, layers=2, **options):
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(8, 2, 16, **{"batch_first": True, **options})
    model = nn.TransformerEncoder(layer, layers, nn.LayerNorm(8) if norm else None)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kind", ["none", "right", "left", "numbers", "and mask", "unbatched"])
@pytest.mark.parametrize("options", [{}, {"batch_first": False}, {"norm_first": True}], ids=str)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_gives_the_same_on_every_path(options, kind, norm, training, grads):
    model = encoder(norm, **options).train(training)
    x = made(2, KEYS, 8) if options.get("batch_first", True) else made(KEYS, 2, 8)
    padded = PADDED if kind != "left" else PADDED.flip(1)
    given = {"src_key_padding_mask": padded}
    if kind == "numbers":
        given = {"src_key_padding_mask": torch.zeros(2, KEYS).masked_fill(padded, -torch.inf)}
    elif kind == "and mask":
        given["mask"] = torch.ones(KEYS, KEYS).triu(1).bool()
    elif kind == "none":
        given = {}
    elif kind == "unbatched":
        x, given = made(KEYS, 8), {}
    with torch.set_grad_enabled(grads):
        rec = compare(_Tuple(model), x, **given)
    assert [layer.name for layer in rec.layers] == [f"inner.layers.{i}.self_attn" for i in (0, 1)]


class _Tuple(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return (self.inner(*args, **kwargs),)


def test_the_packed_path_really_is_another():
    """Else the test above would prove nothing."""
    model, x = encoder(norm=False).eval(), made(2, KEYS, 8)
    with torch.no_grad():
        assert not model(x, src_key_padding_mask=PADDED)[PADDED].any()
        with mh.record(model):
            assert not model(x, src_key_padding_mask=PADDED)[PADDED].any()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with mh.record(model):
                assert model(x, src_key_padding_mask=PADDED)[PADDED].any()
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_encoder_and_decoder(training, dropout):
    torch.manual_seed(4)
    model = nn.Transformer(8, 2, 2, 2, 16, dropout, batch_first=True).train(training)
    given = {
        "tgt_mask": model.generate_square_subsequent_mask(QUERIES), "tgt_is_causal": True,
        "src_key_padding_mask": PADDED, "memory_key_padding_mask": PADDED,
    }  # fmt: skip
    with torch.set_grad_enabled(training):
        rec = compare(_Tuple(model), made(2, KEYS, 8), made(2, QUERIES, 8), **given)
    assert [layer.crosses for layer in rec.layers] == [False] * 3 + [True, False, True]
    assert [(layer.queries, layer.keys) for layer in rec.layers] == [
        (KEYS, KEYS), (KEYS, KEYS), (QUERIES, QUERIES), (QUERIES, KEYS), (QUERIES, QUERIES),
        (QUERIES, KEYS),
    ]  # fmt: skip
    mask = rec.layers[2].chunks[0].mask
    assert mask == "causal()"


def test_a_decoder_alone():
    torch.manual_seed(5)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2).eval()
    with torch.no_grad():
        rec = compare(_Tuple(model), made(2, QUERIES, 8), made(2, KEYS, 8))
    layer = model.layers[0]
    x, memory = made(2, QUERIES, 8), made(2, KEYS, 8)
    own = own_weights(layer.self_attn, x, x, x)
    check_maps(rec, rec.layers[:1], [own])
    with torch.no_grad():
        after = layer.norm1(x + layer.self_attn(x, x, x)[0])
    check_maps(rec, rec.layers[1:2], [own_weights(layer.multihead_attn, after, memory, memory)])


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_rows_do_not_count():
    model, x = encoder().eval(), made(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with mh.record(model) as both:
        model(x, src_key_padding_mask=padding)
    assert both.real.tolist() == (~padding).tolist()
    alone = []
    for row, length in ((0, 5), (1, 3)):
        with mh.record(model) as rec:
            model(x[row : row + 1, :length])
        assert rec.real is None
        alone.append((length, rec.heads()))
    for i, found in enumerate(both.heads()):
        expected = sum(length * rows[i]["entropy"] for length, rows in alone) / 8
        assert found["entropy"] == pytest.approx(expected, abs=1e-5)


EVERYTHING = torch.tensor([[True], [False]]).expand(2, QUERIES)  # of the first text is padding
ONE_ROW = torch.zeros(QUERIES, QUERIES, dtype=torch.bool)
ONE_ROW[1] = True
AS_NUMBERS = torch.zeros(QUERIES, QUERIES).masked_fill(ONE_ROW, -torch.inf)
ONE_HEAD = torch.zeros(2 * 4, QUERIES, QUERIES, dtype=torch.bool)
ONE_HEAD[1, 1] = True  # head 1 of the first text


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested", "ignore:enable_nested_tensor is True"
)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("heads", [3, 4])  # an odd number has no fast path
@pytest.mark.parametrize("kind", ["attention", "layer", "encoder"])
@pytest.mark.parametrize(
    ("padding", "links"),
    [(EVERYTHING, None), (None, ONE_ROW), (None, AS_NUMBERS), (EVERYTHING, ONE_ROW)],
)
def test_rows_that_see_nothing_give_what_torch_gives(kind, heads, training, grad, padding, links):
    torch.manual_seed(0)
    x = made(2, QUERIES, WIDTH)
    layer = nn.TransformerEncoderLayer(WIDTH, heads, 8, dropout=0.0, batch_first=True)
    with torch.set_grad_enabled(grad):
        if kind == "attention":
            module = layer.self_attn.train(training)
            given = {"key_padding_mask": padding, "attn_mask": links}
            compare(module, x, x, x, need_weights=False, **given)
        elif kind == "layer":
            compare(layer.train(training), x, src_key_padding_mask=padding, src_mask=links)
        else:
            encoder = nn.TransformerEncoder(layer, 2).train(training)
            compare(encoder, x, src_key_padding_mask=padding, mask=links)


@torch.no_grad()
def test_a_head_that_sees_nothing_gives_what_torch_gives():
    module = nn.MultiheadAttention(WIDTH, 4, batch_first=True).eval()
    x = made(2, QUERIES, WIDTH)
    compare(module, x, x, x, need_weights=False, attn_mask=ONE_HEAD)
    assert module(x, x, x, need_weights=False, attn_mask=ONE_HEAD)[0][0, 1].isnan().all()
