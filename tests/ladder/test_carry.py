"""Weights carried onto a rung: copied, and asked with an x that fits them."""

import pytest
import torch

from multihead import ladder


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


@pytest.mark.parametrize("rung", sorted(ladder.RUNGS.keys() - {"scalar", "streaming"}))
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


@pytest.mark.parametrize(
    "weights", [{}, None, torch.nn.Linear(2, 2)], ids=["dict", "None", "Linear"]
)
def test_something_else_than_weights_is_said(weights):
    name = type(weights).__name__
    with pytest.raises(ValueError, match=rf"takes the Weights .*; make them .*\n  came {name}"):
        ladder.carry(weights, "split")
    with pytest.raises(ValueError, match="no rung .*; choose one of 'scalar'"):
        ladder.carry(ladder.Weights.random(6, 6, 2), weights)


@pytest.mark.parametrize("name", ["key", "value", "out", "query_bias", "out_bias"])
def test_weights_of_the_wrong_shape(name):
    shapes = {"query": (6, 5), "key": (6, 5), "value": (6, 5), "out": (6, 6)}
    shapes |= {name: (7,) if "bias" in name else (7, 5)}
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=rf"{name} must be \(6,.*\n  query \(6, 5\)  {name} \(7,"):
        ladder.Weights(num_heads=2, **tensors)
