"""Rope and alibi: against transformers, against their definitions, and against what users do."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

from multihead.positions import alibi, linear, llama3, ntk, rope, rotate, yarn

BATCH, HEADS, TOKENS, DIM = 2, 3, 5, 14
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


def heads(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    shape = shape or (BATCH, HEADS, TOKENS, DIM)
    return torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(seed)).to(dtype)


# ---- rope: against transformers ------------------------------------------------------------------


def llama_config(base, head_dim, **parameters):
    parameters.setdefault("rope_type", "default")
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters={"rope_theta": base, **parameters},
    )


def hf_yarn(factor, length, **more):
    names = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    return names | more


LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DEEPSEEK = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.707}
PUBLISHED = {
    "Llama 2": (128, rope(), {}),
    "linear": (128, rope(scaling=linear(4)), {"rope_type": "linear", "factor": 4.0}),
    "Llama 3.1": (128, rope(500_000, scaling=llama3(8)), LLAMA31),
    "Llama 3.2": (64, rope(500_000, scaling=llama3(32)), LLAMA31 | {"factor": 32.0}),
    "Qwen 2.5": (
        128,
        rope(1_000_000, scaling=yarn(4, original_length=32_768)),
        hf_yarn(4.0, 32_768),
    ),
    "DeepSeek": (
        64,
        rope(scaling=yarn(40, original_length=4096, mscale=1.0, mscale_all_dim=0.707)),
        hf_yarn(40.0, 4096, **DEEPSEEK),
    ),
    "gpt-oss": (
        64,
        rope(150_000, scaling=yarn(32, original_length=4096, truncate=False)),
        hf_yarn(32.0, 4096, truncate=False),
    ),
    "yarn, own betas and factor": (
        64,
        rope(
            scaling=yarn(8, original_length=2048, beta_fast=16, beta_slow=2, attention_factor=1.25)
        ),
        hf_yarn(8.0, 2048, beta_fast=16, beta_slow=2, attention_factor=1.25),
    ),
    "yarn, all pairs fast": (
        8,
        rope(100, scaling=yarn(4, original_length=100_000)),
        hf_yarn(4.0, 100_000),
    ),
    "yarn, shorter than a turn": (8, rope(scaling=yarn(2, original_length=4)), hf_yarn(2.0, 4)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_frequencies_and_amplitude_are_those_of_transformers(name):
    head_dim, turn, parameters = PUBLISHED[name]
    config = llama_config(turn.base, head_dim, **parameters)
    embedding = modeling_llama.LlamaRotaryEmbedding(config)
    assert_close(turn.frequencies(head_dim).float(), embedding.inv_freq, rtol=1e-6, atol=0)
    amplitude = turn.scaling.amplitude if turn.scaling else 1.0
    assert amplitude == pytest.approx(embedding.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("name", PUBLISHED)
def test_rotation_is_that_of_transformers(name):
    head_dim, turn, parameters = PUBLISHED[name]
    x = heads(BATCH, HEADS, TOKENS, head_dim, dtype=torch.float32)
    positions = torch.tensor([[0, 1, 2, 30, 31], [7, 5, 6, 100, 9]])
    embedding = modeling_llama.LlamaRotaryEmbedding(llama_config(turn.base, head_dim, **parameters))
    expected, _ = modeling_llama.apply_rotary_pos_emb(x, x, *embedding(x, positions))
    assert_close(turn(x, positions), expected, rtol=1e-5, atol=2e-5)  # theirs has float32 angles


def test_ntk_is_the_dynamic_one_of_transformers_at_a_fixed_length():
    config = llama_config(10_000.0, 64, rope_type="dynamic", factor=1.0)
    longer = int(2.5 * config.max_position_embeddings)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=longer)
    got = rope(scaling=ntk(2.5)).frequencies(64)
    assert_close(got.float(), expected, rtol=1e-6, atol=0)
    assert_close(got, rope(10_000 * 2.5 ** (64 / 62)).frequencies(64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dim", [DIM, 6])
def test_interleaved_rotation_is_that_of_gptj(dim):
    x = heads(dtype=torch.float32)
    sin, cos = modeling_gptj.create_sinusoidal_positions(TOKENS, dim)[None].chunk(2, dim=-1)
    turned = modeling_gptj.apply_rotary_pos_emb(x[..., :dim].transpose(1, 2), sin, cos)
    expected = torch.cat((turned.transpose(1, 2), x[..., dim:]), dim=-1)
    assert_close(rope(dim=dim, interleaved=True)(x), expected, rtol=1e-6, atol=1e-6)


# ---- rope: what it must keep ---------------------------------------------------------------------


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


def test_a_single_pair_turns_under_every_scaling():
    for scaling in (linear(2), ntk(2), yarn(2, original_length=64), llama3(2)):
        assert rope(scaling=scaling).frequencies(2).isfinite().all()


# ---- rope: numbers -------------------------------------------------------------------------------


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


# ---- rope: under torch's transformations ---------------------------------------------------------


@each_rope
@pytest.mark.parametrize("dynamic", [False, True, None])
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


# ---- rope: a value -------------------------------------------------------------------------------


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
        (lambda: linear(0.5), r"factor must be 1 or more; give .*\n  got linear\(0.5\)"),
        (lambda: ntk(0), "factor must be 1 or more"),
        (lambda: yarn(0.5, original_length=64), "factor must be 1 or more"),
        (lambda: yarn(2, original_length=0), "original_length must be above 0"),
        (lambda: yarn(2, original_length=64, beta_fast=1, beta_slow=32), "beta_fast must be above"),
        (
            lambda: yarn(2, original_length=64, mscale=1.0),
            "mscale_all_dim must come together; give",
        ),
        (
            lambda: yarn(
                2, original_length=64, mscale=1.0, mscale_all_dim=1.0, attention_factor=1.0
            ),
            "both set the amplitude; give one",
        ),
        (lambda: llama3(8, low=4, high=1), "high must be above low"),
        (lambda: llama3(8, original_length=0), "original_length must be above 0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- alibi ---------------------------------------------------------------------------------------


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
