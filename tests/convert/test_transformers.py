"""The layer answers as the attention module of transformers does that it came from.

The layer gets the same hidden states and, where a text is padded, a mask for that: causality,
windows and rope are its own.
"""

import pytest
import torch
from small_models import (
    BATCH,
    CASES,
    EAGER_ALONE,
    TOKENS,
    attention_modules,
    build,
    texts,
    watch,
)

import multihead as mh
from multihead.convert import from_transformers
from multihead.convert.transformers import FAMILIES

every_case = pytest.mark.parametrize(
    ("case", "implementation"),
    [(case, "eager") for case in CASES]
    + [(case, "sdpa") for case, (family, _) in CASES.items() if family not in EAGER_ALONE],
)


def close(ours, theirs, atol):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def test_each_family_is_tried_here():
    tried = {type(m).__name__ for case in CASES for m in attention_modules(build(case))}
    assert tried == set(FAMILIES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_case
def test_the_layer_answers_as_the_module_does(case, implementation, dtype):
    if (case, implementation, dtype) == ("gpt2, reordered", "eager", torch.float64):
        pytest.skip("transformers' reordered attention knows no float64")
    calls = watch(build(case, implementation, dtype), input_ids=texts())
    assert len(calls) == 2
    for call in calls:
        ours = from_transformers(call.module)
        # In float64 too, transformers takes cosines, norms and eager softmax in float32.
        close(ours(call.hidden), call.out, atol=5e-6)


@every_case
def test_padding_at_the_end(case, implementation):
    lengths = [TOKENS, 8]
    real = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    for call in watch(build(case, implementation), input_ids=texts(), attention_mask=real.long()):
        out = from_transformers(call.module)(call.hidden, mask=mh.padding(lengths))
        close(out[real], call.out[real], atol=5e-6)


@every_case
def test_padding_at_the_start(case, implementation):
    real = torch.arange(TOKENS) >= torch.tensor([[0], [4]])
    positions = (real.cumsum(1) - 1).clamp(min=0)
    inputs = {"attention_mask": real.long(), "position_ids": positions}
    for call in watch(build(case, implementation), input_ids=texts(), **inputs):
        ours = from_transformers(call.module)
        places = {} if ours.rope is None else {"positions": positions}
        out = ours(call.hidden, mask=real[:, None, None, :], **places)
        close(out[real], call.out[real], atol=5e-6)


# Qwen3's norms are float32 always, and so is the softmax of Gemma 2's eager attention.
@pytest.mark.parametrize(
    "case", [case for case, (family, _) in CASES.items() if family not in ("qwen3", "gemma2")]
)
def test_with_exact_cosines_float64_agrees_to_the_last_digits(case):
    family = CASES[case][0]
    implementation = "eager" if family in EAGER_ALONE else "sdpa"
    for call in watch(build(case, implementation, torch.float64), input_ids=texts()):
        ours, out = from_transformers(call.module), call.out
        if ours.rope is not None:
            tables = ours.rope.tables(torch.arange(TOKENS)[None], ours.head_dim, torch.float64)
            if family != "gpt_oss":  # the others write each cosine twice
                tables = [torch.cat((t, t), -1) for t in tables]
            exact = {**call.options, "position_embeddings": tuple(tables)}
            out, _ = call.module(*call.arguments, **exact)
        close(ours(call.hidden), out, atol=1e-13)


@pytest.mark.parametrize(
    ("case", "more"), [("gpt2", {}), ("bert", {"is_decoder": True})], ids=["gpt2", "bert"]
)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_cross_attention(case, more, implementation):
    model = build(case, implementation, add_cross_attention=True, **more)
    context = torch.randn(BATCH, 7, 15)
    seen = torch.arange(7) < torch.tensor([[7], [4]])
    calls = watch(
        model, input_ids=texts(), encoder_hidden_states=context, encoder_attention_mask=seen.long()
    )
    crossing = [call for call in calls if call.module.is_cross_attention]
    assert (len(calls), len(crossing)) == (4, 2)
    for call in crossing:
        ours = from_transformers(call.module)
        assert ours.d_context == 15
        close(ours(call.hidden, context, mask=mh.padding([7, 4])), call.out, atol=5e-6)


def test_a_converted_layer_decodes_through_its_cache():
    call = watch(build("mistral"), input_ids=texts())[1]
    ours = from_transformers(call.module)
    cache = ours.new_cache(BATCH, TOKENS)
    steps = [ours(call.hidden[:, t : t + 1], cache=cache) for t in range(TOKENS)]
    close(torch.cat(steps, 1), call.out, atol=5e-6)
