"""What a user waits for at the first call on a GPU: kernels are compiled, nothing is tuned.

    python benchmarks/first_call.py "a window"     one question, in this process: JSON

The part "first" of gpu.py asks every question in two processes of its own: one that finds nothing
compiled, and one that finds what the first has left on the disk. Questions are asked side by side,
four at a time. Starting Python and PyTorch is not counted. In each, a call of a length that is not
round comes second: our kernels shall not be compiled for it again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

import multihead as mh

Asked = Callable[[Tensor, Tensor, Tensor], object]
TOKENS = (4096, 4351)  # of the first call and of the second

_causal, _window = mh.causal(), mh.causal() & mh.window(1024)


def _backward(mask: mh.masks.Mask) -> Asked:
    def both(*tensors: Tensor) -> None:
        torch.autograd.grad(mh.attend(*tensors, mask=mask).sum(), tensors)

    return both


def _entropy(q: Tensor, k: Tensor, v: Tensor) -> None:
    stats = mh.observe(q, k, v, mask=_causal, stats=("entropy",))
    torch.autograd.grad(stats.entropy.sum(), (q, k))


def _documents(q: Tensor, k: Tensor, v: Tensor) -> None:
    ids = torch.arange(k.shape[2]) // 700
    mh.attend(q, k, v, mask=_causal & mh.documents(ids))


QUESTIONS: dict[str, Asked] = {
    "causal": lambda q, k, v: mh.attend(q, k, v, mask=_causal),
    "a window": lambda q, k, v: mh.attend(q, k, v, mask=_window),
    "a step of decoding": lambda q, k, v: mh.attend(q[:, :, -1:], k, v, mask=_causal),
    "documents": _documents,
    "a window, forward and backward": _backward(_window),
    "observe, default statistics": lambda q, k, v: mh.observe(q, k, v, mask=_causal),
    "observe, `received` and a map": lambda q, k, v: mh.observe(
        q, k, v, mask=_causal, stats=("received", mh.heatmap(128))
    ),
    "the entropy's gradient": _entropy,
}


def first_rows() -> list[dict]:
    with ThreadPoolExecutor(4) as some:
        return [*some.map(first_row, QUESTIONS)]


def first_row(name: str) -> dict:
    """Seconds of the first call: with nothing compiled, and in a later process."""
    with tempfile.TemporaryDirectory() as empty:
        places = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
        caches = {place: f"{empty}/{place}" for place in places}
        command, around = [sys.executable, __file__, name], os.environ | caches
        empty_handed, later = (
            json.loads(subprocess.check_output(command, env=around, text=True).splitlines()[-1])
            for _ in range(2)
        )
    return {"question": name, "new": empty_handed["first"], "later": later["first"],
            "second": empty_handed["second"]}  # fmt: skip


def main() -> None:
    name = sys.argv[1]
    torch.ones(1, device="cuda").sum().item()  # the device is awake
    told: dict = {}
    for place, tokens in zip(("first", "second"), TOKENS, strict=True):
        made = [torch.randn(1, 16, tokens, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv"]
        grad = "backward" in name or "gradient" in name
        tensors = [t.requires_grad_(grad) for t in made]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        QUESTIONS[name](*tensors)
        torch.cuda.synchronize()
        told[place] = time.perf_counter() - begin
    print(json.dumps(told))


if __name__ == "__main__":
    main()
