"""A run in the terminal: drawn in its place there, told in lines elsewhere."""

import io

import pytest
import torch
from rich.console import Console
from watched_models import train, watched

import multihead as mh
from multihead.views.watching import Watching


def console(terminal, width=80, height=30):
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=width, height=height, color_system=None,
        legacy_windows=False, _environ={"TERM": "xterm"},
    )  # fmt: skip


def record(step, entropy, loss=1.0, warnings=(), key="entropy"):
    layers = [{"name": f"blocks.{n}", "heads": len(row), key: row} for n, row in enumerate(entropy)]
    known = [[v for v in row if v is not None] for row in entropy]
    quantiles = [[min(row), 0, sorted(row)[len(row) // 2], 0, max(row)] for row in known]
    worst = [{"layer": 0, "name": "blocks.0", "head": 1, "value": 0.01}]
    return {
        "step": step, "loss": loss, "layers": layers, "quantiles": {key: quantiles},
        "worst": {key: worst}, "warnings": list(warnings),
    }  # fmt: skip


COLLAPSE = {
    "kind": "collapse", "layer": 1, "name": "blocks.1", "head": 2,
    "text": "layer 1, blocks.1, head 2, left its own history (collapse): it fell.",
}  # fmt: skip
GRID = [[0.01, 0.1, 0.3], [0.5, 0.9, 0.02]]


def plain(view, told):
    return [line.plain for line in view.drawn(told)]


def test_the_grid_has_the_shades_of_the_house():
    view = Watching(console(True))
    view.add(record(1200, GRID, loss=2.5))
    lines = plain(view, record(1200, GRID, loss=2.5))
    view.close()
    assert lines[1] == "  step 1,200   loss 2.5000   ▁"
    assert lines[3:7] == [
        "  relative entropy of each head",
        "            0   2   median",
        "  layer 0   ··░░▒▒  0.10",
        "  layer 1   ▓▓██··  0.50",
    ]
    assert "░░ from 5 %" in lines[7]


def test_a_head_that_left_its_history_is_marked_for_a_while_and_told():
    view = Watching(console(True))
    with view:
        view.add(record(0, GRID, warnings=[COLLAPSE]))
        assert "▓▓██·!" in plain(view, record(0, GRID))[6]
        assert any(
            line.startswith("  ! layer 1, blocks.1, head 2")
            for line in plain(view, record(0, GRID))
        )
        for step in range(1, 11):
            view.add(record(step, GRID))
        assert "▓▓██··" in plain(view, record(11, GRID))[6]


def test_it_draws_in_its_place_and_leaves_the_last_picture():
    page = console(True)
    with Watching(page) as view:
        for step in range(3):
            view.add(record(step, GRID, loss=3.0 - step))
    written = page.file.getvalue()
    assert written.count("\x1b[1A") > 10  # goes up over what it drew
    assert written.count("relative entropy of each head") == 4  # three times, and once at the end
    assert "█▅▁" in written


@pytest.mark.parametrize("layers", [2, 60])
@pytest.mark.parametrize("heads", [1, 12, 96])
def test_it_fits_the_terminal(heads, layers):
    page = console(True)
    view = Watching(page)
    told = record(10**6, [[0.5] * heads] * layers, warnings=[COLLAPSE] * 9)
    view.warnings.extend((1, warning) for warning in told["warnings"])
    lines = plain(view, told)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 30
    assert not any(line != line.rstrip() for line in lines)
    assert ("36 more heads" in "".join(lines)) == (heads == 96)
    assert ("more layers" in "".join(lines)) == (layers == 60)


def test_no_terminal_gets_a_line_a_sample():
    page = console(False)
    view = Watching(page)
    view.add(record(0, GRID, loss=None))
    view.add(record(100, GRID, loss=2.0, warnings=[COLLAPSE]))
    assert page.file.getvalue().splitlines() == [
        "step 0, relative entropy 0.01 … 0.30 … 0.90, lowest: layer 0, head 1",
        "step 100, loss 2.0000, relative entropy 0.01 … 0.30 … 0.90, lowest: layer 0, head 1",
        "warning: layer 1, blocks.1, head 2, left its own history (collapse): it fell.",
    ]


def test_other_statistics_and_what_is_no_number():
    view = Watching(console(True))
    lines = plain(view, record(0, [[8.0, 4.0, None]], key="max_score"))
    assert lines[3] == "  max_score of each head"
    assert lines[5].startswith("  layer 0   ██▓▓??")
    assert not any("from 5 %" in line for line in lines)


@pytest.mark.parametrize("terminal", [False, True])
def test_it_takes_what_a_monitor_gives(terminal):
    torch.manual_seed(0)
    page = console(terminal)
    model, given = watched("packed")
    with Watching(page) as view, mh.monitor(model, every=2, to=view.add) as watch:
        train(model, given, 5, watch)
    assert "step 4" in page.file.getvalue()
