"""`multihead bench`: a table that fits, an object for scripts, and every wrong option in a line."""

import json

import pytest
from test_cli import call

from multihead import measuring

QUICK = ("bench", "--tokens", "16,32", "--heads", "4", "--dim", "8")


def test_a_table_of_80_columns():
    result = call(*QUICK, "--kv-heads", "2", "--mask", "causal() & window(5)", "--batch", "2")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (table,) = [n for n, line in enumerate(lines) if line.startswith("  tokens")]
    assert [line.split()[0] for line in lines[table + 1 : table + 3]] == ["16", "32"]
    assert len(lines[table + 1].rstrip()) == len(lines[table])
    said = " ".join(" ".join(lines).split())
    assert "causal() & window(5), batch of 2, 4 heads of 8, sharing 2 key heads; forward" in said
    assert "entropy, distance, peak of every row" in said


def test_the_same_as_json():
    result = call(*QUICK, "--json", "--backward", "--mask", "none", "--stats", "entropy, received")
    told = json.loads(result.stdout)
    assert [row["tokens"] for row in told["rows"]] == [16, 32]
    assert all(row[name] > 0 for row in told["rows"] for name in ("sdpa", "attend", "looking"))
    asked = told["asked"]
    assert (asked["mask"], asked["stats"]) == (None, ["entropy", "received"])
    assert (asked["heads"], asked["kv_heads"], asked["dim"], asked["backward"]) == (4, 4, 8, True)
    assert {"date", "cpu", "torch"} <= {*told["machine"]}
    assert "multihead: Timing" in result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--tokens", "many"], "--tokens must be numbers from 2 to 1,048,576, and 'many' came"),
        (["--tokens", "1"], "--tokens must be numbers from 2"),
        (["--tokens", ""], "--tokens must be numbers from 2"),
        (["--heads", "12", "--kv-heads", "5"], "a multiple of key heads, and 12 on 5 came"),
        (["--mask", "casual()"], "cannot read the mask 'casual()'"),
        (["--mask", "padding(t0)"], "names t0, but 0 tensors came"),
        (["--stats", "entropies"], "--stats takes names, and 'entropies' came; give some of"),
        (["--stats", "top(5)"], "--stats takes names, and 'top(5)' came"),
        (["--stats", ""], "--stats takes names, and '' came"),
        (["--mask", "~" * 3000 + "causal()"], "nested too deeply"),
        (["--kv-heads", "-12"], "kv-heads must be 1 or more, and -12 came"),
        (["--dtype", ""], "there is no dtype ''"),
        (["--dim", "9" * 23], "take more memory than there is"),
        (["--batch", "4000000000", "--heads", "4000000000"], "take more memory than there is"),
        (["--dtype", "int8"], "there is no dtype 'int8'"),
        (["--device", "tpu"], "a device is cpu or cuda here"),
        (["--dim", "0"], "dim must be 1 or more"),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_is_timed(given, said, monkeypatch):
    monkeypatch.setattr(measuring, "medians", lambda _: pytest.fail("timed"))
    result = call("bench", *given)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert result.stdout == ""


@pytest.mark.parametrize(("others", "warns"), [(0.52, True), (0.02, False)])
def test_a_busy_machine_is_told(others, warns, monkeypatch):
    monkeypatch.setattr(measuring, "others", lambda *_: others)
    said = " ".join(call(*QUICK).stdout.split())
    assert ("Others took 52% of this machine's processors" in said) == warns
    assert json.loads(call(*QUICK, "--json").stdout)["others"] == others


def test_what_was_measured_is_shown_whatever_ends_it(monkeypatch):
    whole = measuring.medians

    def full(calls):
        if "attend" in calls and calls["attend"]().shape[2] == 32:
            raise RuntimeError("not enough memory: you tried to allocate 1099511627776 bytes.")
        return whole(calls)

    monkeypatch.setattr(measuring, "medians", full)
    result = call(*QUICK)
    assert result.exit_code == 2
    assert "\n  16 " in result.stdout
    assert "32 tokens of 1 × 4 heads of 8 take more memory than there is" in result.stderr


def test_where_a_mask_finds_no_room_as_a_matrix(monkeypatch):
    monkeypatch.setattr(measuring, "_free", lambda _: 8 * 64 * 64 - 1)
    sizes = ("--tokens", "16,64", "--heads", "1", "--dim", "4")
    result = call("bench", *sizes, "--mask", "window(5)")
    assert result.exit_code == 0, result.output
    row = next(line for line in result.stdout.splitlines() if line.startswith("  64 "))
    assert row.split()[1] == row.split()[-4] == "–"
    assert "which takes this mask as a matrix" in " ".join(result.stdout.split())
    assert "find no room" in result.stdout
