"""What all benchmarks share: medians of calls that take turns, peak memory, where they ran."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from multihead.measuring.clock import machine, medians

__all__ = ["RESULTS", "in_its_own_process", "machine", "medians", "peak_above", "save"]

RESULTS = Path(__file__).parent / "results"


def peak_above(call: Callable[[], object]) -> int:
    """Bytes that the process grew by, at its highest, while `call` ran; its result is let go after.

    Linux alone: the kernel's own high-water mark, which sees buffers inside kernels too.
    """
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark anew
    before = _resident("VmRSS")
    result = call()
    peak = _resident("VmHWM")
    del result
    return max(0, peak - before)


def in_its_own_process(script: str, *arguments: str) -> int:
    """The number that a script prints: memory is measured where nothing else has happened."""
    command = [sys.executable, script, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"this system does not tell {field}; memory is measured on Linux alone.")


def save(name: str, body: dict) -> Path:
    """Write results as JSON, with the machine they came from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **body}, indent=1) + "\n")
    return path
