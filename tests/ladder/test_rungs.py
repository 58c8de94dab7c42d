"""What every rung has: that it stays a page to read, its errors, its dropout."""

import ast
from pathlib import Path

import pytest
import torch

from multihead import ladder
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


# The cache of the scalar rung


def identities(width):
    same = [[float(i == j) for j in range(width)] for i in range(width)]
    return {f"layer0.attn_w{letter}": same for letter in "qkvo"}


def test_the_scalar_cache_grows_by_one_key_and_value_a_token():
    keys, values = [], []
    for count in range(1, 4):
        output, context = scalar.attend_one([1.0, 2.0], identities(2), keys, values, 2)
        assert len(keys) == len(values) == count
        assert output == context == [1.0, 2.0]


def test_a_refused_token_leaves_the_scalar_cache_alone():
    keys, values = [], []
    with pytest.raises(ValueError, match="num_heads"):
        scalar.attend_one([1.0] * 6, identities(6), keys, values, 4)
    assert keys == values == []
