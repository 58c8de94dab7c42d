"""Tables of attention, layer, observe, record and the page."""

from __future__ import annotations

from .words import bold, machine, ms, table, times


def attend(body: dict) -> str:
    """The table of `attend`, and of its memory."""
    timed = [
        (
            row["case"], f"{row['tokens']:,}", row["pass"], ms(row["sdpa"]), ms(row["ours"]),
            bold(row["ours"] / row["sdpa"]), times(row, "eager"),
        )
        for row in body["times"]
    ]  # fmt: skip
    memory = [
        (row["case"], f"{row['tokens']:,}", f"{row['bytes'] / 1e6:.0f}") for row in body["memory"]
    ]
    return "\n\n".join(
        [
            machine(body),
            table("question | tokens | pass | SDPA | attend | ratio | eager", timed),
            table("`tiled`, forward and backward | tokens | MB above what it returns", memory),
        ]
    )


def layer(body: dict) -> str:
    """The table of the layer, and a line on decoding."""
    known = {(row["layer"], row["pass"]): row for row in body["times"]}
    rows = []
    for name in dict.fromkeys(row["layer"] for row in body["times"]):
        found = [known.get((name, kind)) for kind in ("forward", "both")]
        cells = [(ms(row["seconds"]), bold(row["ratio"])) if row else "––" for row in found]
        rows.append((name, *cells[0], *cells[1]))
    told = body["decoding"]
    decoding = (
        f"Decoding {told['tokens']} tokens one by one: {ms(told['cached'])} through the cache, "
        f"{ms(told['anew'])} by starting anew, {told['anew'] / told['cached']:.1f} times as long."
    )
    told_in = table("layer | forward | ratio | both | ratio", rows)
    return "\n\n".join([machine(body), told_in, decoding])


def layer_bar(body: dict) -> str:
    rows = [r for r in body["times"] if r["layer"] == "MultiHeadAttention"]
    return ", ".join(f"{row['ratio']:.3f} ({row['pass']})" for row in rows)


def observe(body: dict) -> str:
    """The table of `observe`."""
    rows = [
        (
            f"{row['tokens']:,}", ms(row["sdpa"]), ms(row["ours"]),
            bold(row["ours"] / row["sdpa"]), bold(row["eighth"] / row["sdpa"]),
            times(row, "eager"),
        )
        for row in body["times"]
    ]  # fmt: skip
    told_in = table("tokens | SDPA | observe | ratio | 1 in 8 | eager", rows)
    return f"{machine(body)}\n\n{told_in}"


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
    timed = [
        (
            f"{row['tokens']:,}", ms(row["plain"]), ms(row["record"]),
            bold(row["record"] / row["plain"]),
            f"{row['eager'] / row['plain']:.2f}" if "eager" in row else "–",
        )
        for row in body["times"]
    ]  # fmt: skip
    memory = [
        (row["kind"], f"{row['tokens']:,}", f"{row['more'] / 1e6:.0f}") for row in body["memory"]
    ]
    return "\n\n".join(
        [
            machine(body),
            table("tokens | SDPA forward | recorded | ratio | eager, output_attentions", timed),
            table("memory | tokens | MB more than the plain forward", memory),
        ]
    )


def record_bar(body: dict) -> str:
    ratios = ", ".join(f"{r['record'] / r['plain']:.2f} ({r['tokens']:,})" for r in body["times"])
    most = max((r for r in body["memory"] if r["kind"] == "record"), key=lambda r: r["tokens"])
    return f"{ratios}; {most['more'] / 1e6:.0f} MB"


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
    return f"{machine(body)}\n\n{table('SmolLM2, 4,096 tokens | measured | bar', rows)}"


def looking(body: dict) -> str:
    """What seeing the weights costs elsewhere."""
    rows = [
        (
            f"{row['tokens']:,}", ms(row["sdpa"]),
            f"{ms(row['eager'])}, {row['eager'] / row['sdpa']:.1f} ×",
            f"{row['matrix_bytes'] / 1e6:,.0f} MB",
            f"{ms(row['ours'])}, {row['ours'] / row['sdpa']:.2f} ×",
        )
        for row in body["times"]
    ]  # fmt: skip
    head = "tokens | fused (SDPA) | eager, with the entropy of every row | its matrix | `attend`"
    return f"{table(head, rows)}\n\n{machine(body)}"


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
