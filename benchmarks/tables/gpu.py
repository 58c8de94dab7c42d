"""Tables of kernels, and of record on a GPU."""

from __future__ import annotations

from .words import bold, table


def gpu(body: dict) -> str:
    """Forward, with backward, decoding, and what `attend` takes elsewhere, in milliseconds."""
    told = body["machine"]
    where = f"*{told['date']}; {told['cpu']}; torch {told['torch']}; Triton {told['triton']}.*"
    tables = [
        part(body[name]) + _earlier(body["dates"][name], told["date"])
        for name, part in _PARTS.items()
        if name in body
    ]
    return "\n\n".join([where, *tables])


def _earlier(date: str, latest: str) -> str:
    """Where a part was not run with the others."""
    return "" if date == latest else f"\n\n*The table above: {date}.*"


_ROW = ("flash", "cuDNN", "efficient", "flex", "eager", "attend", "plain", "observing")
_COLUMNS = "flash | cuDNN | efficient | flex | eager with entropy | `attend` | our kernel, plain | "
_SWEEPS = ("received", "map", "mass")


def _forward(found: list[dict]) -> str:
    rows = [
        (
            f"{r['batch']}, {r['heads']}, {r['tokens']:,}, {r['dim']}", _kind(r), *_times(r, _ROW),
            bold(r["observing"] / fastest(r)), *(f"{r[n] / r['plain']:.2f}" for n in _SWEEPS),
        )
        for r in found
    ]  # fmt: skip
    of_plain = " | ".join(f"{_SHOWN.get(n, n)}, of our plain" for n in _SWEEPS)
    head = f"{_COLUMNS}observing | observing, of the fastest SDPA | {of_plain}"
    return table(f"batch, heads, tokens, dim | | {head}", rows)


_SHOWN = {"received": "`received`", "mass": "mass of all keys before"}


def _backward(found: list[dict]) -> str:
    rows = [
        (
            f"{r['tokens']:,}, {r['dim']}", _kind(r), *_times(r, (*_ROW, "entropy")),
            bold(r["observing"] / fastest(r)),
        )
        for r in found
    ]  # fmt: skip
    head = f"tokens, dim | | {_COLUMNS}observing | the same with a gradient for the entropy"
    head += " | observing, of the fastest SDPA"
    return table(f"forward and backward: {head}", rows)


def _decode(found: list[dict]) -> str:
    rows = [(f"{r['batch']}, {r['tokens']:,}, {r['dim']}", *_times(r, _ROW)) for r in found]
    return table(f"decoding, 32 heads on 8: batch, tokens, dim | {_COLUMNS}observing", rows)


def _growing(found: list[dict]) -> str:
    names = (*_ROW[:3], *_ROW[5:])
    rows = [
        ("a step of decoding" if r["decoding"] else "a causal text", *_times(r, names))
        for r in found
    ]
    head = "32 heads on 8, 4,096 tokens and a few more at each call; with the host's part"
    head += f" | {_COLUMNS.replace('flex | eager with entropy | ', '')}observing"
    return table(head, rows)


def _odd(found: list[dict]) -> str:
    rows = [
        (
            f"{r['batch']}, 16, {r['tokens']:,}, {r['dim']}", _kind(r),
            *_times(r, ("flash", "cuDNN", "attend", "plain")), bold(r["plain"] / r["cuDNN"]),
        )
        for r in found
    ]  # fmt: skip
    head = "a length that is not round, met often: batch, heads, tokens, dim | | flash | cuDNN"
    head += " | `attend` | our kernel, plain | ours, of cuDNN"
    return table(head, rows)


def _choice(found: list[dict]) -> str:
    rows = [
        (
            r["question"], f"{r['dim']}", "both" if r["back"] else "forward",
            *_times(r, ("auto", "fused", "flex", *_ROW[:3])),
        )
        for r in found
    ]  # fmt: skip
    head = "4 × 16 × 4,096, causal | dim | pass | `attend` | our kernel | flex, through `attend`"
    return table(f"{head} | flash | cuDNN | efficient", rows)


def _few(found: list[dict]) -> str:
    rows = [
        (
            f"{r['batch']}, {r['heads']} on {r['kv_heads']}, {r['queries']:,} over {r['keys']:,}, "
            f"{r['dim']}", *_times(r, (*_ROW[:3], *_ROW[5:])), bold(r["attend"] / r["cuDNN"]),
        )
        for r in found
    ]  # fmt: skip
    head = "batch, heads, queries over keys, dim | flash | cuDNN | efficient | `attend`"
    head += " | our kernel, plain | observing | `attend`, of cuDNN with its plan made"
    return table(head, rows)


def _graph(found: list[dict]) -> str:
    rows = [
        (r["question"], "both" if r["back"] else "forward",
         *_times(r, ("attend", "compiled", "theirs")), bold(r["compiled"] / r["theirs"]))
        for r in found
    ]  # fmt: skip
    head = "4 × 16 × 4,096, 128 wide | pass | `attend` | in a compiled graph"
    head += " | SDPA or FlexAttention, compiled | `attend` in a graph, of these"
    return table(head, rows)


def _first(found: list[dict]) -> str:
    rows = [
        (
            r["question"],
            *(f"{r[name]:.2f} s" for name in ("new", "later")),
            f"{r['second'] * 1e3:.1f} ms",
        )
        for r in found
    ]
    head = "the first call of a process: 1 × 16 × 4,096, 64 wide | with nothing compiled yet"
    return table(f"{head} | in a later process | the next call, of another length", rows)


# A part that was not run yet has no table.
_PARTS = {
    "forward": _forward, "backward": _backward, "decode": _decode, "widths": _forward,
    "widths_back": _backward, "growing": _growing, "odd": _odd, "few": _few, "choice": _choice,
    "graph": _graph, "first": _first,
}  # fmt: skip


def fastest(row: dict) -> float:
    """Of SDPA's backends, those that answered."""
    return min(row[name] for name in _ROW[:3] if row.get(name))


def _kind(row: dict) -> str:
    return "causal" if row["causal"] else "full"


def _times(row: dict, names: tuple[str, ...]) -> list[str]:
    return [f"{row[name]:.3f}" if row.get(name) else "–" for name in names]


def gpu_span(body: dict) -> str:
    """What `observe` costs of a forward, from the least to the most."""
    return _span([r["observe"] / fastest(r) for r in body["forward"]])


def gpu_stretch(body: dict) -> str:
    """In how many forwards observing takes at most 1.10 of the fastest."""
    ratios = [r["observing"] / fastest(r) for r in body["forward"]]
    return f"{sum(ratio <= 1.10 for ratio in ratios)} of the {len(ratios)} forwards"


def gpu_attend(body: dict) -> str:
    """What `attend` takes of the fastest, where nobody looks."""
    return _span([r["attend"] / fastest(r) for r in body["forward"]])


def gpu_beside(body: dict) -> str:
    """What observing costs of the fastest in the passes that are more, or less, than a forward."""
    both = [r["observing"] / fastest(r) for r in body["backward"]]
    decode = [r["observing"] / fastest(r) for r in body["decode"]]
    return f"{_span(both)} with the backward pass, {_span(decode)} in a step of decoding"


def gpu_entropy(body: dict) -> str:
    return _span([r["entropy"] / fastest(r) for r in body["backward"]])


def gpu_decode(body: dict) -> str:
    return _span([r["plain"] / fastest(r) for r in body["decode"]])


def gpu_odd(body: dict) -> str:
    """Ours, of cuDNN with its plan made, where `attend` takes it: long lengths, not round."""
    ratios = [r["plain"] / r["cuDNN"] for r in body["odd"] if r["tokens"] >= 3000]
    above = sum(r > 1 for r in ratios)
    return f"{_span(ratios)} ({above or 'none'} of {len(ratios)} rows above 1)"


def gpu_few(body: dict) -> str:
    """`attend`, of the faster of flash and cuDNN with its plan made, over at least 2,048 keys."""
    return _span([r["attend"] / fastest(r) for r in body["few"] if r["keys"] >= 2048])


def _span(ratios: list[float], digits: int = 2) -> str:
    return f"{min(ratios):.{digits}f} to {max(ratios):.{digits}f}"


def gpu_bar(body: dict) -> str:
    lengths = dict.fromkeys(r["tokens"] for r in body["forward"])
    return "; ".join(
        ", ".join(
            f"{r['observing'] / fastest(r):.3f}" for r in body["forward"] if r["tokens"] == tokens
        )
        + f" ({tokens:,})"
        for tokens in lengths
    )


def gpu_sweeps(body: dict) -> str:
    ratios = {n: [r[n] / r["plain"] for r in body["forward"]] for n in _SWEEPS}
    theirs = [r[n] / fastest(r) for r in body["forward"] for n in _SWEEPS]
    ours = "; ".join(f"{n} {_span(some, 3)}" for n, some in ratios.items())
    return f"{ours} of our plain kernel, all of them {_span(theirs, 3)} of the fastest SDPA"


def gpu_record(body: dict) -> str:
    (row,) = body["record"]
    return (
        f"{row['recorded'] / row['plain']:.3f} ({row['recorded']:.1f} ms of {row['plain']:.1f} ms)"
    )
