"""The map on Hopper comes in parts of 16 rows: laying them together, under the interpreter too."""

import pytest
import torch
from kernels import DEVICE

pytest.importorskip("triton")
from multihead.observation.fused.cells import together_kernel

FAR = 1 << 30
BANDS = {  # left, right, length, offset
    "full": (FAR, FAR, FAR, 0), "causal": (FAR, 0, FAR, 0), "window": (70, 70, FAR, 0),
    "causal window": (40, 0, FAR, 0), "ahead": (FAR, 0, FAR, 100), "before all keys": (FAR, 0, FAR, -90),
    "few keys": (FAR, FAR, 77, 0), "window, few keys": (30, 30, 50, 0),
    "causal window, few keys": (40, 0, 60, 0), "no keys": (FAR, 0, 0, 0),
}  # fmt: skip
TOKENS, ROWS, KEYS, PART = 256, 64, 64, 16


def written(band, cells):
    """(part, cell): whether the kernel before wrote there, tile by tile of what some row sees."""
    left, right, length, offset = band
    key, row = torch.arange(TOKENS), torch.arange(TOKENS) + offset
    ahead = key - row[:, None]
    sees = (ahead >= -left) & (ahead <= right) & (key < length)
    tiles = sees.unflatten(0, (-1, ROWS)).unflatten(2, (-1, KEYS)).any(3).any(1)  # (block, tile)
    some = tiles.repeat_interleave(KEYS, 1).unflatten(1, (cells, -1)).any(2)
    return some.repeat_interleave(ROWS // PART, 0)


@pytest.mark.parametrize("cells", [2, 4, 8, 16])
@pytest.mark.parametrize("name", BANDS)
def test_parts_that_were_written_alone_count(name, cells):
    left, right, length, offset = BANDS[name]
    there = written(BANDS[name], cells)
    torch.manual_seed(0)
    parts = torch.rand(2, 2, 3, TOKENS // PART, cells)
    parts = torch.where(there, parts, torch.nan).to(DEVICE)
    total, largest = (torch.full((2, 3, cells, cells), torch.nan, device=DEVICE) for _ in "ab")
    together_kernel[(cells, 3, 2)](
        parts, total, largest, None, None, cells=cells, parts=TOKENS // PART // cells, heads=3, group=1,
        queries=TOKENS, keys=TOKENS, left=left, right=right, length=length, offset=offset, scale=1.0,
        cap=0.0, CAP=False, LENGTHS=False, OFFSETS=False, WIDTH=TOKENS // cells, PART=PART, ROWS=ROWS,
        KEYS=KEYS, ACROSS=16,
    )  # fmt: skip
    in_cells = parts.nan_to_num(0.0).unflatten(3, (cells, -1))
    torch.testing.assert_close(total, in_cells[0].sum(3))
    assert torch.equal(largest, in_cells[1].amax(3))
