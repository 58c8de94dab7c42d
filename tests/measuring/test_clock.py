"""Medians of calls that take turns, on clocks that are turned by hand."""

import statistics
from types import SimpleNamespace

import pytest

from multihead.measuring import clock


@pytest.fixture
def host(monkeypatch):
    """A clock that only calls move."""
    now = SimpleNamespace(at=0.0)
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now.at)
    return now


def taking(now, log, name, seconds):
    """A call that takes so long, another time at each turn."""
    left = iter(seconds)

    def call():
        log.append(name)
        now.at += next(left)

    return call


def test_calls_take_turns_and_the_first_ones_do_not_count(host):
    log: list[str] = []
    calls = {
        "a": taking(host, log, "a", [99, 1, 3, 1, 2]),
        "b": taking(host, log, "b", [99, 2, 8, 7, 50]),
    }
    assert clock.medians(calls, seconds=3) == {"a": 2, "b": 8}
    assert log == ["a", "b"] * 5


@pytest.mark.parametrize(("seconds", "rounds"), [(4.0, 20), (0.1, 3), (1000.0, 101)])
def test_as_many_turns_as_the_time_allows(host, seconds, rounds):
    log: list[str] = []
    clock.medians({"a": taking(host, log, "a", [0.2] * 200)}, seconds)
    assert len(log) == rounds + 2


def test_on_a_gpu_each_turn_has_an_order_of_its_own_and_the_cache_is_emptied(monkeypatch):
    now, log = SimpleNamespace(at=0.0), []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now.at

        def elapsed_time(self, end):
            return end.at - self.at  # milliseconds

    cache = SimpleNamespace(zero_=lambda: log.append("-"))
    cuda = SimpleNamespace(Event=Event, synchronize=lambda: log.append("."))
    fake = SimpleNamespace(cuda=cuda, int8=None, empty=lambda *_, **__: cache)
    monkeypatch.setattr(clock, "torch", fake)
    times = {"a": [500, 10, 9, *range(20, 40)], "b": [500, 5, 9, *range(100, 120)]}
    calls = {name: taking(now, log, name, each) for name, each in times.items()}
    found = clock.medians_on_gpu(calls, least=9, most=60)
    rounds = int(250 / 18)  # by the third turn, after two that warm up
    counted = {name: statistics.median(each[3 : 3 + rounds]) / 1e3 for name, each in times.items()}
    assert found == pytest.approx(counted)
    turns = "".join(log).strip(".").split(".")
    assert len(turns) == 3 + rounds
    orders = {turn.replace("-", "") for turn in turns}
    assert orders == {"ab", "ba"}
    assert all(turn.startswith("-" * 16) for turn in turns)
    assert all(turn.count("-") == 18 and "-a" in turn and "-b" in turn for turn in turns)


def test_the_machine_says_what_a_figure_needs():
    here = clock.machine()
    assert {*here} == {"date", "cpu", "threads", "torch", "python"}
    assert all(here.values())


def test_what_others_take(monkeypatch):
    stat = SimpleNamespace(exists=lambda: True)
    monkeypatch.setattr(clock, "Path", lambda _: stat)
    monkeypatch.setattr(clock.os, "sysconf", lambda _: 100)
    told = []
    for line, own in (("100 10 40 800 50 0 0 0 7 7", 0.5), ("150 20 50 840 60 10 10 10 9 9", 1.0)):
        stat.read_text = lambda line=line: f"cpu  {line}\ncpu0 1"
        monkeypatch.setattr(clock.os, "times", lambda own=own: (own, 0.0, 0.0, 0.0, 99.0))
        told.append(clock.spent())
    # Of 150 ticks 50 had nothing to do, and 50 were ours.
    assert clock.others(*told) == pytest.approx(50 / 150)
    stat.exists = lambda: False
    assert clock.spent() is None
    assert clock.others(None, None) == clock.others(told[0], told[0]) == 0.0
