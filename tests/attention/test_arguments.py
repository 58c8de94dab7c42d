"""No silent arguments, no silent backends, and a message of three parts for every bad input."""

import inspect

import numpy as np
import pytest
import torch
import zoo

import multihead as mh
from multihead.attention import Choice

Q, K, V = zoo.tensors(dtype=torch.float64)

# For every argument of attend, another value than the one before it must matter.
CHANGES = {
    "query": {"query": Q + 1},
    "key": {"key": K.flip(2)},
    "value": {"value": V + 1},
    "mask": {"mask": mh.causal() & mh.window(2)},
    "bias": {"bias": torch.linspace(-2, 2, zoo.KEYS, dtype=torch.float64)},
    "bias_alibi": {"bias": mh.alibi(zoo.HEADS)},
    "scale": {"scale": 0.9},
    "softcap": {"softcap": 0.5},
    "sinks": {"sinks": torch.ones(zoo.HEADS, dtype=torch.float64)},
    "dropout": {"dropout": 0.5},
    "offset": {"offset": 1},
    "offset_rows": {"offset": torch.tensor([1, 2])},
}

# What a backend cannot do, it says; all else it does.
REFUSED = {("sdpa", n) for n in ("mask", "bias", "bias_alibi", "softcap", "dropout", "offset_rows")}


def test_every_argument_is_changed_here():
    arguments = set(inspect.signature(mh.attend).parameters) - {"backend"}
    assert arguments == {name.partition("_")[0] for name in CHANGES}
    assert inspect.signature(mh.explain_choice).parameters.keys() == {*arguments, "backend"}


@pytest.mark.parametrize("backend", zoo.ON_CPU)
@pytest.mark.parametrize("name", CHANGES)
def test_an_argument_changes_the_output_or_raises(backend, name):
    base = {"query": Q, "key": K, "value": V, "mask": mh.causal(), "backend": backend}
    before = mh.attend(**base)
    changed = {**base, **CHANGES[name]}
    if (backend, name) in REFUSED:
        with pytest.raises(ValueError, match=f"backend {backend!r} cannot answer this"):
            mh.attend(**changed)
        return
    assert (mh.attend(**changed) - before).abs().max() > 1e-3


def test_auto_answers_whatever_is_asked():
    for name, change in CHANGES.items():
        base = {"query": Q, "key": K, "value": V, "mask": mh.causal(), **change}
        torch.manual_seed(0)
        found = mh.attend(**base)
        torch.manual_seed(0)
        expected = mh.attend(**base, backend="dense")
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}")


def test_what_sdpa_must_not_refuse():
    """Fast paths stay fast paths: nothing, causal at any offset, a bias, sinks, any head size."""
    for asked in (
        {},
        {"mask": mh.causal()},
        {"mask": mh.causal(), "offset": -2},
        {"mask": mh.causal(), "offset": 3},
        {"bias": torch.zeros(zoo.QUERIES, zoo.KEYS)},
        {"sinks": torch.zeros(zoo.HEADS)},
    ):
        assert mh.explain_choice(Q, K, V, **asked).backend == "sdpa", asked


def test_the_choice_is_visible():
    q, k, v = zoo.tensors(queries=97, keys=101)
    choice = mh.explain_choice(q, k, v, mask=mh.causal(), softcap=3.0)
    assert isinstance(choice, Choice)
    assert choice.backend == "tiled"
    assert choice.refused["sdpa"] == "the kernel has no softcap"
    assert [*choice.refused] == ["sdpa", "fused", "flex"]
    assert "need a GPU" in choice.refused["fused"]
    assert "not sdpa: the kernel has no softcap" in str(choice)
    assert mh.explain_choice(Q, K, V, softcap=3.0).backend == "dense"  # so small that it is fastest
    assert mh.explain_choice(Q, K, V, backend="dense") == ("dense", "asked for by name", {})
    with pytest.raises(ValueError, match="cannot answer this: the kernel has no softcap"):
        mh.explain_choice(Q, K, V, softcap=3.0, backend="sdpa")


def wrong(**changes):
    return lambda: mh.attend(**{"query": Q, "key": K, "value": V, **changes})


SHAPES = r"\n  query \(.*\)  key \(.*\)  value \(.*\)"
BAD = {
    "rank 3": (wrong(query=Q[0]), r"query must have 4 axes .* but it has 3; bring" + ".*" + SHAPES),
    "rank 5": (wrong(value=V[None]), "value must have 4 axes .* but it has 5"),
    "heads": (
        wrong(query=Q[:, :8], key=K, value=V),
        r"key has 3 heads but query has 8; query heads must be a multiple of key heads." + SHAPES,
    ),
    "value heads": (wrong(value=V[:, :1]), r"key has 3 heads but value has 1; give each key head" + ".*" + SHAPES),
    "batch": (wrong(key=K[:1], value=V[:1]), "must have one batch size; expand" + ".*" + SHAPES),
    "key length": (wrong(value=V[:, :, :4]), "key has 11 tokens but value has 4; give each key" + ".*" + SHAPES),
    "dim": (wrong(key=K[..., :5]), "query has dim 13 but key has dim 5; they are multiplied" + ".*" + SHAPES),
    "integers": (wrong(query=Q.long()), r"query must be a dense tensor of float64.* but torch.int64 .* came; .*float\(\)"),
    "no tensor": (wrong(key=[1.0]), "key must be a torch.Tensor, but a list came"),
    "dtypes": (wrong(key=K.float()), r"one dtype; convert .*\n  query torch.float64  key torch.float32"),
    "devices": (wrong(key=K.to("meta")), r"one device; move them.\n  query cpu  key meta"),
    "mask size": (
        wrong(mask=torch.ones(7, 7, dtype=torch.bool)),
        r"does not broadcast to \(batch, heads, queries, keys\); reshape it.\n  mask \(7, 7\)  expected \(2, 15, 7, 11\)",
    ),
    "mask rows": (wrong(mask=mh.padding([1, 2, 3])), "carries 3 rows but the batch has 2; give one row"),
    "mask tokens": (wrong(mask=mh.causal() & mh.documents([1, 2])), "carries 2 tokens but there are 11 keys; give"),
    "float mask": (wrong(mask=torch.ones(7, 11)), "must be boolean, True = may attend, but torch.float32 came; .*bias="),
    "mask type": (wrong(mask="causal"), "must be a multihead mask .* but a str came; write"),
    "bool bias": (wrong(bias=torch.ones(7, 11).bool()), "bias must be .* but torch.bool came; say .* mask="),
    "bias size": (wrong(bias=torch.ones(3, 11)), r"bias does not broadcast.*\n  bias \(3, 11\)  expected"),
    "bias rank": (wrong(bias=torch.ones(1, 1, 1, 1, 1)), "bias does not broadcast"),
    "bias device": (wrong(bias=torch.ones(1, 11, device="meta")), "bias must be on the device of query; move it"),
    "slopes": (wrong(bias=mh.alibi(4)), "15"),
    "no queries": (wrong(query=Q[:, :, :0]), "query has no tokens; attention needs at least one" + ".*" + SHAPES),
    "no keys": (wrong(key=K[:, :, :0], value=V[:, :, :0]), "key has no tokens; attention needs"),
    "no dim": (wrong(value=V[..., :0]), "value has no dim; attention needs"),
    "backend": (wrong(backend="flash"), "no backend 'flash'; choose one of 'auto', 'sdpa', 'fused', 'flex', 'tiled', 'dense'"),
    "too much": (wrong(mask=mh.window(2), backend="sdpa"), "backend 'sdpa' cannot answer this: .* ask another"),
    "sinks": (wrong(sinks=torch.ones(3)), r"one logit for each query head; give .*\n  sinks \(3,\)  expected \(15,\)"),
    "sinks ints": (wrong(sinks=torch.ones(15).long()), "sinks must be a floating-point tensor"),
    "scale": (wrong(scale=float("nan")), "scale must be a finite number, but nan came; give one"),
    "softcap": (wrong(softcap=0.0), "softcap must be a positive finite number, but 0.0 came; give"),
    "dropout": (wrong(dropout=1.0), "dropout must be at least 0 and below 1, but 1.0 came"),
    "offset": (wrong(offset=1.5), "offset must be an int or an integer tensor, but 1.5 came"),
    "offset floats": (wrong(offset=torch.ones(2)), "offset must hold whole numbers, but torch.float32"),
    "offset rows": (wrong(offset=torch.ones(3).long()), r"one number for each batch row; give .*\n  offset \(3,\)"),
    "float8": (wrong(query=Q.to(torch.float8_e4m3fn)), "must be a dense tensor of .* but torch.float8"),
    "sparse": (wrong(query=Q.to_sparse()), "must be a dense tensor of .*torch.sparse_coo"),
    "huge scale": (wrong(scale=10**400), "scale must be a finite number"),
    "true scale": (wrong(scale=True), "scale must be a finite number"),
    "backend list": (wrong(backend=["dense"]), "there is no backend"),
    "offset array": (wrong(offset=np.array([1, 2])), "offset must be an int or an integer tensor"),
    "offset far": (wrong(offset=2**70), r"within ±2\*\*40"),
    "padding text": (lambda: mh.padding("abc"), "takes whole numbers .* give a tensor or a list"),
    "ragged": (lambda: mh.documents([[1, 2], [3]]), "takes whole numbers .* came; give"),
    "complex": (lambda: mh.padding(torch.ones(2, dtype=torch.complex128)), "takes whole numbers, but"),
    "far window": (lambda: mh.window(2**63), r"at most 2\*\*40"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_says_what_was_expected_what_came_and_what_to_do(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


@pytest.mark.parametrize("backend", ["auto", "dense", "tiled"])
def test_an_empty_batch_is_no_error(backend):
    assert mh.attend(Q[:0], K[:0], V[:0], mask=mh.causal(), backend=backend).shape == (
        0, zoo.HEADS, zoo.QUERIES, zoo.VALUE_DIM,
    )  # fmt: skip


def test_numbers_of_numpy_are_numbers():
    found = mh.attend(Q, K, V, mask=mh.causal(), offset=np.int64(2))
    assert torch.equal(found, mh.attend(Q, K, V, mask=mh.causal(), offset=2))


def test_explaining_a_choice_changes_nothing():
    """Not even what the next dropout drops."""
    torch.manual_seed(0)
    before = mh.attend(Q, K, V, dropout=0.5)
    torch.manual_seed(0)
    mh.explain_choice(Q, K, V, dropout=0.5)
    assert torch.equal(mh.attend(Q, K, V, dropout=0.5), before)


def test_a_mask_of_ones_own():
    """It works where masks are only asked; where they must travel as text, that is said."""

    @mh.masks.mask.frozen
    class even(mh.masks.Mask):
        def allows(self, query, key, offset=0):
            return (key % 2 == 0)[None, None, None]

    found = mh.attend(Q, K, V, mask=even())
    torch.testing.assert_close(found, mh.attend(Q, K[:, :, ::2], V[:, :, ::2]))
    with pytest.raises(ValueError, match="even\\(\\) holds a mask that is not in the table"):
        mh.attend(Q, K, V, mask=even(), backend="tiled")
