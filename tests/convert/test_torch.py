"""`nn.MultiheadAttention` in and out, against its own output."""

import pytest
import torch
from torch import nn

import multihead as mh
from multihead.convert import from_torch, masks_from_torch, to_torch

BATCH, QUERIES, KEYS, HEADS, D_MODEL, D_CONTEXT = 2, 7, 11, 3, 15, 13
TIGHT = {torch.float32: 5e-6, torch.float64: 1e-13}


def make(*arguments, seed=0, **options):
    """A module in eval mode, its biases and weights random and large enough to matter."""
    torch.manual_seed(seed)
    module = nn.MultiheadAttention(*arguments, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module.eval()


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TIGHT[theirs.dtype])


def masks(queries, keys, heads, dtype):
    """One of each kind that a module takes; none leaves a query without keys, which is NaN there."""
    torch.manual_seed(1)
    ignore = torch.rand(queries, keys) < 0.4
    per_head = torch.rand(BATCH * heads, queries, keys) < 0.4
    ends = torch.zeros(BATCH, keys, dtype=torch.bool)
    ignore[:, 0] = per_head[:, :, 0] = False
    ends[0, -3:] = ends[1, -1:] = True
    infinite = torch.zeros(queries, keys, dtype=dtype).masked_fill(ignore, -torch.inf)
    return {
        "none": {},
        "boolean": {"attn_mask": ignore},
        "boolean a head": {"attn_mask": per_head},
        "floats": {"attn_mask": torch.randn(queries, keys, dtype=dtype)},
        "floats a head": {"attn_mask": torch.randn(BATCH * heads, queries, keys, dtype=dtype)},
        "infinite floats": {"attn_mask": infinite},
        "padding": {"key_padding_mask": ends},
        "float padding": {"key_padding_mask": torch.randn(BATCH, keys, dtype=dtype)},
        "boolean, padding": {"attn_mask": ignore, "key_padding_mask": ends},
        "a head, padding": {"attn_mask": per_head, "key_padding_mask": ends},
        "floats twice": {
            "attn_mask": torch.randn(queries, keys, dtype=dtype),
            "key_padding_mask": torch.randn(BATCH, keys, dtype=dtype),
        },
    }


KINDS = list(masks(2, 2, 1, torch.float32))
MODULES = {
    "packed": {},
    "without bias": {"bias": False},
    "separate": {"kdim": D_CONTEXT, "vdim": D_CONTEXT},
    "separate without bias": {"kdim": D_CONTEXT, "vdim": D_CONTEXT, "bias": False},
}


@pytest.mark.parametrize("dtype", TIGHT, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES)
def test_cross_attention_is_that_of_the_module(options, kind, dtype):
    theirs = make(D_MODEL, HEADS, batch_first=True, dtype=dtype, **options)
    ours = from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, D_MODEL, dtype=dtype)
    context = torch.randn(BATCH, KEYS, theirs.kdim, dtype=dtype)
    given = masks(QUERIES, KEYS, HEADS, dtype)[kind]
    mask, bias = masks_from_torch(**given, num_heads=HEADS)
    expected, _ = theirs(x, context, context, need_weights=False, **given)
    close(ours(x, context, mask=mask, bias=bias), expected)


@pytest.mark.parametrize("dtype", TIGHT, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [3, 2])  # the module's fast path takes even numbers alone
def test_self_attention_is_that_of_the_module(heads, kind, dtype):
    theirs = make(5 * heads, heads, batch_first=True, dtype=dtype)
    ours = from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, 5 * heads, dtype=dtype)
    given = masks(QUERIES, QUERIES, heads, dtype)[kind]
    mask, bias = masks_from_torch(**given, num_heads=heads)
    with torch.no_grad():
        close(ours(x, mask=mask, bias=bias), theirs(x, x, x, need_weights=False, **given)[0])


def test_is_causal_is_a_causal_mask():
    theirs = make(D_MODEL, HEADS, batch_first=True)
    x = torch.randn(BATCH, QUERIES, D_MODEL)
    ahead = nn.Transformer.generate_square_subsequent_mask(QUERIES)
    expected, _ = theirs(x, x, x, attn_mask=ahead, is_causal=True, need_weights=False)
    close(from_torch(theirs)(x, mask=mh.causal()), expected)


def test_tokens_first_needs_a_transpose_and_one_text_needs_none():
    theirs = make(D_MODEL, HEADS)  # (tokens, batch, d_model)
    ours = from_torch(theirs)
    x = torch.randn(QUERIES, BATCH, D_MODEL)
    close(ours(x.transpose(0, 1)).transpose(0, 1), theirs(x, x, x)[0])
    close(ours(x[:, 0]), theirs(x[:, 0], x[:, 0], x[:, 0])[0])
    ends = torch.arange(QUERIES) > 4
    mask, _ = masks_from_torch(key_padding_mask=ends)
    one = x[:, 0]
    close(ours(one, mask=mask), theirs(one, one, one, key_padding_mask=ends)[0])


def test_gradients_are_those_of_the_module():
    theirs = make(D_MODEL, HEADS, batch_first=True, dtype=torch.float64)
    ours = from_torch(theirs)
    x = torch.randn(BATCH, QUERIES, D_MODEL, dtype=torch.float64)
    theirs(x, x, x)[0].square().sum().backward()
    ours(x).square().sum().backward()
    torch.testing.assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad)
    torch.testing.assert_close(ours.qkv.bias.grad, theirs.in_proj_bias.grad)
    torch.testing.assert_close(ours.out.weight.grad, theirs.out_proj.weight.grad)


@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES)
def test_dtype_training_dropout_and_what_is_trained_come_along(options):
    theirs = make(D_MODEL, HEADS, dropout=0.25, dtype=torch.bfloat16, **options)
    assert not from_torch(theirs).training
    ours = from_torch(theirs.train())
    assert ours.training
    assert ours.dropout == 0.25
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert all(p.requires_grad for p in ours.parameters())
    theirs.out_proj.weight.requires_grad_(False)
    with torch.no_grad():  # what is trained must not be read off a tensor made here
        frozen = [name for name, p in from_torch(theirs).named_parameters() if not p.requires_grad]
    assert frozen == ["out.weight"]


def test_weights_are_copied_and_no_random_number_is_drawn():
    theirs = make(D_MODEL, HEADS)
    state = torch.get_rng_state()
    ours = from_torch(theirs)
    assert torch.equal(state, torch.get_rng_state())
    ours.qkv.weight.data.zero_()
    ours.out.bias.data.zero_()
    assert theirs.in_proj_weight.all()
    assert theirs.out_proj.bias.all()


def test_a_module_without_storage_converts_too():
    ours = from_torch(nn.MultiheadAttention(D_MODEL, HEADS, device="meta"))
    assert {p.device.type for p in ours.parameters()} == {"meta"}
    assert {p.device.type for p in to_torch(ours).parameters()} == {"meta"}


@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES)
def test_there_and_back_is_the_same_state(options):
    theirs = make(D_MODEL, HEADS, dropout=0.25, **options)
    theirs.out_proj.weight.requires_grad_(False)
    back = to_torch(from_torch(theirs))
    assert back.batch_first
    assert not back.training
    assert back.dropout == 0.25
    assert list(back.state_dict()) == list(theirs.state_dict())
    for (name, ours), (_, expected) in zip(
        back.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert torch.equal(ours, expected), name
        assert ours.requires_grad == expected.requires_grad, name
    layer = from_torch(theirs)
    again = from_torch(to_torch(layer))
    assert again.extra_repr() == layer.extra_repr()
    for name, value in layer.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


LAYERS = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "one key head": {"num_kv_heads": 1},
    "context": {"d_context": D_CONTEXT},
    "context, grouped": {"d_context": D_CONTEXT, "num_kv_heads": 3},
    "context of its own size": {"d_context": 30, "num_kv_heads": 3},
    "no bias": {"bias": False},
    "bias out alone": {"bias": False, "out_bias": True},
    "bias in alone": {"out_bias": False},
    "the scale it has anyway": {"scale": 5**-0.5},
    "gate": {"head_gate": True},
    "trained gate": {"head_gate": "trained", "num_kv_heads": 2},
}


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_the_module_is_the_layer(options, learning):
    torch.manual_seed(2)
    layer = mh.MultiHeadAttention(30, 6, dtype=torch.float64, **options).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
        if options.get("head_gate") is True:
            layer.head_gate.normal_()
    module = to_torch(layer)
    assert type(module) is nn.MultiheadAttention
    x = torch.randn(BATCH, QUERIES, 30, dtype=torch.float64)
    context = torch.randn(BATCH, KEYS, layer.d_context or 30, dtype=torch.float64)
    with torch.set_grad_enabled(learning):  # without gradients the fast path runs
        close(module(x, context, context)[0], layer(x, context))
        if layer.d_context in (None, 30):
            ahead = ~torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
            own = None if layer.d_context is None else x  # a layer with d_context wants to be told
            close(module(x, x, x)[0], layer(x, own))
            close(module(x, x, x, attn_mask=ahead)[0], layer(x, own, mask=mh.causal()))


def test_a_bias_that_was_not_there_is_zero_and_stays_so():
    module = to_torch(mh.MultiHeadAttention(30, 6, bias=False, out_bias=True))
    assert not module.in_proj_bias.any()
    assert not module.in_proj_bias.requires_grad
    assert module.out_proj.bias.requires_grad


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"kdim": 5, "vdim": 7}, "kdim=5, vdim=7"),
        ({"vdim": 7}, "kdim=15, vdim=7"),
    ],
)
def test_what_a_module_does_beyond_the_layer_is_an_error(options, word):
    with pytest.raises(ValueError, match="and this module does more") as caught:
        from_torch(nn.MultiheadAttention(D_MODEL, HEADS, **options))
    assert word in str(caught.value)


def test_a_subclass_or_something_else_is_an_error():
    class Other(nn.MultiheadAttention):
        pass

    for module in (Other(D_MODEL, HEADS), nn.Linear(2, 2)):
        with pytest.raises(ValueError, match="itself") as caught:
            from_torch(module)
        assert type(module).__name__ in str(caught.value)


def test_a_projection_that_is_more_than_its_weight_is_an_error():
    theirs = nn.MultiheadAttention(D_MODEL, HEADS)
    nn.utils.parametrizations.weight_norm(theirs.out_proj)
    with pytest.raises(ValueError, match="out_proj must be a plain linear map"):
        from_torch(theirs)


def test_parts_that_become_one_must_be_alike():
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, kdim=D_CONTEXT, vdim=D_CONTEXT)
    theirs.k_proj_weight.requires_grad_(False)
    with pytest.raises(ValueError, match="k_proj_weight: .* requires_grad False"):
        from_torch(theirs)


def test_all_that_a_module_cannot_express_is_listed_at_once():
    options = {
        "head_dim": 4, "v_head_dim": 7, "d_out": 9, "scale": 0.3, "mask": mh.causal(),
        "rope": mh.rope(100.0), "alibi": True, "qk_norm": True, "softcap": 2.0, "sinks": True,
    }  # fmt: skip
    with pytest.raises(ValueError, match="cannot express") as caught:
        to_torch(mh.MultiHeadAttention(30, 6, **options))
    lines = str(caught.value).splitlines()[1:]
    for word in options:
        assert sum(line.strip().startswith(word) or f" {word} " in line for line in lines) >= 1, (
            word
        )
    assert len(lines) == len(options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("head_dim", 4), ("v_head_dim", 7), ("d_out", 9), ("scale", 0.3), ("mask", mh.causal()),
     ("rope", mh.rope(100.0)), ("alibi", True), ("qk_norm", True), ("softcap", 2.0),
     ("sinks", True)],
)  # fmt: skip
def test_each_thing_that_a_module_cannot_express_is_an_error(option, value):
    more = {"head_dim": 6} if option == "rope" else {}  # rope turns pairs
    with pytest.raises(ValueError, match=option):
        to_torch(mh.MultiHeadAttention(36, 6, **more, **{option: value}))


@pytest.mark.parametrize("layer", [None, nn.Linear(2, 2), nn.MultiheadAttention(4, 2)], ids=repr)
def test_what_is_no_layer_is_an_error(layer):
    kind = type(layer).__name__
    with pytest.raises(
        ValueError, match=rf"takes a multihead.MultiHeadAttention; build .*\n  layer: .*{kind}"
    ):
        to_torch(layer)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attn_mask": [[True]]}, r"attn_mask must be a tensor of .*; make it one.*\n  attn_mask list"),
        ({"key_padding_mask": [[True]]}, r"key_padding_mask must be a tensor .*\n  key_padding_mask list"),
        ({"attn_mask": torch.ones(3)}, r"attn_mask must be a tensor of \(queries, keys\) .*\n  attn_mask \(3,\)"),
        ({"attn_mask": torch.ones(1, 1, 3, 3)}, r"\n  attn_mask \(1, 1, 3, 3\)"),
        ({"key_padding_mask": torch.ones(1, 3, 3)}, r"\(keys\) or \(batch, keys\).*\n  key_padding_mask \(1, 3, 3\)"),
        ({"attn_mask": torch.ones(6, 5, 5), "num_heads": 0}, r"1 or more; give it .*\n  num_heads 0"),
        ({"attn_mask": torch.ones(5, 5), "num_heads": -1}, r"1 or more; .*\n  num_heads -1"),
        ({"num_heads": True}, r"\n  num_heads True"),
        ({"num_heads": "2"}, r"\n  num_heads '2'"),
        ({"num_heads": 2.0}, r"\n  num_heads 2.0"),
    ],
)  # fmt: skip
def test_what_no_module_takes_as_a_mask_is_an_error(given, said):
    with pytest.raises(ValueError, match=said):
        masks_from_torch(**given)


def test_masks_from_torch_says_what_it_needs():
    assert masks_from_torch() == (None, None)
    with pytest.raises(ValueError, match="give num_heads"):
        masks_from_torch(torch.zeros(6, 5, 5))
    with pytest.raises(ValueError, match="num_heads 4"):
        masks_from_torch(torch.zeros(6, 5, 5), num_heads=4)
    with pytest.raises(ValueError, match="key_padding_mask must be boolean"):
        masks_from_torch(key_padding_mask=torch.zeros(2, 5, dtype=torch.int64))


def test_a_query_that_may_see_nothing_is_nan_there_and_the_bias_here():
    theirs = make(D_MODEL, HEADS, batch_first=True)
    x = torch.randn(BATCH, QUERIES, D_MODEL)
    ignore = torch.zeros(QUERIES, QUERIES, dtype=torch.bool)
    ignore[3] = True
    mask, _ = masks_from_torch(ignore)
    expected, _ = theirs(x, x, x, attn_mask=ignore)  # with weights: the textbook's softmax
    ours = from_torch(theirs)(x, mask=mask)
    assert expected[:, 3].isnan().all()
    close(ours[:, 3], theirs.out_proj.bias.expand(BATCH, -1))
    others = [0, 1, 2, 4, 5, 6]
    close(ours[:, others], expected[:, others])
