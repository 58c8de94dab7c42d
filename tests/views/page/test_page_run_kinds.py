"""Runs of other kinds in the browser: still written, ended, without maps, hostile, in one file."""

import re

from page_server import serving
from pages import said
from run_pages import expected, step_of, values
from small_runs import (
    CELLS,
    STEPS,
    cells,
    entropy,
    loss,
    write_run,
    write_sample,
)

from multihead.views.page.playing import standalone_run
from multihead.views.page.runs import Run


def test_a_run_that_is_being_written_is_followed(look_at_run, tmp_path):
    folder = write_run(tmp_path / "alive", losses=False)
    run = Run(folder)
    with serving(run) as served:
        page, other = look_at_run(served.address), look_at_run(served.address, step=100)
        write_sample(folder, 700)
        with (folder / "heads.jsonl").open("a") as file:
            file.write('{"step": 800, "lo')
        for one in (page, other):
            one.get_by_role("button", name="Reload").click()
        page.locator(".step-of", has_text="step 700").wait_for()  # the last one goes on
        page.get_by_text("the last line of heads.jsonl is half-written").wait_for()
        other.get_by_text("sample 2 of 8").wait_for()  # who looks elsewhere stays there
        write_sample(folder, 900)  # which ends the half line: it is left out, and said
        page.get_by_text("cannot be read as a step: left out").wait_for()  # with no click
        other.keyboard.press("r")
        assert step_of(other) == 100
        for one in (page, other):
            one.goto("about:blank")  # it asks again and again, and the server is about to end


def test_a_command_that_has_ended_is_said(look_at_run, tmp_path):
    with serving(Run(write_run(tmp_path / "ended"))) as served:
        page = look_at_run(served.address)
    page.get_by_role("alert").wait_for()
    said = "The server does not answer: it has ended. Start multihead look again."
    assert page.get_by_role("alert").inner_text() == said
    page.keyboard.press("Home")  # what is here can still be played
    page.locator(".step-of", has_text=re.compile("^step 0$")).wait_for()
    page.troubles.clear()


def test_a_run_without_maps_says_so(look_at_run, tmp_path):
    with serving(
        Run(write_run(tmp_path / "bare", without_map=tuple(STEPS), losses=False))
    ) as served:
        page = look_at_run(served.address, ".rcell")
        page.get_by_text("This run kept no maps.").wait_for()
        assert page.locator(".curve figcaption").first.inner_text() == f"loss {said(loss(600))}"


def test_names_of_a_run_are_text(look_at_run, tmp_path):
    folder = write_run(tmp_path / "plain")
    path = folder / "heads.jsonl"
    path.write_text(
        path.read_text().replace("logits explode", "</script><img src=x onerror=alert(1)>")
    )
    with serving(Run(folder)) as served:
        page = look_at_run(served.address)
        page.get_by_text("</script><img src=x onerror=alert(1)>").wait_for()
        assert page.locator("img").count() == 0


def test_one_file_plays_with_no_network(look_at_run, tmp_path):
    path = tmp_path / "page.html"
    path.write_bytes(standalone_run(Run(write_run(tmp_path / "small"))))
    page = look_at_run(path.as_uri(), step=300, layer=1, head=2)
    assert values(page) == expected(entropy, 300)
    assert page.get_by_role("button", name="Reload").count() == 0
    page.get_by_role("button", name="go to step 500").click()
    page.locator(".step-of", has_text="step 500").wait_for()
    box = page.locator(".big canvas").bounding_box()
    page.mouse.move(box["x"] + 3.5 * box["width"] / CELLS, box["y"] + 5.5 * box["height"] / CELLS)
    page.get_by_text(
        f"row 5, column 3 of {CELLS}: {said(float(cells(500, 1, 'largest')[2, 5, 3]))}"
    ).wait_for()
