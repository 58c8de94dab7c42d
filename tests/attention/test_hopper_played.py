"""The Hopper kernels without a Hopper: played in Python, event by event (hopper_played.py)."""

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():  # and perhaps no greenlet
    pytest.skip("there is a GPU: test_fused.py runs these kernels", allow_module_level=True)
import hopper_events
import hopper_played
import zoo
from kernels import WIDE, grad_of, poisoned, problem
from oracle import assert_by_the_rule
from told import assert_a_nan_stays_in_its_row, assert_swept, assert_told
from triton.runtime.errors import InterpreterError

import multihead as mh
from multihead.attention import fused
from multihead.attention.band import Band
from multihead.attention.fused import Asked, launch, sizes
from multihead.attention.fused.sizes import Ring
from multihead.observation.fused import cells, columns

# Widths differ in how tiles arrive alone: of the others those in which a walk differs.
KINDS = ("causal", "ahead", "causal lengths", "softcap, sinks", "square", "square, grouped")
FEW = [n for n in WIDE if "64 wide" in n or "wide" not in n] + ["square, grouped, 32 wide"]
FEW += [f"{kind}, {width} wide" for kind in KINDS for width in (128, 256)]
EVERYTHING = Asked(entropy=True, distance=True, peak=True, peak_key=True, masses=(Band(length=5),))


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that were launched."""
    names, whole = [], launch.launch

    def noting(kernel, *rest, **named):
        names.append(kernel.__name__)
        whole(kernel, *rest, **named)

    for room in (launch, cells, columns):
        monkeypatch.setattr(room, "launch", noting)
    return names


@pytest.mark.parametrize("name", FEW)
def test_out_and_what_is_told(name, monkeypatch, launched):
    hopper_played.play(monkeypatch, seed=len(name))
    p = problem(name)
    seen = assert_told(p)
    assert_by_the_rule(p, {"out": seen.out}, grad_of(p))
    again = ["hopper_kernel"] * (p.sinks is not None)  # the largest scores, without sinks
    assert launched == ["hopper_kernel", "masses_on_hopper", *again]


@pytest.mark.parametrize("width", [32, 256])
def test_decoding(width, monkeypatch, launched):
    hopper_played.play(monkeypatch, seed=width)
    assert_told(problem(f"{width} wide, values {width}, decoding"))
    assert launched == ["share_kernel", "merge_kernel", "masses_on_hopper"]


@pytest.mark.parametrize("keys", [5, 29, 100])
@pytest.mark.parametrize("width", [64, 256])
def test_what_the_first_keys_have(width, keys, monkeypatch):
    """In the same kernel where a tile has them all: the first 8, a tile's, or more."""
    hopper_played.play(monkeypatch)
    assert_told(problem(f"square, grouped, {width} wide"), (mh.mass(mh.prefix(keys)), "entropy"))


@pytest.mark.parametrize("name", ["square, 64 wide", "square, causal, 64 wide"])
def test_a_nan_stays_in_its_row(name, monkeypatch):
    hopper_played.play(monkeypatch)
    assert_a_nan_stays_in_its_row(problem(name))


def test_a_distance_is_never_below_zero(monkeypatch):
    """Row 120 looks at itself, and with 5e-8 eight keys back: less than a place in a tile rounds to."""
    hopper_played.play(monkeypatch)
    q, k, v = zoo.tensors(1, torch.float16, queries=128, keys=128, dim=64, value_dim=64)
    k[..., 0], q[..., 1:], q[..., 0] = -99.0, 0.0, 1.0
    k[:, :, 120, 0], k[:, :, 112, 0] = 0.0, -16.8125
    seen = assert_told(zoo.ask(q, k, v, mask=mh.causal(), scale=1.0), ("distance",))
    assert (seen.found["distance"][:, :, 120] == 0).all()


@pytest.mark.parametrize("distance", [2**29 - 1, -(2**29) + 1])
def test_rows_that_see_nothing_however_far_they_look(distance, monkeypatch):
    """A tile is looked at all the same, and none of its keys is there."""
    hopper_played.play(monkeypatch)
    offset = 2**29 - 65 if distance > 0 else 70
    q, k, v = zoo.tensors(1, torch.float16, queries=65, keys=70, dim=64, value_dim=64)
    p = zoo.ask(q, k, v, mask=mh.offset(distance), offset=offset)
    assert fused.refuses(p) is None
    told = fused.look(p, EVERYTHING)
    assert (told.lse == -torch.inf).all()
    assert (told.peak_key == -1).all()
    for each in (told.out, told.entropy, told.distance, told.peak, told.masses):
        assert (each == 0).all()


SWEPT: dict[str, dict] = {  # tokens, cells and width; and what is asked of them
    "cells of a quarter tile": {"sizes": (256, 16, 64)},
    "cells of a quarter tile, causal": {"sizes": (256, 16, 64), "mask": mh.causal()},
    "cells of a quarter tile, window": {"sizes": (256, 16, 64), "mask": mh.window(77)},
    "one cell": {"sizes": (192, 1, 64)},
    "cells of a tile and a half": {"sizes": (384, 2, 64)},
    "one cell, causal": {"sizes": (192, 1, 64), "mask": mh.causal()},
    "one cell, window": {"sizes": (192, 1, 64), "mask": mh.window(77)},
    "cells of two tiles": {"sizes": (256, 2, 128), "mask": mh.causal()},
    "cells of two tiles, window": {"sizes": (256, 2, 128), "mask": mh.window(77)},
    "cells of a tile": {"sizes": (128, 2, 256)},
    "cells of a tile, causal": {"sizes": (128, 2, 256), "mask": mh.causal()},
    "narrow": {"sizes": (128, 4, 32), "mask": mh.causal() & mh.window(50)},
    "softcap": {"sizes": (192, 3, 64), "mask": mh.causal(), "softcap": 1.3},
    "lengths": {"sizes": (128, 2, 128), "mask": mh.padding([0, 77])},
    "causal lengths, sinks": {"sizes": (128, 4, 256), "mask": mh.causal() & mh.padding([100, 41]),
                              "sinks": torch.tensor([0.5, -1.0, 0.0, 2.0])},
    "windows that begin after the last key": {
        "sizes": (512, 4, 128), "mask": mh.causal() & mh.window(64) & mh.padding([512, 100])},
    "offsets": {"sizes": (192, 6, 64), "mask": mh.causal(), "offset": torch.tensor([40, -70])},
    "ahead, offset": {"sizes": (128, 8, 128), "mask": mh.window(33), "offset": 25, "softcap": 3.0},
}  # fmt: skip


@pytest.mark.parametrize("name", SWEPT)
def test_swept(name, monkeypatch, launched):
    """Cells of several tiles, of one, and several in a tile; what keys receive, and masses."""
    asked = dict(SWEPT[name])
    tokens, across, dim = asked.pop("sizes")
    hopper_played.play(monkeypatch, seed=across)
    tensors = zoo.tensors(1, torch.float16, queries=tokens, keys=tokens, dim=dim, value_dim=dim,
                          group=2, kv_heads=2)  # fmt: skip
    far, first = mh.mass(mh.window(150), name="far"), mh.mass(mh.prefix(tokens - 70))
    assert_swept(zoo.ask(*tensors, **asked), [mh.heatmap(across), "received", far, first])
    ours = {"hopper_kernel", "cells_on_hopper", "masses_on_hopper"}
    assert {*launched} >= ours | ({"received_on_hopper"} if dim <= 128 else set())


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("laps", [False, True])
@pytest.mark.parametrize(
    ("name", "keys", "stages"),
    [("square, 64 wide", 32, 2), ("square, causal, 64 wide", 32, 2), ("square, 64 wide", 64, 3)],
)
def test_rings_of_every_kind(name, keys, stages, laps, turns, monkeypatch):
    hopper_played.play(monkeypatch, seed=stages)
    monkeypatch.setitem(sizes._RINGS, 64, Ring(keys, stages, turns, turns, laps))
    p = problem(name)
    seen = assert_told(p, ("entropy", "distance", mh.mass(mh.prefix(20))))
    assert_by_the_rule(p, {"out": seen.out}, grad_of(p))


THREE = [f"{kind}, 64 wide" for kind in KINDS if "softcap" not in kind]
THREE += ["ahead by one, 64 wide", "100 rows, full, 64 wide", "100 rows, causal, 64 wide"]


@pytest.mark.parametrize("looking", [False, True])
@pytest.mark.parametrize("name", THREE)
@pytest.mark.usefixtures("by_three")
def test_three_groups(name, looking, monkeypatch):
    """In turns where they look, and not where they do not."""
    assert sizes._RINGS[64].groups == 3
    hopper_played.play(monkeypatch, seed=len(name))
    more = ("entropy", "distance", mh.mass(mh.prefix(5))) if looking else ()
    p = problem(name)
    assert_by_the_rule(p, {"out": assert_told(p, ("peak", *more)).out}, grad_of(p))


@pytest.mark.parametrize(
    ("groups", "name", "asked"),
    [
        (3, "square", Asked(True, True, True, masses=(Band(length=8),))), (3, "lengths", Asked()),
        (3, "sinks", Asked(True)), (2, "square", EVERYTHING._replace(masses=())),
        (2, "square", Asked(True, masses=(Band(length=9),))), (2, "causal window", Asked()),
        (2, "softcap", Asked()),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("by_three")
def test_three_groups_where_their_registers_suffice(groups, name, asked, monkeypatch):
    taken = []
    hopper_played.play(monkeypatch)
    monkeypatch.setattr(launch, "launch", lambda *_, **named: taken.append(named["GROUPS"]))
    for width in (32, 64):
        fused.look(problem(f"{name}, {width} wide"), asked)
    assert taken == [groups] * 2


@pytest.mark.parametrize(
    ("groups", "queries", "keys", "mask"),
    [
        (3, 4096, 4096, None), (3, 5001, 5001, mh.causal()), (3, 1000, 4100, None),
        (2, 2000, 30001, None), (2, 5001, 5001, None), (2, 5001, 10002, mh.causal()),
        (2, 2000, 2000, mh.causal()), (3, 3400, 3400, mh.causal()), (3, 130, 300, None),
    ],
)  # fmt: skip
def test_three_groups_where_blocks_go_round(groups, queries, keys, mask, monkeypatch):
    """On an H200, where 132 blocks are at work at once."""
    taken, batch = [], {1000: 4, 4096: 4, 130: 5}.get(queries, 1)
    hopper_played.play(monkeypatch)
    monkeypatch.setattr(launch, "processors", lambda _: 132)
    monkeypatch.setattr(launch, "launch", lambda *_, **named: taken.append(named["GROUPS"]))
    one = torch.zeros(1, 1, 1, 64, dtype=torch.float16)
    sizes = (16, queries), (4, keys), (4, keys)
    p = zoo.ask(*(one.expand(batch, *size, 64) for size in sizes), mask=mask)
    fused.look(p, Asked())
    assert taken == [groups]


@pytest.mark.parametrize("name", ["square, causal, 64 wide", "offsets, 128 wide"])
def test_the_same_bits_in_whatever_order_things_happen(name, monkeypatch):
    found = []
    for seed in range(4):
        with monkeypatch.context() as patched:
            hopper_played.play(patched, seed)
            found.append(fused.look(problem(name), EVERYTHING._replace(peak_key=False)))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert (one is None and two is None) or torch.equal(one, two)


# What a kernel may forget, and what says so.
FORGOTTEN = {
    "to wait for a tile": ({"wait": lambda *_: None}, "has landed|to land|while it is read"),
    "how many bytes come": (
        {"expect": lambda barrier, *_: barrier.arrived(1)},
        "has landed|to land|all groups wait",
    ),
    "a fence at the beginning": ({"fence": lambda: None}, "no fence made known"),
    "a fence at the end": ({"fence": lambda: hopper_events.PLAY.fresh.clear()}, "without a fence"),
    "to wait for a product": (
        {"product_wait": lambda n, asked: hopper_events.product_wait(n + 1, asked)},
        "before it was waited for",
    ),
    "to wait for a store": ({"store_wait": lambda _: None}, "while it is read|under way when"),
    "to wait for the last store": (
        {"store_wait": lambda n: hopper_events.store_wait(n + 1)},
        "while it is read|under way when",
    ),
    "to arrive": ({"arrive": lambda _: None}, "all groups wait"),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_a_kernel_forgets_is_noticed(what, monkeypatch):
    instead, message = FORGOTTEN[what]
    hopper_played.play(monkeypatch, **instead)
    with pytest.raises((InterpreterError, AssertionError), match=message):
        assert_told(problem("square, 64 wide"), ("entropy", "distance"))
