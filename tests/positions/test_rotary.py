"""Rope: against its definition, against numbers of more digits, and against what users do."""

import math

import numpy as np
import pytest
import torch
from heads import BATCH, DIM, HEADS, TOKENS, heads
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers.models.gptj import modeling_gptj

from multihead.positions import linear, llama3, ntk, rope, rotate, yarn

ROPES = [
    rope(),
    rope(500_000.0, interleaved=True),
    rope(dim=6),
    rope(100, dim=10, interleaved=True),
    rope(scaling=linear(4)),
    rope(scaling=ntk(2.5)),
    rope(1_000_000, scaling=yarn(4, original_length=32_768)),
    rope(500_000, scaling=llama3(8)),
]
each_rope = pytest.mark.parametrize("turn", ROPES, ids=repr)


# ---- what it must keep ---------------------------------------------------------------------------


def test_definition_in_scalars():
    """Each pair times e^(iθp), one complex number at a time."""
    x, base, half = heads(), 50.0, DIM // 2
    out, mixed = rope(base)(x), rope(base, interleaved=True)(x)
    for b, h, t, i in np.ndindex(BATCH, HEADS, TOKENS, half):
        turn = complex(math.cos(t * base ** (-i / half)), math.sin(t * base ** (-i / half)))
        split = complex(x[b, h, t, i], x[b, h, t, i + half]) * turn
        assert complex(out[b, h, t, i], out[b, h, t, i + half]) == pytest.approx(split)
        near = complex(x[b, h, t, 2 * i], x[b, h, t, 2 * i + 1]) * turn
        assert complex(mixed[b, h, t, 2 * i], mixed[b, h, t, 2 * i + 1]) == pytest.approx(near)


@pytest.mark.parametrize("dim", [DIM, 6])
def test_interleaved_rotation_is_that_of_gptj(dim):
    x = heads(dtype=torch.float32)
    sin, cos = modeling_gptj.create_sinusoidal_positions(TOKENS, dim)[None].chunk(2, dim=-1)
    turned = modeling_gptj.apply_rotary_pos_emb(x[..., :dim].transpose(1, 2), sin, cos)
    expected = torch.cat((turned.transpose(1, 2), x[..., dim:]), dim=-1)
    assert_close(rope(dim=dim, interleaved=True)(x), expected, rtol=1e-6, atol=1e-6)


@each_rope
@settings(max_examples=15)
@given(offset=st.integers(0, 10**6), seed=st.integers(0, 999))
def test_norms_are_kept(turn, offset, seed):
    x = heads(seed=seed)
    amplitude = turn.scaling.amplitude if turn.scaling else 1.0
    dim = turn.dim or DIM
    out = turn(x, offset=offset)
    assert_close(out[..., :dim].norm(dim=-1), amplitude * x[..., :dim].norm(dim=-1))
    assert torch.equal(out[..., dim:], x[..., dim:])


@each_rope
@settings(max_examples=15)
@given(i=st.integers(0, 10**5), j=st.integers(0, 10**5), shift=st.integers(-(10**5), 10**5))
def test_products_depend_on_the_distance_alone(turn, i, j, shift):
    q, k = heads(1, HEADS, 1, DIM, seed=1), heads(1, HEADS, 1, DIM, seed=2)

    def product(i, j):
        return (turn(q, offset=i) * turn(k, offset=j)).sum(-1)

    assert_close(product(i, j), product(i + shift, j + shift), rtol=1e-7, atol=1e-7)
    if abs(i - j) % 1000 not in (0, 1):  # and on it they do depend
        assert not torch.allclose(product(i, j), product(i, j + 1), rtol=1e-7, atol=1e-7)


@each_rope
@settings(max_examples=15)
@given(offset=st.integers(0, 10**6), tokens=st.integers(1, 7), before=st.integers(0, 5))
def test_positions_given_or_counted_agree(turn, offset, tokens, before):
    longer = heads(BATCH, HEADS, before + tokens, DIM)
    x = longer[:, :, before:]
    expected = turn(longer, offset=offset)[:, :, before:]
    counted = turn(x, offset=offset + before)
    positions = torch.arange(tokens) + offset + before
    assert torch.equal(counted, expected)
    assert torch.equal(turn(x, positions), expected)
    assert torch.equal(turn(x, positions.int().expand(BATCH, tokens)), expected)
    assert torch.equal(turn(x, positions[None]), expected)


@each_rope
def test_each_row_of_a_batch_has_its_own_offset(turn):
    x, offsets = heads(), torch.tensor([11, 4])
    rows = [turn(x[b : b + 1], offset=int(offsets[b])) for b in range(BATCH)]
    assert torch.equal(turn(x, offset=offsets), torch.cat(rows))
    assert torch.equal(turn(x, offset=torch.tensor(11)), turn(x, offset=11))


def test_an_empty_sequence_stays_empty():
    assert rope()(heads(BATCH, HEADS, 0, DIM)).shape == (BATCH, HEADS, 0, DIM)


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [10**6, 16_777_217, 10**8])
def test_positions_in_the_millions_are_exact(position):
    x = heads(1, 1, 3, 128, dtype=torch.float32)
    theta = np.longdouble(10_000) ** (-np.arange(64, dtype=np.longdouble) / 64)
    angle = (position + np.arange(3, dtype=np.longdouble))[:, None] * theta
    a, b = x.double().numpy()[0, 0, :, :64], x.double().numpy()[0, 0, :, 64:]
    expected = np.concatenate(
        (a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), axis=-1
    )
    out = rope()(x, offset=position)[0, 0].numpy()
    np.testing.assert_allclose(out, expected.astype(np.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@each_rope
def test_the_result_is_one_rounding_away(turn, dtype):
    x = heads(dtype=dtype)
    out, exact = turn(x, offset=1000), turn(x.double(), offset=1000)
    assert out.dtype == dtype
    wide = torch.finfo(torch.float32 if dtype.itemsize <= 4 else dtype).eps
    allowed = torch.finfo(dtype).eps / 2 * exact.abs() + 4 * wide * x.abs().max()
    assert ((out.double() - exact).abs() <= allowed).all()


@each_rope
def test_gradients(turn):
    x = heads(1, 2, 3, 10).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: turn(x, offset=2), (x,))


@each_rope
def test_autocast_changes_nothing(turn):
    for dtype in (torch.float32, torch.bfloat16):
        x = heads(dtype=dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = turn(x, offset=123)
        assert torch.equal(cast, turn(x, offset=123))
        assert cast.dtype == dtype


# ---- under torch's transformations ---------------------------------------------------------------


# As torch.compile chooses by itself each of them; by order, with sizes fixed or free, two of a kind.
COMPILED = [(turn, None) for turn in ROPES]
COMPILED += [(turn, dynamic) for turn in (ROPES[0], ROPES[-2]) for dynamic in (False, True)]


@pytest.mark.parametrize(("turn", "dynamic"), COMPILED, ids=repr)
def test_compiles_whole(turn, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, offset: turn(x, offset=offset), fullgraph=True, backend="eager", dynamic=dynamic
    )
    for shape in [(2, 3, 5, 14), (3, 2, 7, 14), (1, 2, 11, 14)]:
        x = heads(*shape)
        assert torch.equal(compiled(x, shape[2]), turn(x, offset=shape[2]))
        offsets = torch.arange(shape[0]) * 17
        assert torch.equal(compiled(x, offsets), turn(x, offset=offsets))


def test_compiles_where_it_is_made():
    torch._dynamo.reset()

    def made_inside(x):
        return rope(100.0, scaling=yarn(4, original_length=64))(x)

    compiled = torch.compile(made_inside, fullgraph=True, backend="eager")
    assert torch.equal(compiled(heads()), made_inside(heads()))


@each_rope
def test_exports_with_free_lengths(turn):
    class Turn(torch.nn.Module):
        def forward(self, x, positions):
            return turn(x, positions)

    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    free = ({0: batch, 2: tokens}, {0: batch, 1: tokens})
    sample = (heads(), torch.arange(TOKENS).expand(BATCH, TOKENS).contiguous())
    exported = torch.export.export(Turn(), sample, dynamic_shapes=free).module()
    x, positions = heads(3, HEADS, 11, DIM), torch.arange(33).view(3, 11)
    assert torch.equal(exported(x, positions), turn(x, positions))


@each_rope
def test_maps_over_one_more_axis(turn):
    x, positions = heads(4, BATCH, HEADS, TOKENS, DIM), torch.arange(20).view(4, TOKENS)
    expected = torch.stack([turn(a, b) for a, b in zip(x, positions, strict=True)])
    assert_close(torch.func.vmap(turn)(x, positions), expected)


# ---- tables --------------------------------------------------------------------------------------


@each_rope
def test_tables_are_made_once_and_used_often(turn):
    x, positions = heads(dtype=torch.bfloat16), torch.arange(TOKENS) * 3
    cos, sin = turn.tables(positions, DIM)
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.shape == sin.shape == (TOKENS, (turn.dim or DIM) // 2)
    assert torch.equal(rotate(x, cos, sin, interleaved=turn.interleaved), turn(x, positions))


@pytest.mark.parametrize("interleaved", [False, True])
def test_tables_of_low_precision_are_multiplied_in_float32(interleaved):
    x, (cos, sin) = heads(dtype=torch.bfloat16), rope().tables(torch.arange(TOKENS), DIM)
    cos, sin = cos.bfloat16(), sin.bfloat16()
    wide = rotate(x.float(), cos.float(), sin.float(), interleaved=interleaved)
    assert torch.equal(rotate(x, cos, sin, interleaved=interleaved), wide.bfloat16())


# ---- a value -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "rope(10000)",
        "rope(10000, dim=32)",
        "rope(500000, dim=6, interleaved=True)",
        "rope(10000.5, scaling=linear(1.5))",
        "rope(10000, scaling=ntk(4))",
        "rope(500000, scaling=llama3(8, low=2, original_length=4096))",
        "rope(1000000, scaling=yarn(4, original_length=32768, mscale=1, mscale_all_dim=0.707))",
        "rope(10000, scaling=yarn(2.5, original_length=64, truncate=False))",
    ],
)
def test_prints_as_written_and_compares_by_value(text):
    value, again = eval(text), eval(text)
    assert repr(value) == text
    assert value == again
    assert hash(value) == hash(again)
    assert len({value, again}) == 1
    assert value != rope(value.base + 1)


def test_is_frozen():
    with pytest.raises(AttributeError):
        rope().base = 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rope(1), r"base must be above 1; .*\n  got rope\(1\)"),
        (lambda: rope(dim=7), r"dim must be even .*\n  got rope\(10000, dim=7\)"),
        (lambda: rope(dim=0), "dim must be even and above 0"),
        (
            lambda: rope(dim=16)(heads()),
            r"turns 16 channels but a head has 14; give .*\n  rope\(10",
        ),
        (lambda: rope()(heads(2, 3, 5, 7)), "turns 7 channels but a head has 7; give an even dim"),
        (
            lambda: rope()(heads(3, 5, 14)),
            r"x must be a floating .*\n  x torch.float64 \(3, 5, 14\)",
        ),
        (lambda: rope()(heads().long()), r"cast it.\n  x torch.int64"),
        (lambda: rope()(heads(), torch.arange(4)), r"positions must be \(tokens,\) or .*\n  x \(2"),
        (lambda: rope()(heads(), torch.zeros(3, 5).long()), "positions must be"),
        (lambda: rope()(heads(), torch.zeros(2, 1, 5).long()), "positions must be"),
        (
            lambda: rope()(heads(), torch.arange(5.0)),
            "must be integers; round or cast them.\n  pos",
        ),
        (lambda: rope()(heads(), offset=1.5), "must be integers"),
        (lambda: rope()(heads(), offset=torch.tensor([1, 2, 3])), "positions must be"),
        (lambda: rope()(heads(), torch.arange(5), 3), r"came with an offset; add .*\n.* offset 3"),
        (lambda: rope()(heads(), torch.arange(5), torch.tensor([0, 0])), "came with an offset"),
        (lambda: rotate(heads(), torch.ones(5, 8), torch.ones(5, 8)), "two channels a pair; see"),
        (lambda: rotate(heads(), torch.ones(5, 7), torch.ones(5, 6)), "cos and sin must be alike"),
        (
            lambda: rotate(heads(), torch.ones(4, 7), torch.ones(4, 7)),
            r"cos must be \(tokens, pairs",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
