"""Each rung alone: its errors, its dropout, its edges, and that it stays a page to read."""

import ast
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import multihead as mh
from multihead import ladder
from multihead.attention import answer, pose
from multihead.ladder import scalar

FOLDER = Path(ladder.__file__).parent
FILES = ["scalar", "one_head", "stacked", "split", "streaming", "fused"]

MODULES = {
    "one_head": lambda dropout: ladder.CausalAttention(5, 6, 7, dropout),
    "stacked": lambda dropout: ladder.MultiHeadAttentionWrapper(5, 3, 7, dropout, 2),
    "split": lambda dropout: ladder.MultiHeadAttn(5, 6, 7, dropout, 2),
    "fused": lambda dropout: ladder.FusedMultiHeadAttn(5, 6, dropout, 2),
}


# To read


@pytest.mark.parametrize("file", FILES)
def test_a_rung_is_a_page_that_says_what_it_adds_costs_and_lacks(file):
    text = (FOLDER / f"{file}.py").read_text("utf-8")
    assert len(text.splitlines()) < 100
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert doc.startswith(f"Rung {FILES.index(file) + 1}: ")
    starts = [line.split()[0] for line in doc.splitlines() if line[:1] not in ("", " ")]
    assert starts == ["Rung", "Adds", "Cost", "Limit"]
    cost = doc[doc.index("\nCost ") : doc.index("\nLimit ")]
    assert "O(" in cost
    assert "time" in cost
    assert "memory" in cost


def test_the_table_has_six_rungs_in_order():
    numbers = [rung.number for rung in ladder.RUNGS.values()]
    assert sorted(set(numbers)) == [1, 2, 3, 4, 5, 6]
    assert numbers == sorted(numbers)
    assert set(FILES) == ladder.RUNGS.keys() - {"full"}  # the full one lives in split.py


def imports(file):
    tree = ast.parse((FOLDER / f"{file}.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_the_scalar_rung_imports_nothing_but_math():
    assert list(imports("scalar")) == ["math"]


def test_the_streaming_rung_imports_nothing_but_numpy():
    assert set(imports("streaming")) == {"numpy", "numpy.typing"}


# Errors


@pytest.mark.parametrize("rung", ["one_head", "stacked", "split"])
def test_more_tokens_than_context_length(rung):
    module = MODULES[rung](0.0)
    assert module(torch.randn(2, 7, 5)).shape == (2, 7, 6)
    with pytest.raises(ValueError, match="longer context_length.\n  tokens 8  context_length 7"):
        module(torch.randn(2, 8, 5))


def test_the_fused_rung_has_no_such_end():
    assert MODULES["fused"](0.0)(torch.randn(2, 300, 5)).shape == (2, 300, 6)


@pytest.mark.parametrize("num_heads", [0, -2, 4])
@pytest.mark.parametrize(
    "build",
    [
        lambda heads: ladder.MultiHeadAttn(5, 6, 7, 0.0, heads),
        lambda heads: ladder.FullMultiHeadAttention(6, heads),
        lambda heads: ladder.FusedMultiHeadAttn(5, 6, 0.0, heads),
        lambda heads: ladder.Weights.random(5, 6, heads),
        lambda heads: scalar.attend_all([[1.0] * 6], identities(6), heads),
    ],
    ids=["split", "full", "fused", "weights", "scalar"],
)
def test_heads_that_do_not_divide(build, num_heads):
    message = rf"at least 1 and divide .*; change one of them.\n  .* 6  num_heads {num_heads}$"
    with pytest.raises(ValueError, match=message):
        build(num_heads)


@pytest.mark.parametrize("num_heads", [0, -1])
def test_no_stacked_heads(num_heads):
    with pytest.raises(ValueError, match=f"at least 1; ask for .*\n  num_heads {num_heads}$"):
        ladder.MultiHeadAttentionWrapper(5, 6, 7, 0.0, num_heads)


def test_a_refused_token_leaves_the_scalar_cache_alone():
    keys, values = [], []
    with pytest.raises(ValueError, match="num_heads"):
        scalar.attend_one([1.0] * 6, identities(6), keys, values, 4)
    assert keys == values == []


def test_what_does_not_fit_a_rung_is_said():
    biased = ladder.Weights.random(5, 6, 2, bias=True)
    with pytest.raises(ValueError, match=r"no biases; .*\n  came with query_bias, key_bias"):
        ladder.carry(biased, "scalar")
    with pytest.raises(ValueError, match=r"one width, .*\n  d_in 5  d_out 6"):
        ladder.carry(biased, "full")
    with pytest.raises(ValueError, match=r"no rung 'seventh'; choose one of 'scalar', "):
        ladder.carry(biased, "seventh")
    with pytest.raises(ValueError, match="tokens 4  context_length 3"):
        ladder.carry(biased, "split", context_length=3)(torch.randn(1, 4, 5).double())


@pytest.mark.parametrize("name", ["key", "value", "out", "query_bias", "out_bias"])
def test_weights_of_the_wrong_shape(name):
    shapes = {"query": (6, 5), "key": (6, 5), "value": (6, 5), "out": (6, 6)}
    shapes |= {name: (7,) if "bias" in name else (7, 5)}
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=rf"{name} must be \(6,.*\n  query \(6, 5\)  {name} \(7,"):
        ladder.Weights(num_heads=2, **tensors)


# Carrying


@pytest.mark.parametrize("rung", ladder.RUNGS)
def test_carrying_copies_and_draws_no_numbers(rung):
    weights = ladder.Weights.random(6, 6, 2)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    before = torch.get_rng_state()
    carried = ladder.carry(weights, rung)
    assert torch.equal(torch.get_rng_state(), before)
    found = carried(x)
    for matrix in (weights.query, weights.key, weights.value, weights.out):
        matrix.zero_()
    assert torch.equal(carried(x), found)


def test_streaming_copies_biases_too():
    weights = ladder.Weights.random(6, 6, 2, bias=True)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    carried = ladder.carry(weights, "streaming")
    found = carried(x)
    for bias in weights.biases.values():
        bias.zero_()
    assert torch.equal(carried(x), found)


@pytest.mark.parametrize("rung", ladder.RUNGS)
def test_one_text_is_a_batch_of_one(rung):
    carried = ladder.carry(ladder.Weights.random(6, 6, 2), rung)
    x = torch.randn(7, 6, dtype=torch.float64)
    assert carried(x).shape == (7, 6)
    torch.testing.assert_close(carried(x), carried(x[None])[0], rtol=0, atol=0)
    if carried.output is not None:
        torch.testing.assert_close(carried.output(x), carried.output(x[None])[0], rtol=0, atol=0)


@pytest.mark.parametrize("rung", ladder.RUNGS)
@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.zeros(2, 3, 6), r"dtype and the device .*; convert it.*\n  x torch.float32 on cpu  weights torch.float64 on cpu"),
        (torch.zeros(2, 3, 6, dtype=torch.float64, device="meta"), r"dtype and the device .*\n  x torch.float64 on meta  weights torch.float64 on cpu"),
        (torch.zeros(6, dtype=torch.float64), r"x must be \(tokens, d_in\) or .*; reshape it.*\n  x \(6,\)  d_in 6"),
        (torch.zeros(1, 1, 3, 6, dtype=torch.float64), r"x must be \(tokens, d_in\) or .*\n  x \(1, 1, 3, 6\)  d_in 6"),
        (torch.zeros(2, 3, 5, dtype=torch.float64), r"x must be \(tokens, d_in\) or .*\n  x \(2, 3, 5\)  d_in 6"),
        ([[1.0] * 6], r"x must be a tensor; .*\n  came list"),
    ],
    ids=["dtype", "device", "one axis", "four axes", "width", "list"],
)  # fmt: skip
def test_an_x_that_does_not_fit_is_said(rung, x, said):
    carried = ladder.carry(ladder.Weights.random(6, 6, 2), rung)
    for call in (carried, carried.output):
        if call is not None:
            with pytest.raises(ValueError, match=said):
                call(x)


@pytest.mark.parametrize("rung", ladder.RUNGS.keys() - {"scalar", "streaming"})
def test_a_module_that_was_moved_takes_what_it_has_become(rung):
    carried = ladder.carry(ladder.Weights.random(6, 6, 2), rung)
    for module in carried.rung if isinstance(carried.rung, list) else [carried.rung]:
        module.float()
    assert carried(torch.randn(3, 6)).dtype == torch.float32
    with pytest.raises(ValueError, match="weights torch.float32"):
        carried(torch.randn(3, 6).double())


def test_streaming_takes_a_dtype_that_numpy_does_not_know():
    weights = ladder.Weights.random(6, 6, 2)
    matrices = (weights.query, weights.key, weights.value, weights.out)
    half = ladder.Weights(*(t.bfloat16() for t in matrices), 2)
    assert ladder.carry(half, "streaming")(torch.randn(3, 6).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "weights", [{}, None, torch.nn.Linear(2, 2)], ids=["dict", "None", "Linear"]
)
def test_something_else_than_weights_is_said(weights):
    name = type(weights).__name__
    with pytest.raises(ValueError, match=rf"takes the Weights .*; make them .*\n  came {name}"):
        ladder.carry(weights, "split")
    with pytest.raises(ValueError, match="no rung .*; choose one of 'scalar'"):
        ladder.carry(ladder.Weights.random(6, 6, 2), weights)


@pytest.mark.parametrize("rung", ladder.RUNGS)
def test_out_has_the_dtype_that_came(rung):
    weights = ladder.Weights.random(6, 6, 2)
    single = ladder.Weights(
        *(t.float() for t in (weights.query, weights.key, weights.value, weights.out)), 2
    )
    x = torch.randn(2, 3, 6)
    found = ladder.carry(single, rung)(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, ladder.carry(weights, rung)(x.double()).float())


# Dropout


@pytest.mark.parametrize("rung", MODULES)
def test_dropout_in_training_only(rung):
    torch.manual_seed(0)
    plain, dropping = MODULES[rung](0.0), MODULES[rung](0.5)
    dropping.load_state_dict(plain.state_dict())
    x = torch.randn(2, 7, 5)
    expected = plain(x)
    assert not torch.equal(dropping.train()(x), dropping(x))
    assert torch.equal(dropping.eval()(x), expected)
    many = x.repeat(4000, 1, 1)  # every row of a batch drops its own weights
    mean = dropping.train()(many).unflatten(0, (4000, 2)).mean(0)
    torch.testing.assert_close(mean, expected, rtol=0, atol=0.08)  # what is kept makes up for it


@pytest.mark.parametrize("rung", ["one_head", "split"])
def test_dropout_drops_weights_whole(rung):
    """With one visible key and dropout 0.5, a context is 0 or twice the value."""
    module = MODULES[rung](0.5)
    if rung == "split":
        torch.nn.init.eye_(module.out_proj.weight)
        torch.nn.init.zeros_(module.out_proj.bias)
    x = torch.randn(64, 1, 5)
    ratio = module(x) / module.W_value(x)
    assert ((ratio.abs() < 1e-6) | ((ratio - 2).abs() < 1e-5)).all()
    assert 0.2 < (ratio > 1).float().mean() < 0.8


# The full one


def full_problem():
    torch.manual_seed(0)
    full = ladder.FullMultiHeadAttention(15, 3).double()
    query = torch.randn(2, 5, 15, dtype=torch.float64, requires_grad=True)
    context = torch.randn(2, 7, 15, dtype=torch.float64, requires_grad=True)
    return full, query, context


def test_full_gives_output_and_the_weights_of_each_head():
    full, query, context = full_problem()
    output, weights = full(query, context, context)
    assert output.shape == (2, 5, 15)
    assert weights.shape == (2, 3, 5, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5).double())
    theirs = torch.nn.MultiheadAttention(15, 3, batch_first=True).double()
    theirs.in_proj_weight.data = torch.cat([full.W_q.weight, full.W_k.weight, full.W_v.weight])
    theirs.in_proj_bias.data = torch.cat([full.W_q.bias, full.W_k.bias, full.W_v.bias])
    theirs.out_proj.load_state_dict(full.W_o.state_dict())
    expected = theirs(query, context, context, average_attn_weights=False)
    for found, other in zip((output, weights), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (7,), (2, 1, 1, 7), (2, 3, 5, 7), (3, 5, 1)], ids=str)
def test_full_where_zero_means_may_not_attend(shape, dtype):
    full, query, context = full_problem()
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6
    output, weights = full(query, context, context, mask=mask.to(dtype))
    q, k, v = (
        layer(t).unflatten(-1, (3, 5)).transpose(1, 2)
        for layer, t in ((full.W_q, query), (full.W_k, context), (full.W_v, context))
    )
    found = mh.attend(q, k, v, mask=mask, backend="dense").transpose(1, 2).flatten(-2)
    torch.testing.assert_close(output, full.W_o(found), rtol=0, atol=1e-12)
    assert weights[~mask.expand_as(weights)].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_full_rows_that_may_see_nothing(dtype):
    full, query, context = full_problem()
    full.to(dtype)
    query, context = (t.detach().to(dtype).requires_grad_() for t in (query, context))
    mask = torch.ones(5, 7)
    mask[2] = 0
    output, weights = full(query, context, context, mask)
    assert weights[:, :, 2].eq(0).all()
    assert torch.equal(output[:, 2], full.W_o.bias.expand(2, -1))
    assert weights[:, :, [0, 1, 3, 4]].ne(0).all()
    with torch.autograd.set_detect_anomaly(True):  # not a NaN on the way either
        output.sum().backward()
    assert query.grad[:, 2].eq(0).all()
    assert query.grad[:, 1].ne(0).all()
    assert all(p.grad.isfinite().all() for p in (query, context, *full.parameters()))


# Scalar and streaming


def identities(width):
    same = [[float(i == j) for j in range(width)] for i in range(width)]
    return {f"layer0.attn_w{letter}": same for letter in "qkvo"}


def test_the_scalar_cache_grows_by_one_key_and_value_a_token():
    keys, values = [], []
    for count in range(1, 4):
        output, context = scalar.attend_one([1.0, 2.0], identities(2), keys, values, 2)
        assert len(keys) == len(values) == count
        assert output == context == [1.0, 2.0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tile", [1, 2, 5, 64])
@pytest.mark.parametrize(("queries", "keys"), [(11, 11), (3, 11), (11, 3), (1, 7), (7, 1)])
def test_streaming_is_the_dense_definition(queries, keys, tile, causal):
    """Out and lse, for any tile; with more queries than keys the first may see nothing."""
    random = np.random.default_rng(0)
    query, key = random.normal(size=(3, queries, 5)), random.normal(size=(3, keys, 5))
    value = random.normal(size=(3, keys, 2))
    out, lse = ladder.stream(query, key, value, causal=causal, tile=tile)
    tensors = (torch.from_numpy(array)[None] for array in (query, key, value))
    problem = pose(
        *tensors, mask=mh.causal() if causal else None, bias=None, scale=None, softcap=None,
        sinks=None, dropout=0.0, offset=None,
    )  # fmt: skip
    expected = answer(problem, "dense")
    np.testing.assert_allclose(out, expected.out[0].numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, expected.lse[0].numpy(), rtol=0, atol=1e-12)
    if causal and queries > keys:
        assert np.all(lse[:, : queries - keys] == -np.inf)


def test_lse_brings_any_weight_back():
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 7, 3)), random.normal(size=(2, 7, 3))
    value = np.tile(np.eye(7), (2, 1, 1))  # these values make the context the weights themselves
    out, lse = ladder.stream(query, key, value, tile=3)
    scores = query @ key.swapaxes(1, 2) / math.sqrt(3)
    weights = np.tril(np.exp(scores - lse[..., None]))
    np.testing.assert_allclose(weights, out, rtol=0, atol=1e-12)


def test_streaming_never_holds_the_matrix():
    """One head of 4,096 tokens: its matrix is 134 MB, and the most held here is below 4 MB."""
    query = np.random.default_rng(0).normal(size=(1, 4096, 8))
    tracemalloc.start()
    ladder.stream(query, query, query)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4e6


def test_streaming_leaves_tiles_of_the_future_out():
    """A NaN there would reach every row that touched it, since 0 · NaN is NaN."""
    value = np.ones((1, 6, 1))
    value[:, 4:] = np.nan
    out, _ = ladder.stream(np.zeros((1, 6, 2)), np.zeros((1, 6, 2)), value, tile=2)
    assert np.all(out[:, :4] == 1)
    assert np.all(np.isnan(out[:, 4:]))


def test_a_tile_of_nothing():
    with pytest.raises(ValueError, match="at least 1 token; .*\n  tile 0"):
        ladder.stream(*(np.zeros((1, 2, 3)) for _ in range(3)), tile=0)
