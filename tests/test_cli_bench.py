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
        (["--stats", "entropies"], "there is no statistic 'entropies'"),
        (["--stats", "peak,peak"], "two statistics are called 'peak'"),
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
    monkeypatch.setattr(measuring, "busy", lambda: others)
    said = " ".join(call(*QUICK).stdout.split())
    assert ("Others took 52% of this machine's processors" in said) == warns
    assert json.loads(call(*QUICK, "--json").stdout)["others"] == others


def test_memory_that_there_is_not(monkeypatch):
    def full(_):
        raise RuntimeError("not enough memory: you tried to allocate 1099511627776 bytes.")

    monkeypatch.setattr(measuring, "medians", full)
    result = call(*QUICK)
    assert result.exit_code == 2
    assert "32 tokens took more memory than there is; give fewer with --tokens" in result.stderr
