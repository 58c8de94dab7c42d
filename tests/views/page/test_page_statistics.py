"""A recording of statistics alone: what there is, is shown; what there is not, is said."""

import pytest
import torch
from pages import EVERY, Attends, look, serve
from typer.testing import CliRunner

import multihead as mh
from multihead import cli
from multihead.views.page.serving import get
from multihead.views.page.session import Session
from multihead.views.report import STATS


def statistics(stats=STATS):
    module = Attends()
    with torch.no_grad(), mh.record(module, stats=stats, keep_qk=False) as rec:
        module(*torch.randn(3, 1, 2, 20, 8))
    return rec


def session_of(rec) -> Session:
    session = Session()
    session.add(rec, "statistics", {"model": "by hand"})
    return session


def test_there_is_no_page_to_write_and_it_says_so(tmp_path):
    run = tmp_path / "stats.heads"
    statistics().save(run)
    place = tmp_path / "page.html"
    given = ["look", "--recording", str(run), "--export", str(place)]
    for heads in ([], ["--heads", "0.0"]):
        found = CliRunner().invoke(cli.build(), [*given, *heads], prog_name="multihead")
        assert found.exit_code == 2, found.output
        assert "statistics alone, and no maps to write" in " ".join(found.stderr.split())
    assert not place.exists()
    status, body = get(session_of(statistics()), "/export.html")
    assert status == 400
    assert b"record again with keep_qk=True" in body
    with pytest.raises(ValueError, match="statistics alone, and no maps"):
        mh.explore(statistics())


def test_the_page_does_not_offer_one(new_page):
    page = look(new_page(), serve(session_of(statistics())))
    page.get_by_role("button", name="Export", exact=True).click()
    page.get_by_text("There is no page to take along").wait_for()
    assert page.get_by_role("button", name="Page as HTML").count() == 0


def test_home_says_that_there_are_no_thumbnails(new_page):
    page = look(new_page(), serve(session_of(statistics())))
    page.get_by_text("There are no thumbnails").wait_for()
    assert page.get_by_text("Thumbnails show").count() == 0
    assert page.locator(".cell canvas").count() == 0
    assert page.locator(".cell .at").all_inner_texts() == ["0.0", "0.1"]


def test_a_heat_map_that_was_kept_is_drawn(new_page):
    page = look(new_page(), serve(session_of(statistics(EVERY))))
    page.get_by_text("Thumbnails show").wait_for()
    assert page.get_by_text("There are no thumbnails").count() == 0
    assert page.locator(".cell canvas").count() == 2
