"""`explain --page`: the numbers and sentences of the walk, in one file that plays in a browser."""

import io
import json
import re

import pytest
import torch
from pages import settled
from rich.console import Console
from small_reports import WORDS, save_model
from typer.testing import CliRunner

import multihead as mh
from multihead import cli
from multihead.views.explain import STEPS, explain
from multihead.views.followed import follow
from multihead.views.page.walked import HEAD, WORD, followed, walk_page, walked
from multihead.views.real import explain_head
from multihead.views.walk import walk

TEXT = "The cat that I saw ran away"
HOSTILE = "<img/src=x/onerror=document.title='taken'> </script> <!--<script> &amp; ${1} \u202ecat"
LAST = len(STEPS) + 1  # the step before them is 0
CLOSE = {"rtol": 0, "atol": 0.51e-4}  # four digits


def carried(page: str) -> dict:
    """What a page holds, as a browser reads it."""
    return json.loads(re.search(r'id="carried">(.*?)</script>', page, re.DOTALL)[1])


def told(data: dict, figure: str, word: int) -> str:
    words = next(step for step in data["steps"] if step["figure"] == figure)["words"]
    words = words["each"][word] if isinstance(words, dict) else words
    name = f"head {data['heads'][data['head']]}"
    return words.replace(WORD, data["names"][word]).replace(HEAD, name)


# ---- what is in the file ------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [True, False])
def test_the_numbers_are_those_of_the_walk(masked):
    seen = walk("The cat that I saw", heads=3, dims=21, seed=4, masked=masked)
    data = carried(walk_page(seen))
    every = {
        "x": seen.x, "query": seen.query, "key": seen.key, "value": seen.value, "dots": seen.dots,
        "scaled": seen.steps.scaled, "weights": seen.steps.weights, "out": seen.steps.out, "y": seen.y,
    }  # fmt: skip
    for name, tensor in every.items():
        torch.testing.assert_close(torch.tensor(data[name]), tensor, **CLOSE)
    for name, matrix in seen.matrices().items():
        torch.testing.assert_close(torch.tensor(data["matrices"][name]), matrix, **CLOSE)
    hidden = torch.tensor([[[n is None for n in row] for row in head] for head in data["masked"]])
    assert torch.equal(hidden, seen.steps.masked.isneginf())
    assert hidden.any() == masked
    numbers = torch.tensor([[[n or 0 for n in row] for row in head] for head in data["masked"]])
    torch.testing.assert_close(numbers, seen.steps.masked.masked_fill(hidden, 0), **CLOSE)
    shares = [seen.steps.out[h] @ w for h, w in enumerate(seen.matrices()["W_oᵀ"])]
    lengths = torch.stack(shares).norm(dim=-1).T
    torch.testing.assert_close(torch.tensor(data["shares"]), lengths, **CLOSE)
    assert data["cut"] == []


def test_the_sentences_are_those_of_the_terminal():
    seen, file = walk(TEXT, seed=3), io.StringIO()
    explain(seen, Console(file=file, width=80), costs=False)
    printed, data = " ".join(file.getvalue().split()), walked(seen)
    assert data["about"] in printed
    assert [step["name"] for step in data["steps"][1:-1]] == [name for name, _ in STEPS]
    for step in data["steps"][:-1]:
        assert told(data, step["figure"], data["follow"]) in printed
        assert step["shapes"] in printed
        assert step["rungs"] in printed
    notes = [note for step in data["steps"] for note in step.get("notes", ())]
    assert len(notes) == 2
    assert all(note in printed for note in notes)


def test_a_long_text_is_cut_and_what_is_left_out_is_said():
    seen = walk(" ".join(f"word{i}" for i in range(256)), heads=64, dims=1024, masked=False)
    data = walked(seen)
    assert len(data["words"]) == 16
    assert len(data["heads"]) == 8
    assert data["cut"] == [
        "The first 16 of 256 words are shown.", "The first 8 of 64 heads are shown.",
        "The first 4 of 16 numbers of a head are shown.", "The first 32 of 1024 numbers of a word are shown.",
    ]  # fmt: skip
    shown = torch.tensor(data["weights"]).sum(-1)
    torch.testing.assert_close(
        shown + torch.tensor(data["rest"]), torch.ones(8, 16), rtol=0, atol=2e-3
    )
    assert len(walk_page(seen)) < 400_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(save_model(tmp_path_factory.mktemp("tiny")))


def test_a_real_head_brings_its_own_numbers_and_sentences(tiny):
    seen = follow(*mh.load_model(tiny), " ".join(WORDS[:7]), layer=1, head=2)
    data, file = followed(seen), io.StringIO()
    explain_head(seen, Console(file=file, width=80))
    printed = " ".join(file.getvalue().split())
    for step in data["steps"]:
        assert told(data, step["figure"], data["follow"]) in printed
    assert data["heads"] == [2]
    n = len(data["words"])
    for name, tensor in (("dots", seen.dots), ("weights", seen.steps.weights)):
        torch.testing.assert_close(torch.tensor(data[name][0]), tensor[:n, :n], **CLOSE)
    lengths = seen.shares[:, :n].norm(dim=-1).T
    torch.testing.assert_close(torch.tensor(data["shares"]), lengths, **CLOSE)
    torch.testing.assert_close(
        torch.tensor(data["lengths"]), seen.layer.output_norm()[0, 2, :n].float(), **CLOSE
    )


# ---- the command --------------------------------------------------------------------------------


def call(*arguments: str):
    return CliRunner().invoke(cli.build(), [*arguments], prog_name="multihead")


def test_the_command_writes_the_file_and_says_where(tmp_path):
    path = tmp_path / "explain.html"
    path.write_text("old")
    result = call("explain", TEXT, "--heads", "2", "--seed", "5", "--no-mask", "--page", str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(str(path))
    assert result.stdout.count("\n") == 1
    assert path.read_text("utf-8") == walk_page(walk(TEXT, heads=2, seed=5, masked=False))
    assert [p.name for p in tmp_path.iterdir()] == ["explain.html"]


def test_the_command_writes_the_page_of_a_real_head(tmp_path, tiny):
    path = tmp_path / "head.html"
    result = call("explain", *WORDS[:4], "--model", tiny, "--head", "1", "--page", str(path))
    assert result.exit_code == 0, result.output
    assert carried(path.read_text("utf-8"))["heads"] == [1]


@pytest.mark.parametrize("place", ["no/such/folder/x.html", "."])
def test_a_place_that_cannot_be_written_is_said(tmp_path, place):
    result = call("explain", TEXT, "--page", str(tmp_path / place))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "could not be written" in result.stderr
    assert "another file with --page" in result.stderr
    assert list(tmp_path.iterdir()) == []


# ---- in a browser, from disk, with the network off ----------------------------------------------


@pytest.fixture
def opened(new_page, tmp_path):
    """Opens the page of a walk; afterwards nothing was logged, and nobody was asked."""
    asked = []

    def open_page(seen, **more):
        path = tmp_path / "explain.html"
        path.write_text(walk_page(seen), "utf-8")
        page = new_page(**{"offline": True, "reduced_motion": "no-preference", **more})
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("h1")
        settled(page)
        return page

    yield open_page
    assert all(url.startswith("file:") and url.endswith("explain.html") for url in asked)


def step_of(page) -> int:
    buttons = page.locator(".steps button")
    return next(i for i in range(buttons.count()) if buttons.nth(i).get_attribute("aria-current"))


def test_every_step_is_reached_by_keys_buttons_and_the_list(opened):
    page = opened(walk(TEXT))
    data = walked(walk(TEXT))
    for place, step in enumerate(data["steps"]):
        assert step_of(page) == place
        assert page.locator("h1").inner_text() == f"{step['number']} {step['name']}".strip()
        assert page.locator(".told p").inner_text() == told(data, step["figure"], data["follow"])
        assert page.locator(".figure td").count() > 0
        main = page.locator("main")
        assert main.evaluate(
            "m => m.scrollWidth <= m.clientWidth && m.scrollHeight <= m.clientHeight"
        )
        page.keyboard.press("ArrowRight")
    assert step_of(page) == LAST
    page.keyboard.press("ArrowLeft")
    assert step_of(page) == LAST - 1
    page.get_by_role("button", name="back").click()
    assert step_of(page) == LAST - 2
    page.get_by_role("button", name="forward").click()
    assert step_of(page) == LAST - 1
    page.get_by_role("button", name="softmax").click()
    assert step_of(page) == 6
    page.keyboard.press("Home")
    assert step_of(page) == 0
    assert page.get_by_role("button", name="back").is_disabled()


def test_it_plays_and_pauses(opened):
    page = opened(walk("The cat ran"))
    page.clock.install()
    page.keyboard.press("Space")
    assert page.get_by_role("button", name="pause").count() == 1
    share = page.locator("[role=progressbar]")
    for _ in range(400):  # a minute or two, in jumps shorter than a beat
        page.clock.run_for(300)
        if step_of(page) == 3:
            break
    assert step_of(page) == 3
    assert page.locator(".figure .later").count() > 0  # keys that are not reached yet
    page.keyboard.press("Space")
    assert page.locator(".figure .later").count() == 0  # who stops sees the whole step
    before = share.get_attribute("aria-valuenow")
    page.clock.run_for(60_000)
    assert (step_of(page), share.get_attribute("aria-valuenow")) == (3, before)
    page.keyboard.press("End")
    page.get_by_role("button", name="play").click()
    assert step_of(page) == 0  # again from the start
    page.locator(".controls select").select_option("2")
    for _ in range(600):
        page.clock.run_for(500)
        if page.get_by_role("button", name="play").count():
            break
    assert step_of(page) == LAST


def test_a_number_is_shown_on_hover_and_there_for_a_reader(opened):
    seen = walk(TEXT)
    page = opened(seen)
    page.get_by_role("button", name="score", exact=False).click()
    cell = page.locator(".maps table").nth(2).locator("td[data-r='5'][data-c='1']")
    expected = f"{seen.dots[2, 5, 1]:.3f}"
    assert cell.text_content() == expected
    cell.hover()
    assert page.locator(".tip").inner_text().split("\n") == [expected, "q · k, head 2 · ran · cat"]
    table = page.get_by_role("table", name="q · k, head 2")
    assert table.get_by_role("cell", name=expected, exact=True).count() >= 1
    page.get_by_role("button", name="softmax").click()
    ends = page.locator(".row-of .end")
    assert ends.last.inner_text() == "Σ = 100 %"
    shown = page.locator(".row-of tr:last-child td").all_inner_texts()[:7]
    assert shown == [f"{100 * w:.0f} %" for w in seen.steps.weights[0, 3].tolist()]


def test_another_word_and_head_can_be_followed(opened):
    seen = walk(TEXT)
    page = opened(seen)
    page.get_by_role("button", name="weigh").click()
    page.get_by_role("button", name="ran", exact=True).click()
    page.get_by_role("button", name="head 2").click()
    said = page.locator(".told p").inner_text()
    assert said == "What head 2 finds for ran: every value times its weight, added up."
    found = page.locator(".weigh .sum td").all_inner_texts()[-4:]
    assert [float(n) for n in found] == pytest.approx(seen.steps.out[2, 5].tolist(), abs=0.00501)
    assert page.locator(".head-chip").nth(2).get_attribute("aria-pressed") == "true"


def test_words_are_only_ever_text(opened):
    seen = walk(HOSTILE)
    page = opened(seen)
    for _ in range(LAST + 1):
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2  # what it carries, and itself
        page.keyboard.press("ArrowRight")
    assert page.title() == "attention, step by step"
    words = page.locator(".sentence-of .word")
    assert [w.get_attribute("title") for w in words.all()] == seen.words
    words.nth(0).click()
    assert "<img/src=x/onerror=" in words.nth(0).get_attribute("title")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(opened, scheme):
    page = opened(walk(TEXT), color_scheme=scheme, reduced_motion="reduce")

    def brightness() -> float:
        colours = page.evaluate(
            "[document.documentElement, document.querySelector('.cells td')].map("
            "(e) => getComputedStyle(e).backgroundColor)"
        )
        return [sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in colours]

    before = brightness()
    assert (before[0] > 128) == (scheme == "light")
    page.get_by_role("button", name="light or dark").click()
    after = brightness()
    assert (after[0] > 128) == (scheme == "dark")
    assert before[1] != after[1]


@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080)])
def test_the_largest_walk_never_needs_to_be_moved_sideways(opened, size):
    page = opened(walk("word " * 256, heads=64, dims=1024, masked=False))
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for _ in range(LAST + 1):
        assert page.locator("main").evaluate("m => m.scrollWidth <= m.clientWidth")
        page.keyboard.press("ArrowRight")


def test_a_real_head_is_played_too(opened, tiny):
    page = opened(follow(*mh.load_model(tiny), " ".join(WORDS[:7])))
    for _ in range(7):
        assert page.locator(".figure").inner_text()
        page.keyboard.press("ArrowRight")
    assert page.locator("h1").inner_text() == "6 join the heads"
