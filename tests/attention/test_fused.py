"""Our kernels by the numerics rule: on a GPU, and without one under Triton's interpreter."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
import zoo
from kernels import CASES, DEVICE, DTYPES, grad_of, poisoned, problem
from oracle import assert_by_the_rule, gold, results
from told import assert_a_nan_stays_in_its_row

import multihead as mh
from multihead.attention import dense, fused
from multihead.attention.band import Band, band_of
from multihead.attention.fused import tensors

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of NaN, numpy's


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_and_gradients_by_the_rule(name, dtype):
    p = problem(name, dtype)
    assert fused.refuses(p) is None
    assert_by_the_rule(p, results(fused.run, p, grad_of(p)), grad_of(p))


@pytest.mark.skipif(DEVICE == "cpu", reason="no GPU here")
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("square")])
def test_our_own_way_back_where_cudnn_has_one_too(name):
    p = problem(name, torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (results(fused.run, p, grad_of(p)) for _ in "ab")
    finally:
        torch.use_deterministic_algorithms(False)
    assert_by_the_rule(p, first, grad_of(p))
    assert all(torch.equal(first[n], second[n]) for n in first)


@pytest.mark.parametrize("name", CASES)
def test_lse(name):
    p = problem(name)
    found, expected = fused.run(p).lse, dense.run(gold(p)).lse
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=4e-6)


def test_a_wrong_answer_is_noticed():
    """The rule can fail: a scale that is 5 % off, and a mask that is a key too wide."""
    p = problem("causal window")
    for wrong in (
        dataclasses.replace(p, scale=p.scale * 1.05),
        dataclasses.replace(p, mask=mh.causal() & mh.window(20)),
    ):
        with pytest.raises(AssertionError):
            assert_by_the_rule(p, results(fused.run, wrong, grad_of(p)), grad_of(p))


@pytest.mark.parametrize("name", ["three heads to one", "lengths", "sinks", "three queries"])
def test_every_number_is_written_and_every_run_gives_the_same_bits(name, monkeypatch):
    p = problem(name)
    first = results(fused.run, p, grad_of(p))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    second = results(fused.run, p, grad_of(p))
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


@pytest.mark.parametrize("name", ["all keys", "causal"])
def test_cudnn_takes_the_way_back_of_out_alone(name, monkeypatch):
    """What it is given, that it is not asked where it does not know, or where bits are to be equal."""
    p = problem(name)
    expected, given = results(fused.run, p, grad_of(p)), []

    def gradients(grad_out, query, key, value, out, lse, *, causal, scale):
        given.append((causal, scale))
        torch.testing.assert_close(out, expected["out"])
        torch.testing.assert_close(lse, fused.run(p).lse)
        return tuple(expected[n] for n in ("dq", "dk", "dv"))

    monkeypatch.setattr(fused, "_cudnn_knows", lambda _: True)
    monkeypatch.setattr(fused.cudnn, "gradients", gradients)
    found = results(fused.run, p, grad_of(p))
    assert given == [(name == "causal", p.scale)]
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    q = p.query.detach().requires_grad_()
    told = fused.look(dataclasses.replace(p, query=q), fused.Asked(entropy=True))
    (told.out.sum() + told.entropy.sum()).backward()
    assert len(given) == 1
    torch.use_deterministic_algorithms(True)
    try:
        results(fused.run, p, grad_of(p))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(given) == 1


def test_strides_as_they_come():
    p = problem("causal")
    expected = fused.run(p).out

    def laid(tensor, how):
        if how == "heads inside":  # (batch, tokens, heads, dim)
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        if how == "columns apart":
            return tensor.mT.contiguous().mT
        if how == "a part of more":
            return torch.nn.functional.pad(tensor, (3, 5, 1, 2))[:, :, 1:-2, 3:-5]
        return tensor[:1].expand_as(tensor)  # "one for all"

    for how in ("heads inside", "columns apart", "a part of more"):
        changed = {n: laid(getattr(p, n), how) for n in ("query", "key", "value")}
        assert torch.equal(fused.run(dataclasses.replace(p, **changed)).out, expected), how
    one = dataclasses.replace(p, key=laid(p.key, "one for all"), value=laid(p.value, "one for all"))
    assert torch.equal(fused.run(one).out[0], expected[0])


@pytest.mark.parametrize("name", ["causal", *[n for n in CASES if n.startswith("square, causal")]])
def test_a_nan_stays_in_its_row(name):
    assert_a_nan_stays_in_its_row(problem(name))


def test_what_it_refuses():
    p = problem("causal")
    wide = torch.zeros(2, 2, 23, 300, device=DEVICE).half()
    for change, reason in (
        ({n: getattr(p, n).float() for n in ("query", "key", "value")}, "bfloat16 and float16"),
        ({"bias": torch.zeros(1, 1, 23, 37, device=DEVICE)}, "no bias"),
        ({"dropout": 0.1}, "no dropout"),
        ({"mask": mh.documents([0] * 37)}, "one run of keys"),
        ({"mask": mh.causal() | mh.prefix(3)}, "one run of keys"),
        ({"scale": -1.0}, "scale above 0"),
        ({"scale": 1e-46}, "scale above 0"),
        ({"scale": 1e16}, "scale above 0"),
        ({"mask": mh.offset(2**30 - 100)}, "32 bits"),
        ({"mask": mh.causal() & mh.offset(-(2**40))}, "32 bits"),
        ({"query": wide, "key": wide, "value": wide}, "up to 256"),
        ({"offset": 2**35}, "32 bits"),
        ({"offset": torch.tensor([3, -(2**35)])}, "32 bits"),
    ):
        assert reason in str(fused.refuses(dataclasses.replace(p, **change))), reason


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU knows bfloat16")
def test_the_interpreter_is_asked_for_no_bfloat16():
    q, k, v = (t.bfloat16() for t in zoo.tensors())
    with pytest.raises(ValueError, match="knows no bfloat16"):
        mh.attend(q, k, v, backend="fused")


@pytest.mark.parametrize("mask", [None, mh.causal()])
def test_offsets_beyond_all_keys_are_no_farther_than_32_bits_count(mask):
    """A GPU's are not looked at before: that would wait for it."""
    p = dataclasses.replace(problem("causal"), mask=mask)
    there, far = (
        dataclasses.replace(p, offset=torch.tensor([o, -o], device=DEVICE)) for o in (999, 2**40)
    )
    for found, expected in zip(fused.run(far), fused.run(there), strict=True):
        assert torch.equal(found, expected)


def test_without_an_interpreter_it_wants_a_gpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    fused._machine.cache_clear()
    assert (
        fused._machine(torch.device("cpu"))
        == "the kernels need a GPU, and these tensors are on cpu"
    )
    fused._machine.cache_clear()


CHANGES = {
    "query": {"query": 1.5}, "key": {"key": 1.5}, "value": {"value": 1.5},
    "mask": {"mask": mh.causal() & mh.window(2)}, "scale": {"scale": 0.9},
    "softcap": {"softcap": 0.5}, "sinks": {"sinks": torch.ones(2)}, "offset": {"offset": 1},
    "offsets": {"offset": torch.tensor([1, 2])},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_an_argument_changes_the_output(name):
    q, k, v = (t.to(DEVICE) for t in zoo.tensors(3, torch.float16, kv_heads=1, group=2))
    base = {"query": q, "key": k, "value": v, "mask": mh.causal(), "backend": "fused"}
    change = {n: base[n] * c if isinstance(c, float) and n in base else c
              for n, c in CHANGES[name].items()}  # fmt: skip
    change = {n: c.to(DEVICE) if isinstance(c, torch.Tensor) else c for n, c in change.items()}
    assert (mh.attend(**{**base, **change}) - mh.attend(**base)).abs().max() > 1e-2


def test_masks_that_are_bands():
    assert band_of(None) == Band()
    assert band_of(mh.causal() & mh.window(5) & mh.prefix(7)) == Band(4, 0, 7)
    assert band_of(mh.offset(3)) == Band(-3, 3)
    assert band_of(mh.causal() | mh.window(5)) is None
    joined = band_of(mh.padding([3, 9]) & mh.padding([5, 5]))
    assert joined is not None
    assert joined.lengths is not None
    assert joined.lengths.tolist() == [3, 5]


def test_on_the_gpu_of_the_question(monkeypatch):
    """Triton launches on the current one."""
    at, went = [0], []

    class There:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            at.append(self.device.index)

        def __exit__(self, *_):
            at.pop()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: at[-1])
    monkeypatch.setattr(torch.cuda, "device", There)
    launches = tensors.on_its_device(lambda first: went.append(at[-1]))
    for device in ("cuda:0", "cuda:1", "cpu"):
        tensor = SimpleNamespace(device=torch.device(device))
        launches(tensor)
        launches(SimpleNamespace(query=tensor))
    assert went == [0, 0, 1, 1, 0, 0]
    assert at == [0]


def test_cudnn_gets_no_two_numbers_in_one_place():
    one = torch.zeros(2, 1, 5, 8)
    given = (one, one.expand(2, 3, 5, 8), one.transpose(2, 3))
    found = fused.cudnn._with_rows(*given)
    assert found[0] is one
    assert all(t.stride(-1) == 1 and 0 not in t.stride() for t in found)
