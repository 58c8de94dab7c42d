"""The Hopper kernels: that they compile for such a GPU, and to what they are meant to be.

What they compute is tested by the same cases as every other kernel: where there is a Hopper in
test_fused.py, and elsewhere on one that is played (test_hopper_played.py).
"""

import importlib.util
import math
import os
import re
import subprocess
import sys

import pytest
import torch
from kernels import DEVICE, DTYPES, WIDE, grad_of, problem
from oracle import assert_by_the_rule
from told import assert_told

import multihead as mh

# Compiled in a process of its own: this one has Triton's interpreter in the compiler's place.
FOR_HOPPER = """
import sys, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Hopper:  # all that a compiler asks of a device
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device=None: 0

driver.set_active(Hopper())
from multihead.attention.fused.hopper import hopper_kernel
from multihead.attention.fused.hopper_sweep import masses_on_hopper
from multihead.attention.fused.hopper_work import WORKS
from multihead.attention.fused.sizes import _RINGS as RINGS
from multihead.attention.fused.tensors import tiles_of
from multihead.observation.fused.hopper import cells_on_hopper, received_on_hopper

dim = int(sys.argv[1])
rows, stages = RINGS[dim].sweep
q, row = torch.zeros(2, 3, 512, dim, dtype=torch.bfloat16), torch.zeros(2, 3, 512)
common = dict(heads=3, group=1, queries=512, keys=512, left=1 << 30, right=0, length=1 << 30,
              offset=0, scale=0.1, cap=0.0, CAP=False, LENGTHS=False, OFFSETS=False, DIM=dim,
              grid=(1, 1))
"""
ATTENTION = """
observing, ring = sys.argv[2] != "plain", RINGS[dim]
kernel = hopper_kernel.warmup(
    *(tiles_of(q, n, dim) for n in (64, ring.keys, ring.keys, 64)), *[row] * 9,
    **common | {"CAP": sys.argv[2] == "softcap"}, SINKS=False, ENTROPY=observing, DISTANCE=observing, PEAK=observing, PEAK_KEY=False,
    FIRST_KEYS=8 * observing, prefix=2, ONE_SIDED=sys.argv[2] != "observing full",
    **dict.fromkeys(WORKS, 24),
    UNBOUNDED=True, TURNS=ring.turns if observing else ring.plain_turns, LAPS=ring.laps, KEYS=ring.keys, STAGES=ring.stages, num_warps=4,
    GROUPS=int(sys.argv[3]),
)
"""
CELLS = """
from multihead.observation.fused.cells import _tile

keys, registers = _tile(dim, int(sys.argv[2]))
kernel = cells_on_hopper.warmup(
    *(tiles_of(q, n, dim) for n in (rows, keys)), *[row] * 4, **common, cells=8, UNBOUNDED=True,
    WIDTH=int(sys.argv[2]), ROWS=rows, KEYS=keys, STAGES=stages, num_warps=rows // 16,
    maxnreg=registers,
)
"""
RECEIVED = """
from multihead.observation.fused.columns import _registers

kernel = received_on_hopper.warmup(
    *(tiles_of(q, n, dim) for n in (64, rows)), *[row] * 4, **common, ROWS=64, KEYS=rows,
    STAGES=2, num_warps=rows // 16, maxnreg=_registers(dim),
)
"""
MASSES = """
kernel = masses_on_hopper.warmup(
    *(tiles_of(q, n, dim) for n in (rows, 64)), *[row] * 2, torch.zeros(3, dtype=torch.int32), row,
    row, **common, ROWS=rows, KEYS=64, STAGES=stages, num_warps=rows // 16, maxnreg=80,
)
"""
# Of wide heads whose values are narrower, and of their gradients: tiles of Triton's own.
WIDEST = """
from multihead.attention.fused import backward, forward, sizes
from multihead.attention.fused.tensors import rows_of

which = sys.argv[2]
tile = sizes._FORWARD[256, False] if which == "forward" else sizes._BACKWARD[256]
kernel = getattr(forward if which == "forward" else backward, which + "_kernel")
down, across = (rows_of(q, n, dim) for n in (tile.rows, tile.keys))
tiles = {"q_at": down, "k_at": across, "v_at": across, "out_at": down, "do_at": down,
         "dq_at": down, "dk_at": across, "dv_at": across}
flags = dict(ENTROPY=True, DISTANCE=True, PEAK=True, PEAK_KEY=True, MASSES=0, SINKS=False,
             ONE_SIDED=False, ROWS=tile.rows, KEYS=tile.keys, VALUE_DIM=dim, plain_scale=0.1)
numbers = {n: v for n, v in (common | flags).items() if n in kernel.arg_names}
others = {n: row for n in kernel.arg_names if n not in tiles and n not in numbers}
given = {n: t for n, t in tiles.items() if n in kernel.arg_names}
kernel = kernel.warmup(**given, **numbers, **others, num_warps=tile.warps, num_stages=tile.stages,
                       grid=(1, 1))
"""
TELL = """
print(kernel.metadata.shared)
print(kernel.asm["ptx"])
"""


def compiled(kernel: str, *arguments: str, cache, most: int = 232_448) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", FOR_HOPPER + kernel + TELL, *arguments],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    shared, _, ptx = done.stdout.partition("\n")
    assert int(shared) <= most  # a Hopper's multiprocessor has 232,448 bytes
    return ptx


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize(
    ("dim", "kind", "groups"),
    [(64, "plain", 3), (64, "observing full", 3),
     (64, "softcap", 2), (128, "plain", 2), (256, "observing", 2)],
)  # fmt: skip
def test_it_compiles_to_overlapping_products(dim, kind, groups, tmp_path):
    ptx = compiled(ATTENTION, str(dim), kind, str(groups), cache=tmp_path)
    assert "setmaxnreg" in ptx  # warps that fetch give their registers to those that compute
    loops = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", ptx)
    # Of each group two loops: scores are awaited, values still on their way.
    assert loops.count("1") == 2 * groups
    assert ptx.count("wgmma.mma_async") >= 32


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize("which", ["forward", "query", "key"])
def test_tiles_of_the_widest_heads_find_room(which, tmp_path):
    assert "wgmma.mma_async" in compiled(WIDEST, "256", which, cache=tmp_path)


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize(
    ("kernel", "dim", "width", "loops"),
    [(CELLS, 64, 32, 2), (CELLS, 256, 32, 2), (RECEIVED, 64, 0, 3), (RECEIVED, 128, 0, 3),
     (MASSES, 128, 0, 3)],
)  # fmt: skip
def test_sweeps_compile_to_small_programs(kernel, dim, width, loops, tmp_path):
    ptx = compiled(kernel, str(dim), str(width), cache=tmp_path, most=232_448 // 2)
    assert ptx.count("wgmma.mma_async") == loops * dim // 16  # steps of 16 numbers
    narrow = {CELLS: 112, RECEIVED: 72} if dim <= 64 else {}
    assert f"maxnreg {narrow.get(kernel, 80)}" in ptx
    assert "atom." not in ptx  # every number has one writer


ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


LAPPED = [n for n in WIDE if "32 wide" in n or "64 wide" in n]
BY_TWO = ("softcap", "window", "causal window", "behind", "ahead, ")  # for registers
FEW = ["square, grouped, 64 wide", "causal lengths, 32 wide"]  # where a Hopper is played


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.skipif(DEVICE == "cuda" and not ON_HOPPER, reason="another GPU")
@pytest.mark.parametrize("first_keys", [5, 100] if ON_HOPPER else [5])
@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("name", LAPPED if ON_HOPPER else FEW)
@pytest.mark.usefixtures("by_three")
def test_however_few_programs_take_the_blocks(name, programs, first_keys, monkeypatch):
    """One a block, or block after block: every number the same, to the bit."""
    from multihead.attention.band import Band
    from multihead.attention.fused import hopper_work, launch
    from multihead.attention.fused.question import Asked, question_of

    if not ON_HOPPER:
        import hopper_played

        hopper_played.play(monkeypatch)
    # By three groups, and by two.
    asked = Asked(True, True, True, first_keys == 100, (Band(length=first_keys),))
    question, as_it_is, grids = question_of(problem(name)), launch.launch, []
    share = hopper_work.shared_out

    def told(laps):
        def shared_out(*given):
            return share(*given[:-1], programs if laps else 0)

        def run(kernel, grid, *more, **named):
            grids.append(grid)
            as_it_is(kernel, grid, *more, **{**named, "LAPS": laps})

        monkeypatch.setattr(hopper_work, "shared_out", shared_out)
        monkeypatch.setattr(launch, "launch", run)
        return launch.forward(question, asked)

    for many, some in zip(told(False), told(True), strict=True):
        assert (many is None and some is None) or torch.equal(many, some)
    alone, together = grids[0], grids[-1]
    assert math.prod(alone) > programs
    assert together == (programs,)


@pytest.mark.skipif(not ON_HOPPER, reason="no Hopper here")
@pytest.mark.parametrize("name", [n for n in LAPPED if not n.startswith(BY_TWO)])
@pytest.mark.usefixtures("by_three")
def test_three_groups(name):
    for dtype in DTYPES:
        p = problem(name, dtype)
        out = assert_told(p, ("peak", "entropy", "distance", mh.mass(mh.prefix(5)))).out
        assert_by_the_rule(p, {"out": out}, grad_of(p))


BANDS = {  # left, right, length of 300 keys, offset of the first of 128 rows
    "full": (1 << 30, 1 << 30, 300, 100), "causal": (1 << 30, 0, 300, 172),
    "window": (40, 40, 300, 90), "causal window": (19, 0, 300, 60), "ahead": (-2, 2, 300, 33),
    "before all keys": (1 << 30, 0, 300, -50), "behind all keys": (5, 0, 300, 400),
    "few keys": (1 << 30, 1 << 30, 7, 0), "no keys": (1 << 30, 0, 0, 0),
}  # fmt: skip


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize("sides", [False, True])
@pytest.mark.parametrize("band", BANDS)
def test_every_tile_that_some_row_sees_comes_once_and_plain_ones_last(band, sides):
    from walks import walk_kernel

    left, right, length, offset = BANDS[band]
    found = torch.full((64,), -1, dtype=torch.int32, device=DEVICE)
    walk_kernel[(1,)](found, offset, offset + 127, left, right, length, SIDES=sides, KEYS=16)
    careful, total, *starts = found.tolist()
    starts = starts[:total]
    key, row = torch.arange(length), torch.arange(128) + offset
    ahead = key - row[:, None]
    sees = (ahead >= -left) & (ahead <= right)
    seen = {16 * (int(k) // 16) for k in sees.any(0).nonzero()}
    assert len({*starts}) == total == max(1, len(seen))
    assert {*starts} >= seen
    for start in starts[careful:]:
        tile = slice(start, start + 16)
        assert sees[:, tile].shape[1] == 16
        assert sees[:, tile].all()
        if sides:
            assert (ahead[:, tile] <= 0).all() or (ahead[:, tile] >= 0).all()


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("programs", [1, 3, 7, 12, 0])  # of 30 blocks; 0: a program a block
def test_every_block_is_taken_once_and_rooms_take_turns(programs, groups, one_sided):
    from walks import lap_kernel

    from multihead.attention.fused.hopper_work import shared_out

    batch, heads, blocks = 2, 3, 5
    grid, works = shared_out(batch, heads, blocks, one_sided, programs)
    found = torch.full((programs or 30, 30, 5), -1, dtype=torch.int32, device=DEVICE)
    queries = 64 * groups * blocks - 5
    lap_kernel[grid](found, heads, queries, **works, MOST=30, ONE_SIDED=one_sided,
                     LAPS=programs > 0, GROUPS=groups)  # fmt: skip
    taken = found[found[..., 0] >= 0].tolist()
    assert len(taken) == 30
    assert {tuple(work[:3]) for work in taken} == {
        (b, h, n) for b in range(batch) for h in range(heads) for n in range(blocks)
    }
    counts = (found[..., 0] >= 0).sum(1)
    assert int(counts.max() - counts.min()) <= 1  # shared out evenly
    for program, count in zip(found.tolist(), counts.tolist(), strict=True):
        rooms = [tuple(work[3:]) for work in program[:count]]
        there = 1 + groups  # the room that comes next
        assert rooms == ([(1, 0), (there, 0), (1, 1), (there, 1)] * 8)[:count]


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize("texts", [1, 2, 3])
@pytest.mark.parametrize("blocks", [16, 17])
@pytest.mark.parametrize("programs", [5, 12])
def test_causal_blocks_are_shared_out_by_length(programs, blocks, texts):
    """Longest first through all texts, to and fro: no program has much more to do than another."""
    from walks import lap_kernel

    from multihead.attention.fused.hopper_work import shared_out

    grid, works = shared_out(texts, 3, blocks, True, programs)
    assert grid == (programs,)
    most = texts * 3 * blocks
    found = torch.full((programs, most, 5), -1, dtype=torch.int32, device=DEVICE)
    lap_kernel[grid](found, 3, blocks * 128, **works, MOST=most, ONE_SIDED=True, LAPS=True,
                     GROUPS=2)  # fmt: skip
    tiles = torch.where(found[..., 0] >= 0, found[..., 2] + 1, 0).sum(1)
    assert int(tiles.sum()) == texts * 3 * blocks * (blocks + 1) // 2
    assert int(tiles.max() - tiles.min()) <= 7


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize("by", [1, 2, 3, 7, 12, 128, 1000, 65_535, 2**29 + 1, 2**31 - 1])
def test_to_divide_is_to_multiply(by):
    from walks import divided_kernel

    from multihead.attention.fused.hopper_work import divider

    most = 2**30 - 1
    near = torch.arange(-2, 3) + torch.tensor([0, 2**16, 2**29, most])[:, None]
    about = torch.randint(0, most // by + 1, (100, 1)) * by + torch.arange(-1, 2)
    given = torch.cat((near.flatten(), about.flatten())).clamp(0, most)
    numbers, found = (torch.empty(512, dtype=torch.int32, device=DEVICE).zero_() for _ in "nf")
    numbers[: len(given)] = given.int()
    divided_kernel[(1,)](found, numbers, *divider(by), MANY=512)
    assert torch.equal(found, numbers // by)
