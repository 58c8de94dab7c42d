"""How long calls take: medians of calls that take turns, and the machine they ran on.

Turns matter on a noisy machine: a slow moment hits all calls alike, and ratios stay fair.
"""

from __future__ import annotations

import datetime
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Calls = dict[str, Callable[[], Any]]


def medians(calls: Calls, seconds: float = 4.0) -> dict[str, float]:
    """The median time of each call, in seconds by the host's clock, after a warm-up."""
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


def medians_on_gpu(calls: Calls, least: int = 9, most: int = 60) -> dict[str, float]:
    """The median of each call on the device, in seconds; each turn has an order of its own.

    A long call warms the device, which slows the next: nobody shall always come after the same.
    The device's cache is emptied before each.
    """
    cache = torch.empty(2**28, dtype=torch.int8, device="cuda")
    taken: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    order, drawn = [*calls], random.Random(0)

    def turn() -> float:
        """Each once; the milliseconds of all."""
        drawn.shuffle(order)
        for _ in range(16):  # the device has something to do while we get ahead of it
            cache.zero_()
        for name in order:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            cache.zero_()
            begin.record()
            calls[name]()
            end.record()
            taken[name].append((begin, end))
        torch.cuda.synchronize()
        return sum(some[-1][0].elapsed_time(some[-1][1]) for some in taken.values())

    for _ in range(2):  # compiled, and warm
        turn()
    rounds = min(most, max(least, int(250 / turn())))
    for _ in range(rounds):
        turn()
    return {
        name: statistics.median(begin.elapsed_time(end) for begin, end in some[3:]) / 1e3
        for name, some in taken.items()
    }


def spent() -> tuple[float, float, float] | None:
    """Seconds of all processors so far: all, those with nothing to do, and our own, if told."""
    told = Path("/proc/stat")
    if not told.exists():
        return None
    _, *times = told.read_text().splitlines()[0].split()
    each = [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in times[:8]]  # guests are among users
    return sum(each), each[3] + each[4], sum(os.times()[:4])


def others(before: tuple[float, ...] | None, after: tuple[float, ...] | None) -> float:
    """The share of this machine's processors that others took between two answers of `spent`.

    >>> others((100, 40, 7), (200, 80, 47))  # of 100 seconds 40 were idle, and 40 our own
    0.2
    """
    if before is None or after is None or after[0] == before[0]:
        return 0.0
    total, idle, own = (late - early for late, early in zip(after, before, strict=True))
    return max(0.0, (total - idle - own) / total)


def machine(device: str = "cpu") -> dict[str, str]:
    """The date, the machine and the versions: without them a figure means nothing."""
    gpu = {"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}
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
        **gpu,
    }
