"""What all benchmarks share: interleaved medians, peak memory, and the machine they ran on."""

from __future__ import annotations

import datetime
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def medians(calls: dict[str, Callable[[], object]], seconds: float = 4.0) -> dict[str, float]:
    """The median time of each call, in seconds: all in one run, taking turns, after a warm-up.

    Turns matter on a noisy machine: a slow moment hits all calls alike, and ratios stay fair.
    """
    once = 0.0
    for call in calls.values():
        call()
    for call in calls.values():
        start = time.perf_counter()
        call()
        once += time.perf_counter() - start
    rounds = max(3, min(101, int(seconds / once)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


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


def machine() -> dict[str, str]:
    """The date, the machine and the versions: without them a figure means nothing."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            x.partition(":")[2].strip() for x in info.read_text().splitlines() if "model name" in x
        ]
        cpu = names[0] if names else cpu
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{cpu}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def save(name: str, body: dict) -> Path:
    """Write results as JSON, with the machine they came from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **body}, indent=1) + "\n")
    return path
