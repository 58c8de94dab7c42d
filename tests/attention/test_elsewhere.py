"""That kernels find room on GPUs that are not here: their launches, compiled for each kind of them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "compiled_elsewhere.py"
EVERY = {
    "forward_kernel", "query_kernel", "key_kernel", "masses_kernel", "share_kernel", "merge_kernel",
    "received_kernel", "cells_kernel", "_copies_kernel", "_nats_kernel",
}  # fmt: skip


def compiled(*asked, cache) -> list[list[str]]:
    """Of each kernel its name, and what it takes."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, *asked], env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.parametrize(
    ("target", "widths", "room", "columns"),
    [
        ("cuda:80", ["256"], 101_376, 0),  # of a GeForce; an A100, with the same, has more
        ("cuda:100", ["256"], 232_448, 512),  # B200
        ("cuda:120", ["256"], 101_376, 0),  # RTX 50
        ("hip:gfx942", ["128", "256"], 65_536, 0),  # MI300
    ],
)
def test_every_kernel_finds_room(target, widths, room, columns, tmp_path):
    """Bytes of shared memory that a program may have, and columns of tensor memory."""
    told = compiled(target, *widths, cache=tmp_path)
    assert {name for name, _, _ in told} == EVERY
    assert [line for line in told if int(line[1]) > room or int(line[2]) > columns] == []


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_norms_find_room_on_a_hopper(tmp_path):
    told = compiled("cuda:90", "norms", cache=tmp_path)
    assert len(told) == 4
    assert max(int(shared) for _, shared, _ in told) <= 232_448
