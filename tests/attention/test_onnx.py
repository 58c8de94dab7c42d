"""The Attention node cases of the ONNX standard, through `attend`, on every backend that can."""

import functools
import operator
from collections import Counter

import pytest
import torch
import zoo
from onnx_cases import Case, collect
from torch import Tensor
from torch.nn.functional import pad

import multihead as mh
from multihead.attention import BACKENDS, dense
from multihead.attention.problem import Problem, pose


def arguments(inputs: dict[str, Tensor], settings: dict[str, int | float]) -> dict:
    """What to ask of `attend` so that it answers as the ONNX node does."""
    heads = [settings.get(name) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    query, key, value = (
        tensor if tensor.ndim == 4 else tensor.unflatten(-1, (count, -1)).transpose(1, 2)
        for tensor, count in zip((inputs[name] for name in "QKV"), heads, strict=True)
    )  # (batch, heads, tokens, dim)
    offset = 0  # the first query stands at the first key, unless keys came before it
    if "past_key" in inputs:
        offset = inputs["past_key"].shape[2]
        key = torch.cat([inputs["past_key"], key], dim=2)
        value = torch.cat([inputs["past_value"], value], dim=2)

    masks, bias = [], None
    if (lengths := inputs.get("nonpad_kv_seqlen")) is not None:
        offset = lengths - query.shape[2]
        masks.append(mh.padding(lengths))
    if settings.get("is_causal"):
        masks.append(mh.causal())
    if (left := settings.get("left_window_size", -1)) >= 0:
        masks.append(mh.window(left + 1) | ~mh.causal())
    if (right := settings.get("right_window_size", -1)) >= 0:
        masks.append(mh.window(right + 1) | mh.causal())
    if (given := inputs.get("attn_mask")) is not None:
        missing = (0, key.shape[2] - given.shape[-1])  # keys beyond the mask may not be seen
        if given.dtype == torch.bool:
            masks.append(mh.dense(pad(given, missing, value=False)))
        else:
            bias = pad(given, missing, value=-torch.inf)

    return {
        "query": query, "key": key, "value": value, "offset": offset, "bias": bias,
        "mask": functools.reduce(operator.and_, masks) if masks else None,
        "scale": settings.get("scale"), "softcap": settings.get("softcap") or None,
    }  # fmt: skip


def close(ours: Tensor, expected: Tensor) -> None:
    """Equal but for rounding; ONNX rounds to its dtype at every step, and we at the end."""
    tolerance = max(2 * torch.finfo(expected.dtype).eps, 2e-6)
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


def problem(case: Case) -> Problem:
    return pose(**arguments(case.inputs, case.settings), sinks=None, dropout=0.0)


CASES = collect("attention", "Attention")
PAIRS = [
    (name, backend)
    for name, case in CASES.items()
    for backend in zoo.ON_CPU
    if BACKENDS[backend].refuses(problem(case)) is None
]


def test_every_case_runs_wherever_it_can():
    assert len(CASES) == 93
    runs = Counter(backend for _, backend in PAIRS)
    # sdpa refuses the rest: any mask but causal(), a bias under causal(), softcap.
    assert runs == {"dense": 93, "tiled": 93, "sdpa": 52}  # the others want a GPU


@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_case(name, backend):
    inputs, settings, outputs = CASES[name]
    asked = arguments(inputs, settings)
    out = mh.attend(**asked, backend=backend)
    close(out if inputs["Q"].ndim == 4 else out.transpose(1, 2).flatten(2), outputs["Y"])
    for present in outputs.keys() & {"present_key", "present_value"}:
        assert torch.equal(asked[present.removeprefix("present_")], outputs[present])


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if "qk_matmul_output" in c.outputs])
def test_scores_on_the_way(name):
    case = CASES[name]
    steps = dense.steps(problem(case))
    modes = steps.scaled, steps.capped, steps.masked, steps.weights
    ours = modes[case.settings.get("qk_matmul_output_mode", 0)]
    close(ours.to(case.inputs["Q"].dtype), case.outputs["qk_matmul_output"])
