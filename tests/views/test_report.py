"""What a report says is what was recorded and named, in words that claim no more."""

import csv
import dataclasses
import io
import json
import math
import os
import re
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from small_reports import NAMES, name, recorded, report, save_model, verdict

from multihead.patterns import habits
from multihead.views import files
from multihead.views.findings import findings
from multihead.views.report import Report, content, tokenise
from multihead.views.terminal import best, extremes, print_report
from multihead.views.tokens import visible


def printed(seen: Report, width: int = 80, **asked) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    print_report(seen, console, **asked)
    return file.getvalue()


def said(seen: Report) -> str:
    return "\n".join(findings(seen))


# ---- the page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 60, 40])
@pytest.mark.parametrize("every", [False, True])
def test_a_page_fits_and_ends_in_no_spaces(width, every):
    for line in printed(report(), width, every=every).splitlines():
        assert cell_len(line) <= width
        assert line == line.rstrip()


def test_the_header_says_which_model_and_text():
    page = " ".join(printed(report()).split())
    assert "tiny, 4-bit quantised" in page
    assert "licence Apache-2.0" in page
    assert page.count("Apache-2.0") == 1
    assert "2 layers × 3 heads, sharing 1 key head text" in page
    assert "64 of 70; no BOS" in page
    assert f"loss {recorded().loss.nanmean():.2f} nats a token" in page


STORY = "猫 said שלום to 👩‍🚀\nand 😀 ran; "


def about(content: str, total: int | None = 64) -> Report:
    seen = report()
    return dataclasses.replace(
        seen, about=dataclasses.replace(seen.about, content=content, total=total)
    )


def test_the_text_itself_is_shown_and_not_its_tokens():
    page = printed(about(STORY))
    assert "a text: 猫 said שלום to 👩‍🚀 and 😀 ran;\n" in page  # whole: nothing cut, no …
    found = json.loads(files.to_json(about(STORY)))
    assert found["text"]["content"] == STORY


@pytest.mark.parametrize(
    ("content", "total", "end"),
    [("One two.", 64, "two."), ("One two.", 65, "two. …"), ("One two.", None, "two. …"),
     ("word " * 23 + "and then", 64, "word and …"), ("x" * 121, 64, "x" * 120 + " …")],
)  # fmt: skip
def test_what_was_cut_and_nothing_else_ends_in_dots(content, total, end):
    assert about(content, total).start.endswith(end)
    assert about(content, total).start.count("…") == end.count("…")


def test_the_content_is_what_was_read(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(save_model(tmp_path))
    text = "The  red\nlight 日本 on the mole was out and"
    for tokens in (8, 9, 10, 50):
        ids, total = tokenise(tokenizer, text, tokens)
        read = content(tokenizer, text, ids, total)
        assert text.startswith(read)
        assert len(read.split()) == min(tokens, 10)


def test_counts_of_one_are_singular():
    one = [name(0, 0, "induction")]
    text = said(report(names=one, verdicts=None))
    assert "1 of 6 heads has a name" in text
    assert not re.search(r"\b1 (heads|layers|rows|tokens)\b", text + printed(report(names=one)))


def test_a_row_has_the_numbers_of_the_recording():
    lines = printed(report(), every=True).splitlines()
    for row in recorded().heads():
        line = next(x for x in lines if x.startswith(f"  {row['layer']}.{row['head']} "))
        shown = line.split()[1:5]
        expected = [f"{row['entropy']:.2f}", f"{row['distance']:.1f}"]
        assert shown == [*expected, f"{row['peak']:.2f}", f"{row['first']:.2f}"]


def test_names_stand_with_their_heads_and_where_they_were_measured():
    lines = printed(report(), every=True).splitlines()
    assert next(x for x in lines if x.startswith("  1.2 ")).endswith(
        "induction 0.84c, first token 0.60r"
    )
    assert next(x for x in lines if x.startswith("  0.0 ")).endswith("induction 0.50r")
    assert "names" not in printed(report(names=None, scores=None, verdicts=None)).split("──")[4]


def test_the_strongest_heads_come_first_and_each_once():
    twice = [name(0, 0, "induction", "at rest", 0.9), *NAMES, name(1, 2, "induction", "at rest")]
    assert [(n.layer, n.head) for n in best(twice, "induction")] == [(1, 2), (0, 0)]
    assert best(twice, "induction")[0].where == "on cue"
    cued = [name(0, head, "self", score=score) for head, score in enumerate((0.5, 0.9, 0.7))]
    assert [n.head for n in best(cued, "self")] == [1, 2, 0]
    page = printed(report())
    assert page.index("induction: reads") < page.index("previous token: reads")
    assert "(2 heads)" in page


def test_extremes_leave_out_heads_that_rest():
    rows = [{"layer": 0, "head": h, "entropy": e, "distance": d, "peak": p, "first": f}
            for h, (e, d, p, f) in enumerate([(0, 99, 1, 0.9), (1, 9, 0.6, 0), (3, 5, 0.2, 0.1)])]  # fmt: skip
    heads = {what: row["head"] for what, row in extremes(rows).items()}
    assert heads == {"sharpest": 1, "broadest": 2, "farthest": 1, "most local": 2}
    assert extremes(rows[:1])["farthest"]["head"] == 0  # where there are no others


def test_a_text_is_text_and_nothing_a_terminal_obeys():
    page = printed(about("\x1b[31m red"))
    assert "\x1b" not in page
    assert "\ufffd[31m red" in page
    assert visible("<E2 80>") == "<E2 80>"  # a piece of a letter, and no space in it
    assert visible("\x1b[31m \n") == "\ufffd[31m·⏎"


# ---- the findings -------------------------------------------------------------------------------


def test_a_name_that_holds_brings_its_evidence():
    text = said(report())
    for part in ("Head 1.2 reads what followed the same token before (induction, on cue): "
                 "0.84 ± 0.03 of its weight", "chance 0.02, controls 0.05, 587 rows",
                 "costs +1.94 nats a token on the second copy", "which hold 0.07 of a row, −0.13",
                 "in all heads of this name, +8.16. So the name holds. Also: 0.0."):  # fmt: skip
        assert part in text


def test_an_excess_is_said_to_be_one():
    local = name(1, 2, "local", "at rest", score=0.7, chance=0.0)
    (said,) = [line for line in findings(report(names=[local])) if "(local" in line]
    assert "of its weight beyond chance where there is an opportunity, controls 0.05" in said


def test_a_name_that_does_not_hold_says_so():
    text = said(report(verdicts=[verdict(NAMES[0], holds=False, effect=-0.007)]))
    assert "costs −0.01 nats" in text
    assert "that the model needs it to does not show" in text
    assert "name holds" not in text


def test_what_feeds_induction_is_told_in_weight():
    cut = verdict(NAMES[1], measured="what induction heads behind it miss", effect=0.484,
                  elsewhere=-0.001, together=0.53)  # fmt: skip
    text = said(report(verdicts=[cut]))
    assert re.search(r"takes 0\.48 from .*induction heads .*, 0\.00; .*, 0\.53\.", text)
    assert "nats" not in next(x for x in text.splitlines() if x.startswith("Head 0.1"))


def test_what_was_not_tested_says_so():
    line = next(x for x in said(report()).splitlines() if x.startswith("Head 0.1"))
    assert "Not tested." in line
    assert said(report(verdicts=None)).count("Not tested.") == 2  # not of first token
    assert "No head earned the name duplicate token." in said(report())


def test_counts():
    assert "3 of 6 heads have a name: 2 on cue (random tokens that come twice, after <s>), 2 at rest" in said(report())  # fmt: skip
    assert "no names were looked for" in said(report(names=None))
    assert "take names as guesses" in said(report(controlled=False))
    assert "take names as guesses" not in said(report())
    unsure = [name(0, 0, "induction", control=math.nan)]
    assert "controls" not in said(report(names=unsure)).splitlines()[1]


def test_resting_heads_are_those_of_habits():
    own = [s for h in habits(recorded()) for s in h.sinks if s.key == 0]
    assert f"{len(own)} of 6 heads leave over 0.3 of a row on the first token" in said(report())
    assert "habits say nothing" in said(report(tokens=20))


def test_a_number_that_is_none_is_told():
    rec = recorded(37)
    for i in range(len(rec.layers)):
        rec.layers[i].tensors["0.lse"][0, 0, 3] = math.nan
    seen = report(37)
    assert "In 2 layers a weight is not a number, first in model.layers.0.self_attn" in said(seen)
    json.loads(files.to_json(seen))


# ---- files --------------------------------------------------------------------------------------


def test_json_is_whole_and_strict():
    seen = report(verdicts=[verdict(NAMES[0], low=-math.inf)])
    found = json.loads(files.to_json(seen), parse_constant=pytest.fail)
    assert found["model"]["about"] == "tiny, 4-bit quantised"
    assert (found["tokens"], found["text"]["tokens_of_the_whole"]) == (64, 70)
    assert found["loss"] == pytest.approx(float(recorded().loss.nanmean()))
    assert [n["pattern"] for n in found["names"]] == [n.pattern for n in NAMES]
    assert found["verdicts"][0]["low"] is None
    assert found["verdicts"][0]["name"]["head"] == 2
    head = next(h for h in found["heads"] if (h["layer"], h["head"]) == (1, 2))
    assert [n["pattern"] for n in head["names"]] == ["induction", "first token"]
    assert head["scores"] == {"induction, on cue": 0.2}
    assert head["entropy"] == pytest.approx(recorded().heads()[5]["entropy"])
    assert found["findings"] == findings(seen)


def test_csv_has_a_line_a_head():
    rows = list(csv.DictReader(io.StringIO(files.to_csv(report()))))
    assert [(r["layer"], r["head"]) for r in rows] == [(str(l), str(h)) for l in (0, 1) for h in (0, 1, 2)]  # fmt: skip  # noqa: E741
    assert rows[5]["names"] == "induction on cue 0.84; first token at rest 0.60"
    assert float(rows[5]["induction, on cue"]) == 0.2
    assert float(rows[3]["distance"]) == pytest.approx(recorded().heads()[3]["distance"])
    assert "peak_key" not in rows[0]  # the mean of places says nothing
    bare = list(csv.DictReader(io.StringIO(files.to_csv(report(names=None, scores=None)))))
    assert "names" not in bare[0]


def test_files_say_which_model_they_are_of(tmp_path):
    seen = about("One two.")
    rows = list(csv.DictReader(io.StringIO(files.to_csv(seen))))
    assert {row["model"] for row in rows} == {"tiny, 4-bit quantised"}
    list(files.write_report(seen, tmp_path))
    lines = (tmp_path / "findings.txt").read_text("utf-8").splitlines()
    assert lines[0] == "tiny, 4-bit quantised; 64 tokens of a text: One two."
    assert lines[1:] == findings(seen)


def test_what_is_no_number_is_empty_in_csv():
    seen = report()
    scores = [{**row, "induction, on cue": math.nan} for row in seen.scores]
    rows = list(csv.DictReader(io.StringIO(files.to_csv(dataclasses.replace(seen, scores=scores)))))
    assert {row["induction, on cue"] for row in rows} == {""}


def test_figures_of_an_earlier_run_go_and_others_stay(tmp_path):
    list(files.write_report(report(names=None, scores=None, verdicts=None), tmp_path))
    assert (tmp_path / "map-most-local.svg").exists()
    (tmp_path / "map-of-mine.png").write_text("keep")
    (tmp_path / "grid.png").write_text("keep")
    told = set(files.write_report(report(), tmp_path))
    others = {path.name for path in tmp_path.iterdir()} - {path.name for path in told}
    assert others == {"map-of-mine.png", "grid.png"}


def test_every_figure_has_a_name_that_is_known_as_ours():
    from multihead.views.figures import figures

    bare = report(names=None, scores=None, verdicts=None)
    drawn = {n for seen in (report(), bare) for n, _ in figures(seen)}
    assert drawn <= files.every_figure()


def test_a_file_is_replaced_whole_and_others_are_left(tmp_path):
    (tmp_path / "heads.csv").write_text("old")
    (tmp_path / "mine.txt").write_text("keep")
    files.put(tmp_path / "heads.csv", b"new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"heads.csv": "new", "mine.txt": "keep"}  # fmt: skip
    assert (tmp_path / "heads.csv").stat().st_mode & 0o777 == 0o666 & ~files._umask()


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "heads.csv").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match="heads.csv could not be written: No space left on device"):
        files.put(tmp_path / "heads.csv", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["heads.csv"]
    assert (tmp_path / "heads.csv").read_text() == "old"


def test_a_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(ValueError, match="must be a folder that can be written"):
            files.prepare(bad)
    files.prepare(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


# ---- the text -----------------------------------------------------------------------------------


def words(text, **_):
    return {"input_ids": [len(word) for word in text.split()]}


def test_a_text_is_cut_and_counted():
    ids, total = tokenise(words, "a bb ccc " * 10, 12)
    assert (ids.tolist(), total) == ([1, 2, 3] * 4, 30)
    ids, total = tokenise(words, "a " * 10_000, 12)
    assert (len(ids), total) == (12, None)
    assert ids.dtype == torch.int64


@pytest.mark.parametrize(
    ("text", "part"),
    [(" \n", "the text is empty"), ("a b c", "at least 8 tokens, and it has 3"), ("\udcff" * 9, "UTF-8")],
)  # fmt: skip
def test_a_text_that_will_not_do(text, part):
    with pytest.raises(ValueError, match=part):
        tokenise(words, text, 12)
