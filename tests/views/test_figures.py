"""Figures show what was recorded, say what they show, and are the same each time."""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from small_reports import NAMES, name, recorded, report

from multihead.views.figures import GRIDS, STYLES, figures, grid, main_name, save, scatter
from multihead.views.glyphs import drawable
from multihead.views.mapped import WINDOW, _where, maps
from multihead.views.placing import DOT, place
from multihead.views.report import ORDER

EVERY = [f"grid-{key.replace('_', '-')}" for key in GRIDS] + ["entropy-distance"]


def texts(figure) -> str:
    from matplotlib.text import Text

    return "\n".join(t.get_text() for t in figure.findobj(Text))


def test_there_is_a_figure_for_each_statistic_and_each_pattern():
    assert [n for n, _ in figures(report())] == [*EVERY, "map-induction", "map-previous-token", "map-first-token"]  # fmt: skip
    bare = report(names=None, scores=None, verdicts=None)
    extremes = ["map-sharpest", "map-broadest", "map-farthest", "map-most-local"]
    assert [n for n, _ in figures(bare)] == [*EVERY, *extremes]


@pytest.mark.parametrize("key", GRIDS)
def test_a_grid_has_a_cell_a_head(key):
    seen = report()
    figure = grid(seen, seen.heads(), key)
    (mesh,) = figure.axes[0].collections
    cells = mesh.get_array().reshape(3, 2)  # heads down, layers across
    for row in recorded().heads():
        assert cells[row["head"], row["layer"]] == pytest.approx(row[key])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("layer", "head")
    assert figure.axes[1].get_ylabel() == GRIDS[key][0]  # the colour bar
    assert "4-bit quantised" in figure.axes[0].get_title(loc="left")
    assert mesh.get_cmap().name == "viridis"


def test_the_scatter_has_a_dot_a_head_in_the_colour_of_its_name():
    seen = report()
    axes = scatter(seen, seen.heads()).axes[0]
    dots = {c.get_label(): c.get_offsets() for c in axes.collections}
    assert {label: len(d) for label, d in dots.items()} == {
        "induction (2)": 2, "previous token (1)": 1, "no name (3)": 3,
    }  # fmt: skip
    row = recorded().heads()[1]  # 0.1
    assert dots["previous token (1)"][0].tolist() == pytest.approx(
        [row["entropy"], row["distance"]]
    )
    assert {t.get_text() for t in axes.texts} == {"1.2", "0.1"}


def test_every_pattern_has_a_colour_and_a_shape_of_its_own():
    assert {*ORDER, "no name"} == {*STYLES}
    for which in (0, 1):
        assert len({style[which] for style in STYLES.values()}) == len(STYLES)
    assert main_name({"names": [NAMES[2], NAMES[0]]}) == "induction"


def test_a_short_text_is_shown_weight_by_weight():
    seen = report(30, names=[name(1, 2, "induction")])
    ((_, figure),) = maps(seen)
    axes = figure.axes[0]
    image = axes.images[0].get_array()
    weights = recorded(30).weights(1, 2)
    assert torch.allclose(torch.tensor(np.ma.filled(image, 0.0)).nan_to_num(), weights, atol=1e-6)
    assert np.isnan(np.ma.filled(image, np.nan)[np.triu_indices(30, 1)]).all()  # hidden, not 0
    assert [t.get_text() for t in axes.get_xticklabels()][:5] == [
        "·cat",
        "$x$",
        "⏎",
        "U+65E5 U+672C",
        "the",
    ]
    assert axes.get_xlabel() == "key: the token that is asked"
    assert axes.get_ylabel() == "query: the token that asks"
    assert "Head 1.2: reads what followed the same token before (induction, on cue 0.84)" in texts(figure)  # fmt: skip


def test_a_long_text_is_shown_whole_and_in_an_excerpt():
    seen = report(names=[name(0, 1, "previous token")])
    ((_, figure),) = maps(seen)
    whole, excerpt = figure.axes[0], figure.axes[1]
    heat = recorded().heatmap(0, 1, 64)
    drawn = np.ma.filled(whole.images[0].get_array(), np.nan)
    assert np.nan_to_num(drawn) == pytest.approx(heat.largest.numpy(), abs=1e-6)
    (box,) = whole.patches
    rows = slice(int(box.get_y()), int(box.get_y() + box.get_height()))
    keys = slice(int(box.get_x()), int(box.get_x() + box.get_width()))
    shown = np.nan_to_num(np.ma.filled(excerpt.images[0].get_array(), np.nan))
    assert shown == pytest.approx(recorded().weights(0, 1, rows, keys).numpy(), abs=1e-6)
    assert f"tokens {rows.start} to {rows.stop - 1} ask {keys.start} to" in texts(figure)


def test_the_excerpt_holds_most_of_the_pattern():
    import multihead as mh

    rows, keys = _where(report(), 0, 1, mh.offset(-1))
    assert rows.stop - rows.start == keys.stop - keys.start == WINDOW
    assert keys.start in (rows.start - 1, rows.start)  # the diagonal, and not a corner
    rows, keys = _where(report(), 0, 1, mh.prefix(1))
    assert keys.start == 0


def test_the_same_data_is_the_same_file():
    for (_, one), (_, two) in zip(figures(report()), figures(report()), strict=True):
        for kind in ("png", "svg"):
            assert save(one, kind) == save(two, kind)
        break
    seen = report(names=[name(0, 1, "self")])
    one, two = (dict(figures(seen))["map-self"] for _ in range(2))
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        content = save(one, kind)
        assert content == save(two, kind)
        assert content.startswith(start)
        assert b"date" not in content.lower()


def test_tokens_of_any_script_are_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _, figure in maps(report(30)):
            save(figure, "png")
        seen = report(30)
        named = dataclasses.replace(seen.about, text="猫.txt", model="/models/猫")
        for _, figure in figures(dataclasses.replace(seen, about=named)):
            figure.draw_without_rendering()  # where glyphs are looked for; `save` would hush it
            assert "猫" not in texts(figure)
    assert drawable("x" * 40, 14) == "x" * 13 + "…"
    assert drawable("日本語です", 14) == "U+65E5 U+672C…"
    assert drawable("<F0 9F 98>", 14) == "<F0 9F 98>"


def crowd(near: float) -> np.ndarray:
    """Most heads lie close together, some do not: as they do in a real model."""
    random = np.random.default_rng(7)
    return np.concatenate([
        random.normal((200, 80), near, (240, 2)), random.uniform((10, 10), (390, 270), (30, 2)),
    ])  # fmt: skip


@pytest.mark.parametrize("near", [4.0, 12.0, 25.0])
def test_labels_stand_on_no_dot_and_on_no_other_label(near):
    dots, size, room = crowd(near), (26.0, 11.0), (400.0, 280.0)
    owners = [0, 1, 2, 3, 4, 5, 6, 260]
    shifts = place([size] * len(owners), owners, dots, room)
    middles = np.array([dots[o] + s for o, s in zip(owners, shifts, strict=True)])
    half = np.array(size) / 2
    assert ((middles - half >= 0) & (middles + half <= room)).all()
    for i, middle in enumerate(middles):
        assert not (np.abs(dots - middle) < half + DOT).all(-1).any()
        assert not (np.abs(middles[:i] - middle) < 2 * half).all(-1).any()


def test_the_labels_of_the_scatter_do_not_meet():
    from matplotlib.text import Text

    seen = report(names=[name(layer, head, p) for (layer, head), p in
                         zip([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], ORDER, strict=False)])  # fmt: skip
    rows = [{**row, "entropy": 1.0 + 0.001 * i, "distance": 5.0} for i, row in enumerate(seen.heads())]  # fmt: skip
    figure = scatter(seen, rows)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without their lines
    assert len(boxes) == 6
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:i])
    assert any(text.arrow_patch is not None for text in figure.axes[0].texts)


def test_text_in_an_svg_is_text():
    seen = report()
    drawn = save(grid(seen, seen.heads(), "entropy"), "svg").decode()
    assert "How widely each head looks" in drawn
    assert ">layer</text>" in drawn


def test_pyplot_stays_out_of_it():
    import subprocess
    import sys

    code = (
        "import sys; sys.path.insert(0, 'tests'); from small_reports import report; "
        "from multihead.views.figures import figures, save; "
        "[save(f, 'png') for _, f in list(figures(report(30)))[:1]]; "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
