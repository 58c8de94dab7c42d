"""What `multihead bench` measures: that all calls answer the same question, and who takes turns."""

import dataclasses

import pytest
import torch

import multihead as mh
from multihead import measuring
from multihead.measuring import Asked, compare, peers
from multihead.measuring.peers import eager, matrix_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Asked(
    heads=6, kv_heads=3, dim=16, device=DEVICE, dtype="bfloat16" if DEVICE == "cuda" else "float32"
)
MASKS = [None, mh.causal(), mh.causal() & mh.window(5), mh.prefix(3) | mh.offset(0)]


@pytest.fixture
def timed(monkeypatch):
    """The calls of each row, once each, and what they gave."""
    found: list[dict] = []

    def once(calls):
        if "SDPA" in calls:
            found.append({})
        found[-1] |= {name: call() for name, call in calls.items()}
        return {name: {"SDPA": 0.25, "looking": 1.0}.get(name, 0.5) for name in calls}

    monkeypatch.setattr(measuring, "medians", once)
    monkeypatch.setattr(measuring, "medians_on_gpu", once)
    return found


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("backward", [False, True])
def test_every_call_answers_the_same_question(mask, backward, timed):
    asked = dataclasses.replace(SMALL, mask=mask, backward=backward)
    (row,) = compare(asked, [37], lambda message, share: None)
    answers = timed[0]
    assert {*answers} >= {"SDPA", "attend", "looking", "eager"}
    close = {"rtol": 2e-2, "atol": 4e-2} if DEVICE == "cuda" else {"rtol": 1e-4, "atol": 1e-5}
    for name, answer in answers.items():
        torch.testing.assert_close(answer, answers["attend"], msg=name, **close)
    if backward:
        assert len(answers["attend"]) == 3  # gradients, and of each
        assert all(grad.abs().max() > 0 for grad in answers["attend"])
    assert (row.tokens, row.sdpa, row.looking, row.eager) == (37, 0.25, 1.0, 0.5)
    assert row.sdpa_by == "SDPA"
    assert row.matrix_bytes == 6 * 37 * 37 * 4
    q = torch.empty(1, 6, 37, 16, device=DEVICE, dtype=measuring.DTYPES[SMALL.dtype])
    k = q[:, :3]
    q.requires_grad_(backward)
    with torch.set_grad_enabled(backward):
        assert row.attend_by == mh.explain_choice(q, k, k, mask=mask).backend


def test_eager_tells_the_entropy_of_every_row():
    q, k, v = (torch.randn(2, heads, 23, 8) for heads in (4, 2, 2))
    out, entropy = eager(q, k, v, matrix_of(mh.causal(), 23, "cpu"))
    seen = mh.observe(q, k, v, mask=mh.causal(), stats="entropy")
    torch.testing.assert_close(out, seen.out)
    torch.testing.assert_close(entropy, seen.entropy)


def test_where_matrices_find_no_room_there_is_no_eager(timed, monkeypatch):
    matrix = 6 * 37 * 37 * 4
    for room, backward, fits in (
        (4 * matrix, False, True), (4 * matrix - 1, False, False),
        (4 * matrix, True, False), (8 * matrix, True, True),
    ):  # fmt: skip
        monkeypatch.setattr(measuring, "_free", lambda _, room=room: room)
        asked = dataclasses.replace(SMALL, backward=backward)
        (row,) = compare(asked, [37], lambda message, share: None)
        assert (row.eager is not None) == fits == ("eager" in timed[-1])


@pytest.mark.parametrize("mask", MASKS[1:], ids=str)
def test_a_matrix_is_made_in_strips(mask, monkeypatch):
    monkeypatch.setattr(peers, "STRIP", 7)
    tokens = torch.arange(37)
    assert torch.equal(matrix_of(mask, 37, "cpu"), mask.allows(tokens, tokens))


def test_free_memory():
    assert 2**26 < measuring._free(DEVICE) < 2**44


def test_it_tells_how_far_it_is(timed):
    told = []
    rows = list(compare(SMALL, [10, 30], lambda *more: told.append(more)))
    assert [row.tokens for row in rows] == [10, 30]
    assert told == [("Timing 10 tokens", 0.0), ("Timing 30 tokens", 0.1)]


def test_real_times():
    (row,) = compare(SMALL, [64], lambda message, share: None)
    assert all(0 < each < 60 for each in (row.sdpa, row.attend, row.looking, row.eager))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"heads": 0}, "heads must be 1 or more, and 0 came"),
        ({"kv_heads": 5}, "a multiple of key heads, and 12 on 5 came"),
        ({"dim": -1}, "dim must be 1 or more"),
        ({"batch": 0}, "batch must be 1 or more"),
        ({"dtype": "int8"}, "there is no dtype 'int8' here; choose one of float32, bfloat16"),
        ({"device": "tpu"}, "a device is cpu or cuda here, and 'tpu' came"),
        ({"stats": ("entropies",)}, "there is no statistic 'entropies'"),
    ],
)
def test_what_cannot_be_asked(given, said):
    with pytest.raises(ValueError, match=said):
        Asked(**given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match="it sees none; take cpu"):
        Asked(device="cuda")
