"""What `explain` prints is what the library computes; what forms cost is what the formulas say."""

import io
import itertools
import re
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

import multihead as mh
from multihead import ladder
from multihead.views import costs, forms
from multihead.views.explain import RUNGS, STEPS, explain
from multihead.views.shades import NUMBERS, WEIGHTS
from multihead.views.walk import Walk, walk

TEXT = "The cat that I saw yesterday ran away"
DOCS = Path(__file__).parents[2] / "docs" / "explain.md"


def printed(seen: Walk, width: int = 80, **asked) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    explain(seen, console, **{"costs": False, **asked})
    return file.getvalue()


def part(page: str, begin: str, end: str) -> list[str]:
    """The lines between two titles."""
    lines = page.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"── {begin} "))
    last = next(i for i, line in enumerate(lines) if line.startswith(f"── {end} "))
    return lines[first + 1 : last]


def numbers(line: str) -> torch.Tensor:
    return torch.tensor([float(n) for n in re.findall(r"-?\d+\.\d+|-inf", line)])


def row(lines: list[str], label: str) -> str:
    return next(line for line in lines if line.startswith(f"  {label}")).removeprefix(f"  {label}")


def heads(layer: mh.MultiHeadAttention, x: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values by the rows that each head owns, with no reshape."""
    rows, dim = layer.qkv.weight.detach(), layer.head_dim
    return [
        torch.stack([x @ w[h * dim : (h + 1) * dim].T for h in range(layer.num_heads)])[None]
        for w in rows.chunk(3)
    ]


CASES = [
    {"heads": 4, "dims": 16},
    {"heads": 3, "dims": 15, "seed": 7},
    {"heads": 2, "dims": 6, "masked": False},
    {"heads": 1, "dims": 5},
    {"heads": 5, "dims": 5, "seed": 1},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_numbers_are_those_of_attend(case):
    seen = walk(TEXT, **case)
    page, i, n = printed(seen), 4, 8
    mask = mh.causal() if case.get("masked", True) else None
    query, key, value = heads(seen.layer, seen.x)
    out = mh.attend(query, key, value, mask=mask)[0]
    eye = torch.eye(n).expand(1, seen.heads, n, n)
    weights = mh.attend(query, key, eye, mask=mask)[0]  # with these values, out is the weights

    close = {"rtol": 0, "atol": 0.00501}
    steps = part(page, "3 score", "7 weigh the values")
    dots = (query @ key.mT)[0, 0, i]
    torch.testing.assert_close(numbers(row(steps, "q · k")), dots, **close)
    scaled = dots / seen.head_dim**0.5
    torch.testing.assert_close(numbers(row(steps, "÷ √head_dim")), scaled, **close)
    hidden = scaled.clone()
    hidden[i + 1 :] = -torch.inf
    label, expected = ("as before", scaled) if mask is None else ("masked", hidden)
    torch.testing.assert_close(numbers(row(steps, label)), expected, **close)
    percents = re.findall(r"(\d+) %", row(steps, "weights"))
    assert percents == [f"{100 * w:.0f}" for w in weights[0, i].tolist()]

    found = part(page, "7 weigh the values", "8 concatenate")
    shown = min(seen.head_dim, 4)
    torch.testing.assert_close(numbers(row(found, "sum")), out[0, i, :shown], **close)
    joined = part(page, "8 concatenate", "9 project")
    for h in range(seen.heads):
        line = numbers(row(joined, f"head {h}"))
        torch.testing.assert_close(line, out[h, i, :shown], **close)
    mixed = part(page, "9 project", "the ladder")
    y = seen.layer(seen.x)[i].detach()
    torch.testing.assert_close(numbers(row(mixed, "y ")), y[: min(seen.dims, 4)], **close)
    shares = [out[h, i] @ w for h, w in enumerate(seen.matrices()["W_oᵀ"])]
    torch.testing.assert_close(torch.stack(shares).sum(0), y, rtol=0, atol=1e-5)
    lengths = numbers(next(line for line in mixed if line.startswith("  head 0")))
    torch.testing.assert_close(lengths, torch.stack(shares).norm(dim=-1)[:5], **close)


@pytest.mark.parametrize("masked", [True, False])
def test_a_map_has_the_shade_of_every_weight(masked):
    seen = walk(TEXT, masked=masked)
    lines = part(printed(seen), "6 softmax", "7 weigh the values")
    first = next(i for i, line in enumerate(lines) if "head 0" in line)
    places = [lines[first].index(f"head {h}") for h in range(4)]
    for i, word in enumerate(seen.words):
        line = lines[first + 2 + i]
        assert line.startswith(f"  {word}")
        for h, j in itertools.product(range(4), range(8)):
            cell = line.ljust(80)[places[h] + 2 * j :][:2]
            if masked and j > i:
                assert cell == "  "
                continue
            weight = seen.steps.weights[h, i, j].item()
            assert cell == 2 * next(mark for least, mark in WEIGHTS if weight >= least)
        assert lines[first + 1][places[0] + 2 * i] == word[0]


def test_each_head_shows_its_own_rows_of_w():
    seen = walk(TEXT, heads=3, dims=15)
    lines = part(printed(seen), "1 project", "2 split")
    top = next(i for i, line in enumerate(lines) if "W_oᵀ" in line)
    places = [lines[top].index(name) for name in ("W_q", "W_k", "W_v", "W_oᵀ")]
    drawn = [line for line in lines[top + 1 :] if line][: 3 * 5]
    matrices = [*seen.layer.qkv.weight.chunk(3), seen.layer.out.weight.T]
    for r, line in enumerate(drawn):
        assert line.startswith(f"  head {r // 5}" if r % 5 == 0 else "        ")
        for place, matrix in zip(places, matrices, strict=True):
            usual = matrix[r] * 15**0.5
            marks = [next(m for least, m in NUMBERS if n >= least) for n in usual.tolist()]
            assert line[place : place + 15] == "".join(marks)


def test_the_nine_steps_come_in_order_and_name_rungs_that_are_there():
    page = printed(walk(TEXT))
    titles = re.findall(r"^── (\d) (.+?) ─", page, re.MULTILINE)
    assert titles == [(str(n), name) for n, (name, _) in enumerate(STEPS, start=1)]
    assert len(STEPS) == 9
    folder = Path(ladder.__file__).parent
    assert all((folder / f"{rung}.py").exists() for rung in RUNGS)
    assert len(RUNGS) == 6
    named = re.findall(r"ladder: (.+)", page)
    assert len(named) == 9
    for word in ("linear", "dot", "softmax", "split_heads", "merge_heads", "triangle", "out_proj"):
        assert word in "".join(named)
        assert any(word in rung.read_text("utf-8") for rung in folder.glob("*.py"))


def test_it_says_at_the_top_and_at_the_maps_that_the_weights_mean_nothing():
    page = printed(walk(TEXT, seed=5))
    top, maps = page.index("random (seed 5) and not learnt"), page.index("Random weights, so")
    assert top < page.index("1 project") < maps < page.index("7 weigh")
    assert "Words are cut at spaces" in page


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (TEXT, {}),
        ("one", {"heads": 1, "dims": 1}),
        ("日本語 は 美しい 😀 naïve [bold]x[/bold]", {"heads": 3, "dims": 12}),
        (" ".join(f"word{i}" for i in range(256)), {"heads": 64, "dims": 1024, "masked": False}),
        ("a" * 500 + " b", {"heads": 16}),
    ],
    ids=["plain", "one", "wide", "much", "long"],
)
@pytest.mark.parametrize("width", [80, 60, 30])
def test_a_page_fits_and_ends_in_no_spaces(text, asked, width):
    for line in printed(walk(text, **asked), width).splitlines():
        assert cell_len(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize("width", [79, 30])
def test_a_narrow_page_says_what_it_wants(width):
    assert f"wants 80 columns and has {width}:" in " ".join(printed(walk(TEXT), width).split())
    assert "wants 80 columns" not in printed(walk(TEXT))


@pytest.mark.parametrize("masked", [True, False])
def test_which_weights_are_0_is_said_as_it_is(masked):
    seen = walk(TEXT, masked=masked)
    said = " ".join(" ".join(part(printed(seen), "6 softmax", "7 weigh the values")).split())
    assert ("what the mask forbids is exactly 0, the rest is above 0" in said) == masked
    assert ("its row: weights above 0 that add up to 100 %" in said) == (not masked)
    zero = torch.ones(8, 8, dtype=torch.bool).triu(1) if masked else torch.zeros(8, 8).bool()
    assert torch.equal(seen.steps.weights == 0, zero.expand(4, 8, 8))


def test_what_is_left_out_is_said():
    text = " ".join(f"word{i}" for i in range(40))
    page = printed(walk(text, heads=32, dims=64, masked=False))
    for said in ("first 8 of 40 words", "first 16 of 40 words", "first 8 of 32 heads",
                 "first 16 of 32 heads", "The other 32 words:", "34 others"):  # fmt: skip
        assert said in page
    assert "first" not in printed(walk(TEXT))


def test_a_seed_gives_one_page_and_leaves_the_callers_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    pages = [printed(walk(TEXT, seed=seed)) for seed in (3, 3, 4)]
    forms.count("slices, split", 4, 4, 2)
    assert torch.equal(torch.rand(3), expected)
    assert pages[0] == pages[1] != pages[2]


def test_equal_words_are_equal_vectors():
    x = walk("the cat and the dog").x
    assert torch.equal(x[0], x[3])
    assert not torch.equal(x[0], x[1])


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [
        ("", {}, "the text has no words"),
        (" \t\n ", {}, "the text has no words"),
        ("a " * 257, {}, "256 words at most, and it has 257"),
        ("a", {"heads": 3}, "16 dims do not make 3 equal heads; 16 can be cut into 1, 2, 4, 8, 16"),
        ("a", {"heads": 0}, "heads must be 1 to 64, and 0 came"),
        ("a", {"heads": 65, "dims": 65}, "heads must be 1 to 64"),
        ("a", {"dims": 0}, "dims must be 1 to 1,024"),
        ("a", {"dims": 100_000}, "dims must be 1 to 1,024, and 100,000 came"),
        ("a", {"seed": -1}, "a seed must be 0 to"),
        ("a", {"seed": 2**63}, "a seed must be 0 to"),
    ],
)
def test_what_cannot_be_walked_through_is_said(text, asked, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        walk(text, **asked)


# ---- what the forms cost ------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "h", "narrow"), [(8, 4, 4), (7, 3, 5), (11, 2, 13)])
def test_counts_are_the_formulas(n, h, narrow):
    d = h * narrow

    def expected(heads: int, width: int) -> forms.Count:
        weights = 4 * d * heads * width  # q, k, v and out
        return forms.Count(weights, n * weights + 2 * n * n * heads * width, heads * width)

    counts = {form: forms.count(form, n, d, h) for form in forms.FORMS}
    assert counts == {
        "one wide head": expected(1, d),
        "slices, split": expected(h, narrow),
        "slices, stacked": expected(h, narrow),
        "full-width, stacked": expected(h, d),
        "slices, fused": expected(h, narrow),
    }


def test_every_form_computes_attention_of_its_shape():
    for build in forms.FORMS.values():
        assert build(7, 12, 3)(torch.randn(1, 7, 12)).shape == (1, 7, 12)


def test_memory_is_what_the_maps_take():
    n, d, h, size = 64, 32, 4, 4
    took = forms.measure(n, d, h, seconds=0)
    one = n * n * size
    wide, split = took["one wide head"], took["slices, split"]
    # scores, masked scores and weights live at once: three maps a head
    assert split.forward_bytes - wide.forward_bytes == 3 * (h - 1) * one
    assert took["slices, stacked"].forward_bytes < wide.forward_bytes  # one map at a time
    assert took["slices, stacked"].training_bytes > h * one  # and then all of them
    assert all(here.seconds > 0 for here in took.values())
    assert all(here.training_bytes > here.forward_bytes for here in took.values())


def test_only_fused_memory_grows_with_the_tokens():
    growth = {}
    small, large = (forms.measure(n, 16, 4, seconds=0) for n in (128, 256))
    for form in forms.FORMS:
        growth[form] = large[form].forward_bytes / small[form].forward_bytes
    assert growth.pop("slices, fused") <= 2.01
    assert min(growth.values()) > 3


def test_peak_counts_what_lives_at_once():
    given = torch.zeros(1000)
    with forms.Peak() as peak:
        given.add_(1)  # not new
        a = given + 1  # 4,000 bytes
        b = a.view(10, 100).T  # a view
        c = b.double()  # and 8,000
        del a, b
        d = c + 1  # 8,000 more, and 4,000 less
        del c
        e = d[0].clone()  # 80 bytes
    assert (peak.bytes, peak.now) == (16_000, d.nbytes + e.nbytes)


def test_measuring_leaves_the_threads_as_they_were():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    forms.measure(8, 8, 2, seconds=0)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


def test_the_table_counts_right():
    lines = [" ".join(line.plain.split()) for line in costs.counted(4, 16)]
    assert lines[1:] == [
        "one wide head of 16 1 × 16 = 16 4 × 16² = 1,024 1",
        "4 slices of 4 4 × 4 = 16 4 × 16² = 1,024 4",
        "4 full-width heads of 16 4 × 16 = 64 16 × 16² = 4,096 4",
    ]
    assert "from 64 multiplications to 16" in costs.reading(4, 16)[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 64])
def test_the_sizes_to_measure_split_evenly_and_stay_small(count):
    tokens, dims, some = costs.sizes(count)
    assert dims % some == 0
    assert (dims // some) % 8 == 0
    assert tokens * dims <= 2**16
    assert 2 <= some <= 16


def test_the_cost_section_measures_and_fits(monkeypatch):
    monkeypatch.setattr(costs, "TOKENS", 16)
    page = printed(walk(TEXT, heads=1), costs=True)
    assert "one head has nothing to compare" in page
    assert len(re.findall(r"\d\.\d ms +\d+\.\d MB +\d+\.\d MB$", page, re.MULTILINE)) == 5
    page = printed(walk(TEXT, heads=4), costs=True)
    assert page.index("Counted, for 16 dims") < page.index("Measured on this machine")
    assert all(cell_len(line) <= 80 for line in page.splitlines())


def test_the_page_of_the_docs_shows_what_is_printed():
    """The blocks that start with the command; … stands for lines left out."""
    blocks = re.findall(r"^```text\n\$ multihead explain (.+?)\n(.*?)^```$", DOCS.read_text("utf-8"),
                        re.MULTILINE | re.DOTALL)  # fmt: skip
    assert blocks
    for command, shown in blocks:
        assert command == f'"{TEXT}" --heads 4'
        page = printed(walk(TEXT, heads=4))
        for piece in re.split(r"^  …\n", shown, flags=re.MULTILINE):
            assert piece.strip("\n") in page
