"""Put the results of all benchmarks into docs/performance.md, between its markers.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from measure import RESULTS

PAGES = [Path(__file__).parent.parent / name for name in ("docs/performance.md", "README.md")]


def attend(body: dict) -> str:
    """The table of `attend`."""
    lines = [
        _machine(body),
        "",
        "| question | tokens | pass | SDPA | attend | ratio | eager |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in body["times"]:
        slow = f"{row['eager'] / row['sdpa']:.1f}" if "eager" in row else "–"
        lines.append(
            f"| {row['case']} | {row['tokens']:,} | {row['pass']} | {_ms(row['sdpa'])} | "
            f"{_ms(row['ours'])} | **{row['ours'] / row['sdpa']:.3f}** | {slow} |"
        )
    lines += [
        "",
        "| `tiled`, forward and backward | tokens | MB above what it returns |",
        "|---|---|---|",
    ]
    for row in body["memory"]:
        lines.append(f"| {row['case']} | {row['tokens']:,} | {row['bytes'] / 1e6:.0f} |")
    return "\n".join(lines)


def layer(body: dict) -> str:
    """The table of the layer, and of decoding."""
    lines = [
        _machine(body),
        "",
        "| layer | forward | ratio | both | ratio |",
        "|---|---|---|---|---|",
    ]
    rows = {(row["layer"], row["pass"]): row for row in body["times"]}
    for name in dict.fromkeys(row["layer"] for row in body["times"]):
        cells = [name]
        for kind in ("forward", "both"):
            row = rows.get((name, kind))
            cells += [_ms(row["seconds"]), f"**{row['ratio']:.3f}**"] if row else ["–", "–"]
        lines.append("| " + " | ".join(cells) + " |")
    told = body["decoding"]
    lines += [
        "",
        f"Decoding {told['tokens']} tokens one by one: {_ms(told['cached'])} through the cache, "
        f"{_ms(told['anew'])} by starting anew, {told['anew'] / told['cached']:.1f} times as long.",
    ]
    return "\n".join(lines)


def layer_bar(body: dict) -> str:
    rows = [r for r in body["times"] if r["layer"] == "MultiHeadAttention"]
    return ", ".join(f"{row['ratio']:.3f} ({row['pass']})" for row in rows)


def observe(body: dict) -> str:
    """The table of `observe`."""
    lines = [
        _machine(body),
        "",
        "| tokens | SDPA | observe | ratio | 1 in 8 | eager |",
        "|---|---|---|---|---|---|",
    ]
    for row in body["times"]:
        ratios = [row[name] / row["sdpa"] for name in ("ours", "eighth")]
        slow = f"{row['eager'] / row['sdpa']:.1f}" if "eager" in row else "–"
        lines.append(
            f"| {row['tokens']:,} | {_ms(row['sdpa'])} | {_ms(row['ours'])} | "
            f"**{ratios[0]:.3f}** | **{ratios[1]:.3f}** | {slow} |"
        )
    return "\n".join(lines)


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


def looking(body: dict) -> str:
    """What seeing the weights costs elsewhere."""
    lines = [
        "| tokens | fused (SDPA) | eager, with the entropy of every row | its matrix | `attend` |",
        "|---|---|---|---|---|",
    ]
    for row in body["times"]:
        lines.append(
            f"| {row['tokens']:,} | {_ms(row['sdpa'])} | {_ms(row['eager'])}, "
            f"{row['eager'] / row['sdpa']:.1f} × | {row['matrix_bytes'] / 1e6:,.0f} MB | "
            f"{_ms(row['ours'])}, {row['ours'] / row['sdpa']:.2f} × |"
        )
    return "\n".join([*lines, "", _machine(body)])


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


# Marker in a page → the result it is made of, and how. A new table is one more line here.
TABLES = {
    "attend": ("attend", attend),
    "looking": ("looking", looking),
    "observe": ("observe", observe),
    "observe_all": ("observe", lambda body: observe_ratios(body, "ours")),
    "observe_eighth": ("observe", lambda body: observe_ratios(body, "eighth")),
    "observe_memory": ("observe", observe_memory),
    "observe_bar": ("observe", observe_bar),
    "layer": ("layer", layer),
    "layer_bar": ("layer", layer_bar),
    "window": ("attend", window),
    "causal": ("attend", causal),
    "memory": ("attend", memory),
}


def _machine(body: dict) -> str:
    told = body["machine"]
    return f"*{told['date']}; {told['cpu']}; torch {told['torch']}; Python {told['python']}.*"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def main() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        for marker, (result, table) in TABLES.items():
            body = json.loads((RESULTS / f"{result}.json").read_text())
            between = re.compile(f"(<!-- {marker} -->)(.*?)(<!-- /{marker} -->)", re.DOTALL)
            found = between.search(text)
            if found:
                gap = "\n" if "\n" in found[2] else ""
                text = between.sub(lambda m: m[1] + gap + table(body) + gap + m[3], text)  # noqa: B023
        page.write_text(text, "utf-8")
        print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
