"""The data: a split that never moves, rows of whole names, windows of a text."""

import math

import pytest
import torch

from multihead.training.bigram import bigram, loss_of, names_bigram
from multihead.training.names import IGNORED, LONGEST, NAMES, Names, names, pack, part
from multihead.training.text import Text, read_text


def test_the_parts_are_all_names_once():
    every = [name for which in ("train", "held out", "test") for name in part(which)]
    assert sorted(every) == sorted(names())
    assert len({*every}) == len(every)
    assert max(map(len, every)) + 1 == LONGEST


def test_rows_hold_whole_names():
    some = part("test")[:200]
    ids, targets = pack(some, 32)
    assert NAMES.decode(ids.flatten()).split() == [*some]
    assert bool((ids[:, 0] == 0).all())
    real = targets != IGNORED
    assert int(real.sum()) == sum(len(name) + 1 for name in some)  # letters, and each end
    # What is to be foretold is what comes next, in the same row.
    inner = real[:, :-1] & real[:, 1:]
    assert torch.equal(targets[:, :-1][inner], ids[:, 1:][inner])


def test_an_epoch_has_every_name_at_most_once_and_the_next_another_order():
    data = Names(rows=64, tokens=64, seed=3)
    seen: list[list[str]] = [[], []]
    while data.epoch < 2:
        ids, _ = data.next()
        if data.epoch < 2:
            seen[data.epoch] += NAMES.decode(ids.flatten()).split()
    for one in seen:
        assert len({*one}) == len(one)
        assert {*one} <= {*part("train")}
        assert len(one) > 0.97 * len(part("train"))  # a last batch that is not full is left out
    assert seen[0] != seen[1]


@pytest.mark.parametrize("kind", ["names", "text"])
def test_batches_go_on_where_they_stopped(kind):
    def make():
        if kind == "names":
            return Names(rows=900, tokens=64, seed=1)
        return Text("abcdefghij" * 50, rows=4, tokens=7, seed=1)

    one, other = make(), make()
    for _ in range(6):  # past the end of an epoch
        one.next()
    other.go_to(one.position())
    for _ in range(6):
        assert all(torch.equal(a, b) for a, b in zip(one.next(), other.next(), strict=True))


def test_windows_of_a_text():
    text = "".join(chr(97 + i % 26) for i in range(1000))
    data = Text(text, rows=5, tokens=20, seed=0)
    ids, targets = data.next()
    assert ids.shape == targets.shape == (5, 20)
    assert bool(((ids + 1) % 26 == targets).all())
    held = torch.cat([ids for ids, _ in data.held_out()])
    assert held.shape == (4, 20)  # 100 held out: four windows, and what each foretells
    assert data.alphabet.decode(held[0]) == text[900:920]


def test_a_bigram_knows_the_one_before():
    ids = torch.tensor([[0, 1, 0, 1, 0, 1, 0, 1]])
    table = bigram([(ids[:, :-1], ids[:, 1:])], 2)
    assert table.exp()[0].tolist() == pytest.approx([1 / 6, 5 / 6])
    assert loss_of(table, [(ids[:, :1], ids[:, 1:2])]) == pytest.approx(-math.log(5 / 6))
    assert names_bigram("test") == pytest.approx(2.45, abs=0.02)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\t ", "is empty"),
        (b"\xff\xfe\x00", "must be text in UTF-8, and byte 0 is not"),
        (b"abc\x80", "must be text in UTF-8, and byte 3 is not"),
        (None, "must be a file that can be read"),
    ],
)
def test_a_text_that_cannot_be_read(tmp_path, content, said):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as error:
        read_text(path)
    assert str(path) in str(error.value)


def test_a_byte_order_mark_is_no_character(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(path) == "abc"


@pytest.mark.parametrize(("length", "fits"), [(10, False), (100, False), (219, False), (220, True)])
def test_a_text_shorter_than_the_context(length, fits):
    make = lambda: Text("ab" * (length // 2) + "a" * (length % 2), rows=2, tokens=21, seed=0)  # noqa: E731
    if fits:
        assert make().next()[0].shape == (2, 21)
    else:
        with pytest.raises(
            ValueError, match=f"of 21 tokens needs a text of 220 .* this one has {length}"
        ):
            make()


def test_a_row_that_no_name_fits():
    with pytest.raises(
        ValueError, match="tokens, of a row, must have room for the longest name, 16, and 15"
    ):
        Names(rows=2, tokens=15, seed=0)
