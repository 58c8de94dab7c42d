"""The layer against its definition, written out with the same weights."""

import copy

import pytest
import torch
import zoo
from torch.nn.functional import linear

import multihead as mh
from multihead.attention import dense

BATCH, TOKENS, D_MODEL, HEADS, KV_HEADS, HEAD_DIM, V_DIM = 2, 7, 30, 6, 3, 10, 11


def by_definition(attn, x, context=None, *, mask=None, bias=None, positions=None):
    """What the layer says it does, step by step, through the definition of attention."""
    source = x if context is None else context
    sizes = (
        attn.num_heads * attn.head_dim,
        attn.num_kv_heads * attn.head_dim,
        attn.num_kv_heads * attn.v_head_dim,
    )
    if attn.d_context is None:
        weights = attn.qkv.weight.split(sizes)
        biases = [None] * 3 if attn.qkv.bias is None else attn.qkv.bias.split(sizes)
    else:
        weights = (attn.q.weight, *attn.kv.weight.split(sizes[1:]))
        biases = (attn.q.bias, *attn.kv.bias.split(sizes[1:]))
    heads = (attn.num_heads, attn.num_kv_heads, attn.num_kv_heads)
    q, k, v = (
        linear(t, w, b).unflatten(-1, (n, -1)).transpose(1, 2)
        for t, w, b, n in zip((x, source, source), weights, biases, heads, strict=True)
    )
    if attn.q_norm is not None:
        q, k = (
            t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6) * norm.weight
            for t, norm in ((q, attn.q_norm), (k, attn.k_norm))
        )
    if attn.rope is not None:
        q, k = attn.rope(q, positions), attn.rope(k, positions)
    every = [m for m in (attn.mask, mask) if m is not None]
    joined = every[0] & every[1] if len(every) == 2 else every[0] if every else None
    problem = zoo.ask(
        q, k, v, mask=joined, bias=attn.alibi if bias is None else bias, softcap=attn.softcap,
        sinks=attn.sinks, scale=attn.scale,
    )  # fmt: skip
    out = dense.run(problem).out
    if attn.head_gate is not None:
        out = out * attn.head_gate[:, None, None]
    return linear(out.transpose(1, 2).flatten(2), attn.out.weight, attn.out.bias)


VARIANTS = {
    "plain": {},
    "no_bias": {"bias": False},
    "out_bias_alone": {"bias": False, "out_bias": True},
    "grouped": {"num_kv_heads": KV_HEADS},
    "multi_query": {"num_kv_heads": 1},
    "head_dim": {"head_dim": HEAD_DIM},
    "v_head_dim": {"head_dim": HEAD_DIM, "v_head_dim": V_DIM},
    "d_out": {"d_out": 13},
    "causal": {"mask": mh.causal()},
    "rope": {"rope": mh.rope(100.0), "head_dim": HEAD_DIM},
    "rope_interleaved": {"rope": mh.rope(100.0, interleaved=True, dim=4), "head_dim": HEAD_DIM},
    "alibi": {"alibi": True, "mask": mh.causal()},
    "alibi_slopes": {"alibi": mh.alibi(torch.rand(HEADS))},
    "qk_norm": {"qk_norm": True, "rope": mh.rope(100.0), "head_dim": HEAD_DIM},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "scale": {"scale": 0.7},
    "gate": {"head_gate": True},
    "trained_gate": {"head_gate": "trained"},
    "all": {
        "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "v_head_dim": V_DIM, "d_out": 13,
        "mask": mh.causal() & mh.window(4), "rope": mh.rope(100.0), "alibi": True, "qk_norm": True,
        "softcap": 3.0, "sinks": True, "scale": 0.4, "head_gate": True,
    },
}  # fmt: skip
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def build(variant="plain", **more):
    torch.manual_seed(0)
    attn = mh.MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64, **VARIANTS[variant], **more)
    with torch.no_grad():  # nothing stays at 0 or 1, where a mistake could hide
        for parameter in attn.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
        if attn.head_gate is not None:
            attn.head_gate.copy_(torch.rand_like(attn.head_gate))
    return attn


def given(tokens=TOKENS, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, tokens, D_MODEL, generator=random, dtype=torch.float64)


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@every_variant
def test_self_attention(variant):
    attn, x = build(variant), given()
    same(attn(x), by_definition(attn, x))


@every_variant
def test_gradients(variant):
    attn, x = build(variant), given().requires_grad_()
    leaves = [x, *attn.parameters()]
    up = torch.randn_like(attn(x))
    found = torch.autograd.grad(attn(x), leaves, up)
    expected = torch.autograd.grad(by_definition(attn, x), leaves, up)
    for one, two in zip(found, expected, strict=True):
        same(one, two)


@pytest.mark.parametrize("backend", zoo.ON_CPU)
def test_gates_and_pruning_on_every_backend(backend):
    attn, x = build("causal", backend=backend), given()
    attn.head_gate = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    same(attn(x), by_definition(attn, x))
    whole = attn(x)
    attn.prune_heads([1, 4])
    same(attn(x), whole)
    assert attn.num_heads == 4


@pytest.mark.parametrize(
    ("variant", "heads"),
    [
        ("plain", [0]), ("grouped", [0, 1]), ("grouped", [0, 3, 4]), ("grouped", [0, 2, 4]),
        ("multi_query", [5]), ("v_head_dim", [1, 2, 3, 4, 5]), ("sinks", [2]), ("all", [0, 2, 3]),
        ("alibi", [3]), ("trained_gate", [0, 5]),
    ],
)  # fmt: skip
def test_a_pruned_head_is_a_gate_of_zero(variant, heads):
    """Whole groups, uneven groups, and everything that a head carries with it."""
    attn, x = build(variant), given()
    closed = copy.deepcopy(attn)
    gate = (
        torch.ones(HEADS, dtype=torch.float64)
        if attn.head_gate is None
        else attn.head_gate.detach().clone()
    )
    gate[heads] = 0.0
    closed.head_gate = torch.nn.Parameter(gate)
    attn.prune_heads(heads)
    same(attn(x), closed(x))
    assert attn.num_heads == HEADS - len(heads)
    again = mh.MultiHeadAttention(
        D_MODEL, attn.num_heads, dtype=torch.float64,
        **{**VARIANTS[variant], "num_kv_heads": attn.num_kv_heads, "head_dim": attn.head_dim},
    )  # fmt: skip
    if variant != "alibi_slopes":
        again.load_state_dict(attn.state_dict())


@pytest.mark.parametrize("context_size", [None, 17])
@pytest.mark.parametrize("variant", ["plain", "grouped", "v_head_dim", "sinks", "softcap"])
def test_cross_attention(variant, context_size):
    attn = build(variant, d_context=context_size)
    x, context = given(), torch.randn(BATCH, 5, context_size or D_MODEL, dtype=torch.float64)
    same(attn(x, context), by_definition(attn, x, context))
    same(attn(x[0], context[0]), by_definition(attn, x, context)[0])
    allowed = torch.rand(TOKENS, 5) > 0.3
    masked = by_definition(attn, x, context, mask=mh.dense(allowed))
    same(attn(x, context, mask=allowed), masked)


def test_masks_and_biases_join():
    attn, x = build("causal"), given()
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    same(attn(x, mask=mh.documents(ids)), by_definition(attn, x, mask=mh.documents(ids)))
    bias = torch.randn(TOKENS, TOKENS, dtype=torch.float64)
    same(attn(x, bias=bias), by_definition(attn, x, bias=bias))
    slanted = build("alibi")
    place = torch.arange(TOKENS)
    both = bias + slanted.alibi.values(place, place)
    same(slanted(x, bias=bias), by_definition(slanted, x, bias=both))


def test_positions_of_packed_texts():
    """Two texts in one row, each with positions from 0, are the two texts alone."""
    attn, x = build("rope", mask=mh.causal()), given()
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3])
    packed = attn(x, mask=mh.documents(ids), positions=positions)
    same(packed, torch.cat([attn(x[:, :3]), attn(x[:, 3:])], dim=1))
    rows = positions.expand(BATCH, -1)
    same(attn(x, mask=mh.documents(ids), positions=rows), packed)


def test_dropout_in_training_only():
    attn, x = build("causal", dropout=0.5), given()
    attn.eval()
    same(attn(x), by_definition(attn, x))
    attn.train()
    assert not torch.allclose(attn(x), by_definition(attn, x), atol=0.1)


@every_variant
def test_state_dict_and_deep_copies(variant):
    attn, x = build(variant), given()
    fresh = mh.MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64, **VARIANTS[variant])
    fresh.load_state_dict(attn.state_dict())
    same(fresh(x), attn(x))
    same(copy.deepcopy(attn)(x), attn(x))


@every_variant
def test_meta_device_then_weights(variant):
    if "alibi" in variant or variant == "all":
        hollow = mh.MultiHeadAttention(D_MODEL, HEADS, device="meta", **VARIANTS[variant])
    else:
        with torch.device("meta"):
            hollow = mh.MultiHeadAttention(D_MODEL, HEADS, **VARIANTS[variant])
    assert hollow(torch.empty(BATCH, TOKENS, D_MODEL, device="meta")).shape[:2] == (BATCH, TOKENS)
    attn, x = build(variant).float(), given().float()
    hollow.to_empty(device="cpu").load_state_dict(attn.state_dict())
    torch.testing.assert_close(hollow(x), attn(x))


@pytest.mark.parametrize("variant", ["causal", "grouped", "rope", "all"])
def test_compile_export_and_autocast(variant):
    attn, x = build(variant).float(), given().float()
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), attn(x))
    up = torch.randn_like(attn(x))
    found = torch.autograd.grad(compiled(x), list(attn.parameters()), up)
    wanted = torch.autograd.grad(attn(x), list(attn.parameters()), up)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    program = torch.export.export(attn, (x,))
    torch.testing.assert_close(program.module()(x), attn(x))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attn(x)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), attn(x), rtol=0.1, atol=0.25)
    half = copy.deepcopy(attn).bfloat16()
    assert half(x.bfloat16()).dtype == torch.bfloat16


def test_printed_with_what_matters():
    assert "MultiHeadAttention(\n  30, 6, num_kv_heads=6, head_dim=5, mask=causal()" in repr(
        build("causal")
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: mh.MultiHeadAttention(10, 3), r"a d_model that num_heads divides.\n  d_model 10  num_heads 3"),
        (lambda: mh.MultiHeadAttention(12, 4, num_kv_heads=3), "num_heads must be a multiple of num_kv_heads"),
        (lambda: build()(torch.randn(2, 3, 5)), r"x must be \(batch, tokens, 30\) .* but \(2, 3, 5\) came"),
        (lambda: build()(torch.randn(30)), "x must be"),
        (lambda: build()(given(), torch.randn(2, 4, 7)), r"30 features, .*\n  x \(2, 7, 30\)  context \(2, 4, 7\)"),
        (lambda: build("rope")(given(), given()), "build a layer without rope"),
        (lambda: build()(given(), positions=torch.arange(7)), "positions place tokens by rope"),
        (lambda: build().prune_heads([6]), r"heads from 0 to 5 and must leave one, but \[6\] came"),
        (lambda: build().prune_heads(range(6)), "must leave one"),
        (lambda: mh.MultiHeadAttention(12, 0), "num_heads must be a whole number from 1 on, but 0 came"),
        (lambda: mh.MultiHeadAttention(12, 4, v_head_dim=0), "v_head_dim must be a whole number from 1"),
        (lambda: mh.MultiHeadAttention(12, 4, head_gate="foo"), "head_gate must be True, False or 'trained'"),
        (lambda: mh.MultiHeadAttention(12, 4, rope=10_000), "rope must be mh.rope"),
        (lambda: mh.MultiHeadAttention(12, 4, rope=mh.rope()), "even"),
        (lambda: mh.MultiHeadAttention(12, 4, mask="causal"), "mask must be mh.causal"),
        (lambda: mh.MultiHeadAttention(12, 4, alibi=torch.ones(4)), "alibi must be True or"),
        (lambda: mh.MultiHeadAttention(12, 4, dropout=2.0), "dropout must be at least 0"),
        (lambda: build()([1.0]), "x must be a torch.Tensor, but a list came"),
        (lambda: build()(given().float()), "x is torch.float32 and the layer torch.float64; convert"),
        (lambda: build()(given(), cache="c"), "cache must come from new_cache"),
        (lambda: build("causal")(given(), mask="c"), "mask must be a multihead mask"),
        (lambda: build("alibi")(given(), bias=torch.ones(7, 7).bool()), "bias must be .* torch.bool came"),
        (lambda: build(d_context=30)(given()), "attends to a context of 30 features, but none came"),
        (lambda: build().prune_heads([1.5]), "takes whole numbers"),
        (lambda: build().prune_heads([True]), "takes whole numbers"),
        (lambda: build(d_context=3)(given()), "attends to a context of 3 features, but none came"),
    ],
)  # fmt: skip
def test_bad_input(wrong, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        wrong()


@pytest.mark.parametrize("shape", [(7, 16), (2, 7, 16)])
def test_a_hook_runs_once_and_gets_the_output_whether_or_not_it_observes(shape):
    torch.manual_seed(0)
    attn, x, seen = mh.MultiHeadAttention(16, 4), torch.randn(shape), []
    plain = attn(x)
    attn.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape))
    attn.register_forward_hook(lambda module, given, out: 2 * out)
    assert torch.allclose(attn(x), 2 * plain)
    assert torch.allclose(attn.observe(x)[0], 2 * plain)
    assert seen == [x.shape, x.shape]
