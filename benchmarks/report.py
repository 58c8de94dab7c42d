"""Put the results of all benchmarks into docs/performance.md, between its markers.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from measure import RESULTS

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / name
    for name in ("docs/performance.md", "docs/induction.md", "docs/training.md", "README.md")
]


def attend(body: dict) -> str:
    """The table of `attend`, and of its memory."""
    times = [
        (
            row["case"], f"{row['tokens']:,}", row["pass"], _ms(row["sdpa"]), _ms(row["ours"]),
            _bold(row["ours"] / row["sdpa"]), _times(row, "eager"),
        )
        for row in body["times"]
    ]  # fmt: skip
    memory = [
        (row["case"], f"{row['tokens']:,}", f"{row['bytes'] / 1e6:.0f}") for row in body["memory"]
    ]
    return "\n\n".join(
        [
            _machine(body),
            _table("question | tokens | pass | SDPA | attend | ratio | eager", times),
            _table("`tiled`, forward and backward | tokens | MB above what it returns", memory),
        ]
    )


def layer(body: dict) -> str:
    """The table of the layer, and a line on decoding."""
    known = {(row["layer"], row["pass"]): row for row in body["times"]}
    rows = []
    for name in dict.fromkeys(row["layer"] for row in body["times"]):
        found = [known.get((name, kind)) for kind in ("forward", "both")]
        cells = [(_ms(row["seconds"]), _bold(row["ratio"])) if row else "––" for row in found]
        rows.append((name, *cells[0], *cells[1]))
    told = body["decoding"]
    decoding = (
        f"Decoding {told['tokens']} tokens one by one: {_ms(told['cached'])} through the cache, "
        f"{_ms(told['anew'])} by starting anew, {told['anew'] / told['cached']:.1f} times as long."
    )
    table = _table("layer | forward | ratio | both | ratio", rows)
    return "\n\n".join([_machine(body), table, decoding])


def layer_bar(body: dict) -> str:
    rows = [r for r in body["times"] if r["layer"] == "MultiHeadAttention"]
    return ", ".join(f"{row['ratio']:.3f} ({row['pass']})" for row in rows)


def observe(body: dict) -> str:
    """The table of `observe`."""
    rows = [
        (
            f"{row['tokens']:,}", _ms(row["sdpa"]), _ms(row["ours"]),
            _bold(row["ours"] / row["sdpa"]), _bold(row["eighth"] / row["sdpa"]),
            _times(row, "eager"),
        )
        for row in body["times"]
    ]  # fmt: skip
    table = _table("tokens | SDPA | observe | ratio | 1 in 8 | eager", rows)
    return f"{_machine(body)}\n\n{table}"


def observe_ratios(body: dict, name: str) -> str:
    return ", ".join(f"{r[name] / r['sdpa']:.2f} ({r['tokens']:,})" for r in body["times"])


def observe_memory(body: dict) -> str:
    told = body["memory"]
    return f"{told['observe'] / 1e6:.0f} MB; {told['train'] / 1e6:.0f} MB"


def observe_bar(body: dict) -> str:
    parts = [
        f"{r['ours'] / r['sdpa']:.1f} times the fused kernel's time at {r['tokens']:,} tokens"
        for r in body["times"][1:]
    ]
    memory = body["memory"]["observe"] / 1e6
    return f"{', '.join(parts)}, and {memory:.0f} MB beyond the results at the latter"


def record(body: dict) -> str:
    """The tables of `record`: time, and memory beyond the plain forward."""
    times = [
        (
            f"{row['tokens']:,}", _ms(row["plain"]), _ms(row["record"]),
            _bold(row["record"] / row["plain"]),
            f"{row['eager'] / row['plain']:.2f}" if "eager" in row else "–",
        )
        for row in body["times"]
    ]  # fmt: skip
    memory = [
        (row["kind"], f"{row['tokens']:,}", f"{row['more'] / 1e6:.0f}") for row in body["memory"]
    ]
    return "\n\n".join(
        [
            _machine(body),
            _table("tokens | SDPA forward | recorded | ratio | eager, output_attentions", times),
            _table("memory | tokens | MB more than the plain forward", memory),
        ]
    )


def record_bar(body: dict) -> str:
    ratios = ", ".join(f"{r['record'] / r['plain']:.2f} ({r['tokens']:,})" for r in body["times"])
    most = max((r for r in body["memory"] if r["kind"] == "record"), key=lambda r: r["tokens"])
    return f"{ratios}; {most['more'] / 1e6:.0f} MB"


def monitor(body: dict) -> str:
    """What a sample costs, and the share of training time."""
    head = f"told | a step | one that is looked at | share at every={body['every']}"
    cells = [(r["kind"], _ms(r["plain"]), _ms(r["seconds"]), r["share"]) for r in body["times"]]
    rows = [(*some, f"**{100 * share:.2f} %**") for *some, share in cells]
    return f"{_machine(body)}\n\n{_table(head, rows)}"


def page(body: dict) -> str:
    """How light the explorer is, beside its bars."""
    first, _, last = body["resident_MB"]
    rows = [
        ("first view after the recording", f"{body['first_view_s']:.2f} s", "1.5 s"),
        ("a tile, median, from a cold cache", f"{body['tile_median_ms']:.0f} ms", "50 ms"),
        ("a tile, 95th percentile", f"{body['tile_95_ms']:.0f} ms", "150 ms"),
        ("page weight, all that the first view fetches", f"{body['weight_kB']:.0f} kB", "600 kB"),
        (
            f"the server's memory, a tenth into {body['requests']:,} random tiles and at their end",
            f"{first:,.0f} MB, {last:,.0f} MB", "flat",
        ),
        ("cut and see, 512 tokens", f"{body['cut_s']:.1f} s", "3 s"),
    ]  # fmt: skip
    return f"{_machine(body)}\n\n{_table('SmolLM2, 4,096 tokens | measured | bar', rows)}"


def gpu(body: dict) -> str:
    """Forward, with backward, and decoding, in milliseconds."""
    forward = [
        (
            f"{r['batch']}, {r['heads']}, {r['tokens']:,}, {r['dim']}",
            "causal" if r["causal"] else "full", *(_gpu(r, n) for n in _FORWARD),
            _bold(r["observing"] / r["best"]), *(f"{r[n] / r['plain']:.2f}" for n in _SWEEPS),
        )
        for r in body["forward"]
    ]  # fmt: skip
    both = [
        (
            f"{r['tokens']:,}, {r['dim']}", "causal" if r["causal"] else "full",
            *(_gpu(r, n) for n in ("flash", "cuDNN", "eager", "attend", "plain", "observing")),
        )
        for r in body["backward"]
    ]  # fmt: skip
    decode = [
        (
            f"{r['batch']}", f"{r['tokens']:,}",
            *(_gpu(r, n) for n in ("flash", "cuDNN", "plain", "observing")),
        )
        for r in body["decode"]
    ]  # fmt: skip
    ours = "`attend` | our kernel, plain | observing"
    heads = (
        "batch, heads, tokens, dim | | flash | cuDNN | efficient | flex | eager with entropy | "
        f"{ours} | observing, of the fastest SDPA | `received`, of our plain | map, of our plain",
        "forward and backward: tokens, dim | | flash | cuDNN | eager with entropy | "
        f"{ours}, with a gradient for the entropy",
        "decoding, 32 heads on 8: batch | tokens | flash | cuDNN | our kernel, plain | observing",
    )
    tables = [_table(*both) for both in zip(heads, (forward, both, decode), strict=True)]
    told = body["machine"]
    where = f"*{told['date']}; {told['cpu']}; torch {told['torch']}; Triton {told['triton']}.*"
    return "\n\n".join([where, *tables])


_SWEEPS = ("received", "map")
_FORWARD = ("flash", "cuDNN", "efficient", "flex", "eager", "attend", "plain", "observing")


def induction(body: dict) -> str:
    """What cutting the links of each head does to a model that has learnt to copy."""
    rows = [
        (
            f"{r['links']}, {r['heads']}" if r["heads"] else r["links"], f"{r['copied']:.2f}",
            f"{100 * r['right']:.0f} %", f"{r['score']:.2f}",
        )
        for r in body["cut"]
    ]  # fmt: skip
    first, second = body["pair"]
    start, end = body["turn"]
    told = (
        f"The pair is {first} and {second}. {body['steps']:,} steps and the cuts took "
        f"{body['seconds']:.0f} s of one core; the loss on the copy makes most of its way from "
        f"{body['chance']:.2f} nats (chance, ln 63) between steps {start:,} and {end:,}."
    )
    head = f"links that are cut | loss on the second copy | right | induction score of {second}"
    return "\n\n".join([told, _table(head, rows), _machine(body)])


def _gpu(row: dict, name: str) -> str:
    return f"{row[name]:.3f}" if row.get(name) else "–"


def gpu_bar(body: dict) -> str:
    lengths = dict.fromkeys(r["tokens"] for r in body["forward"])
    return "; ".join(
        ", ".join(
            f"{r['observing'] / r['best']:.2f}" for r in body["forward"] if r["tokens"] == tokens
        )
        + f" ({tokens:,})"
        for tokens in lengths
    )


def gpu_sweeps(body: dict) -> str:
    ratios = {n: [r[n] / r["plain"] for r in body["forward"]] for n in _SWEEPS}
    return "; ".join(f"{n} {min(some):.2f} to {max(some):.2f}" for n, some in ratios.items())


def gpu_record(body: dict) -> str:
    (row,) = body["record"]
    return (
        f"{row['recorded'] / row['plain']:.2f} ({row['recorded']:.0f} ms of {row['plain']:.0f} ms)"
    )


def looking(body: dict) -> str:
    """What seeing the weights costs elsewhere."""
    rows = [
        (
            f"{row['tokens']:,}", _ms(row["sdpa"]),
            f"{_ms(row['eager'])}, {row['eager'] / row['sdpa']:.1f} ×",
            f"{row['matrix_bytes'] / 1e6:,.0f} MB",
            f"{_ms(row['ours'])}, {row['ours'] / row['sdpa']:.2f} ×",
        )
        for row in body["times"]
    ]  # fmt: skip
    head = "tokens | fused (SDPA) | eager, with the entropy of every row | its matrix | `attend`"
    return f"{_table(head, rows)}\n\n{_machine(body)}"


def window(body: dict) -> str:
    """One ratio, for a sentence."""
    for row in body["times"]:
        if (row["case"], row["tokens"]) == ("causal & window(256)", 8192):
            return f"{row['ours'] / row['sdpa']:.3f}"
    raise ValueError("results/attend.json has no window at 8,192 tokens; run benchmarks/attend.py.")


def causal(body: dict) -> str:
    rows = [r for r in body["times"] if r["case"] == "causal" and r["pass"] == "forward"]
    return ", ".join(f"{r['ours'] / r['sdpa']:.3f} ({r['tokens']:,})" for r in rows)


def memory(body: dict) -> str:
    return ", ".join(f"{row['bytes'] / 1e6:.0f} MB ({row['case']})" for row in body["memory"])


def names_loss(body: dict) -> str:
    """The names model beside a bigram, on all three parts of the split."""
    rows = [
        (which, f"{body['bigram'][which]:.3f}", f"**{body['loss'][which]:.3f}**")
        for which in ("train", "held out", "test")
    ]
    return f"{_table('names | bigram | names model', rows)}\n\n{_machine(body)}"


def names_samples(body: dict) -> str:
    told = body["samples"]
    return (
        f"Of {told['drawn']:,} names drawn at temperature 1, {told['different']:,} are different, "
        f"{told['trained_on']} are names it was trained on, {told['real_and_unseen']} are real "
        f"names it has not seen, and the others are new: {', '.join(told['some'])}."
    )


def names_heads(body: dict) -> str:
    """What each head puts on each pattern, those that are told in bold."""
    patterns = ("previous", "two before", "first", "self", "repeated", "after a copy")
    rows, chance = [], {}
    for head in body["heads"]:
        known = {habit["pattern"]: habit for habit in head["habits"]}
        chance |= {name: habit["chance"] for name, habit in known.items()}
        cells = [
            f"**{known[p]['score']:.2f}**" if known[p]["told"] else f"{known[p]['score']:.2f}"
            for p in patterns
        ]
        rows.append((f"{head['layer']}.{head['head']}", *cells))
    rows.append(("*chance*", *(f"*{chance[p]:.2f}*" for p in patterns)))
    return _table(f"head | {' | '.join(patterns)}", rows)


def names_cuts(body: dict) -> str:
    """What cutting those links costs, and then the same in all heads."""
    own = [
        (
            f"{cut['layer']}.{cut['head']}", cut["says"], f"{cut['score']:.2f}",
            f"**{_change(cut['own'])}**", _change(cut["others"]),
        )
        for cut in body["cuts"]["own"]
    ]  # fmt: skip
    every = [(cut["pattern"], _change(cut)) for cut in body["cuts"]["together"]]
    head = "head | reads | share of its weight | loss without those links | loss without its others"
    return f"{_table(head, own)}\n\n{_table('links cut in all heads | loss', every)}"


def _change(told: dict) -> str:
    return f"{told['change']:+.3f} ± {told['half']:.3f}"


def one_head(body: dict) -> str:
    """Is one head enough: a row for each number of heads."""
    rows = [
        (
            f"{row['heads']}", f"{row['loss']:.3f} ± {row['half']:.3f}",
            "" if row["heads"] == 1 else f"{row['beside']:+.3f} ± {row['beside_half']:.3f}",
            "" if row["unlike"] is None else f"{row['unlike']:.2f}",
            f"{row['one']:.3f}", f"{row['worst']:.3f}", f"{row['layer']:.3f}",
            f"{row['sum'] / row['layer']:.2f}",
        )
        for row in body["rows"]
    ]  # fmt: skip
    head = (
        "heads | loss on unseen names | beside one head | how unlike (0 to 1) | one silenced | "
        "the worst one | a whole layer | one by one, of the whole"
    )
    minutes = sum(run["seconds"] for run in body["runs"]) / 60
    return f"{_table(head, rows)}\n\n{_machine(body)[:-2]}; {minutes:.0f} minutes of one core.*"


def one_head_gain(body: dict) -> str:
    row = body["rows"][-1]
    return f"{-row['beside']:.3f} ± {row['beside_half']:.3f} nats a character"


def one_head_time(body: dict) -> str:
    return f"{body['rows'][-1]['seconds'] / body['rows'][0]['seconds']:.1f} times the time"


# Marker in a page → the result it is made of, and how. A new table is one more line here.
TABLES = {
    "attend": ("attend", attend),
    "looking": ("looking", looking),
    "observe": ("observe", observe),
    "observe_all": ("observe", lambda body: observe_ratios(body, "ours")),
    "observe_eighth": ("observe", lambda body: observe_ratios(body, "eighth")),
    "observe_memory": ("observe", observe_memory),
    "observe_bar": ("observe", observe_bar),
    "record": ("record", record),
    "record_bar": ("record", record_bar),
    "page": ("page", page),
    "monitor": ("monitor", monitor),
    "gpu": ("gpu", gpu),
    "gpu_bar": ("gpu", gpu_bar),
    "gpu_sweeps": ("gpu", gpu_sweeps),
    "gpu_record": ("gpu", gpu_record),
    "induction": ("induction", induction),
    "layer": ("layer", layer),
    "layer_bar": ("layer", layer_bar),
    "names_loss": ("names", names_loss),
    "names_samples": ("names", names_samples),
    "names_heads": ("names", names_heads),
    "names_cuts": ("names", names_cuts),
    "one_head": ("heads", one_head),
    "one_head_gain": ("heads", one_head_gain),
    "one_head_time": ("heads", one_head_time),
    "window": ("attend", window),
    "causal": ("attend", causal),
    "memory": ("attend", memory),
}


def _machine(body: dict) -> str:
    told = body["machine"]
    return f"*{told['date']}; {told['cpu']}; torch {told['torch']}; Python {told['python']}.*"


def _table(head: str, rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _bold(ratio: float) -> str:
    return f"**{ratio:.3f}**"


def _times(row: dict, name: str) -> str:
    return f"{row[name] / row['sdpa']:.1f}" if name in row else "–"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def fill(text: str) -> str:
    """A page with what stands between its markers made anew from the results there are."""
    for marker, (result, table) in TABLES.items():
        between = re.compile(f"(<!-- {marker} -->)(.*?)(<!-- /{marker} -->)", re.DOTALL)
        results = RESULTS / f"{result}.json"
        if (found := between.search(text)) and results.exists():
            gap = "\n" if "\n" in found[2] else ""
            made = gap + table(json.loads(results.read_text())) + gap
            text = between.sub(lambda match, made=made: match[1] + made + match[3], text)
    return text


def main() -> None:
    for page in PAGES:
        page.write_text(fill(page.read_text("utf-8")), "utf-8")
        print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
