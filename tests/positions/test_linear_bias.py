"""Alibi: against its definition, against the paper's slopes, and against what users do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from multihead.positions import alibi


@settings(max_examples=50)
@given(data=st.data())
def test_alibi_is_minus_slope_times_distance(data):
    index = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)
    query, key = data.draw(index), data.draw(index)
    slopes = data.draw(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=3))
    offset = data.draw(st.integers(-100, 10**6))
    offsets = [offset, offset + 3]
    bias = alibi(torch.tensor(slopes, dtype=torch.float64))
    expected = torch.tensor(
        [[[[-s * abs(i + p - j) for j in key] for i in query] for s in slopes] for p in offsets],
        dtype=torch.float64,
    )
    one = bias.values(torch.tensor(query), torch.tensor(key), offset)
    rows = bias.values(torch.tensor(query), torch.tensor(key), torch.tensor(offsets))
    assert one.shape == (1, len(slopes), len(query), len(key))
    assert torch.equal(one, expected[:1])
    assert torch.equal(rows, expected)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 12, 16, 25, 71, 112])
def test_alibi_slopes_of_the_paper(n):
    def of_the_paper(n):  # as its authors wrote it
        if math.log2(n).is_integer():
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        closest = 2 ** math.floor(math.log2(n))
        return of_the_paper(closest) + of_the_paper(2 * closest)[0::2][: n - closest]

    assert_close(alibi(n).slopes, torch.tensor(of_the_paper(n)))


def test_alibi_distances_are_exact_where_float32_positions_are_not():
    far = 2**24
    query, key = torch.tensor([far + 1]), torch.tensor([far, far + 1, far + 4])
    assert alibi([1.0]).values(query, key).flatten().tolist() == [-1.0, 0.0, -3.0]


def test_alibi_passes_gradients_to_its_slopes():
    slopes = torch.tensor([0.5, 0.25, 2.0], dtype=torch.float64, requires_grad=True)
    query, key = torch.arange(2), torch.arange(5)
    values = lambda slopes: alibi(slopes).values(query, key, torch.tensor([1, 3]))  # noqa: E731
    assert torch.autograd.gradcheck(values, (slopes,))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_alibi_values_are_wide(dtype, wide):
    bias = alibi(torch.tensor([0.1, 0.2], dtype=dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = bias.values(torch.arange(3), torch.arange(7).int())
    assert values.dtype == wide
    assert torch.equal(values[0, 1, 0, 5], bias.slopes[1].to(wide) * -5)


def test_alibi_compiles_whole():
    torch._dynamo.reset()

    def bias(slopes, query, key, offset):
        return alibi(slopes).values(query, key, offset)

    compiled = torch.compile(bias, fullgraph=True, backend="eager", dynamic=True)
    for queries, keys in [(2, 5), (3, 7)]:
        for offset in (keys - queries, torch.arange(2)):
            asked = (torch.tensor([0.5, 0.1]), torch.arange(queries), torch.arange(keys), offset)
            assert torch.equal(compiled(*asked), bias(*asked))


def test_alibi_compares_by_value_and_prints_itself():
    a, b = alibi([0.5, 0.25]), alibi(torch.tensor([0.5, 0.25]))
    assert a == b
    assert hash(a) == hash(b)
    assert a == a.to("cpu")
    assert a not in (alibi([0.5, 0.125]), alibi([0.5]), alibi(b.slopes.double()), 0.5)
    assert a != alibi(b.slopes.to("meta"))
    assert repr(a) == "alibi([0.5, 0.25])"
    assert repr(alibi(torch.tensor([0.1], requires_grad=True))) == "alibi([0.1])"
    assert repr(alibi(12)) == "alibi(<12 slopes>)"


def test_alibi_moves():
    assert alibi(3).to("meta").slopes.device.type == "meta"
    query = torch.arange(2, device="meta")
    assert alibi(3).values(query, query, torch.tensor([1, 2])).shape == (2, 3, 2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: alibi(3).check(8),
            r"alibi has 3 slopes but query has 8 heads; give .*\n  alibi\(",
        ),
        (lambda: alibi(0), "alibi needs 1 head or more; give their number or slopes.\n  got 0"),
        (lambda: alibi(torch.ones(2, 2)), r"slopes must be floating \(heads,\); .*\n.* \(2, 2\)"),
        (lambda: alibi(torch.tensor([1, 2])), r"slopes must be floating .*\n  slopes torch.int64"),
        (lambda: alibi(0.5), "slopes must be floating"),
    ],
)
def test_bad_slopes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_right_slopes_are_accepted():
    alibi(8).check(8)
