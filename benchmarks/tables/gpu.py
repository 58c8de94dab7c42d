"""Tables of kernels, and of record on a GPU."""

from __future__ import annotations

from .words import bold, table


def gpu(body: dict) -> str:
    """Forward, with backward, and decoding, in milliseconds."""
    forward = [
        (
            f"{r['batch']}, {r['heads']}, {r['tokens']:,}, {r['dim']}",
            "causal" if r["causal"] else "full", *(_gpu(r, n) for n in _FORWARD),
            bold(r["observing"] / r["best"]), *(f"{r[n] / r['plain']:.2f}" for n in _SWEEPS),
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
    tables = [table(*both) for both in zip(heads, (forward, both, decode), strict=True)]
    told = body["machine"]
    where = f"*{told['date']}; {told['cpu']}; torch {told['torch']}; Triton {told['triton']}.*"
    return "\n\n".join([where, *tables])


_SWEEPS = ("received", "map")


_FORWARD = ("flash", "cuDNN", "efficient", "flex", "eager", "attend", "plain", "observing")


def _gpu(row: dict, name: str) -> str:
    return f"{row[name]:.3f}" if row.get(name) else "–"


def gpu_span(body: dict) -> str:
    """What `observe` costs of a forward, from the least to the most."""
    return _span([r["observe"] / r["best"] for r in body["forward"]])


def gpu_beside(body: dict) -> str:
    """What observing costs of the fastest in the passes that are more, or less, than a forward."""
    both = [r["observing"] / min(r["flash"], r["cuDNN"]) for r in body["backward"]]
    decode = [r["observing"] / r["best"] for r in body["decode"]]
    return f"{_span(both)} with the backward pass, {_span(decode)} in a step of decoding"


def gpu_decode(body: dict) -> str:
    return _span([r["plain"] / r["best"] for r in body["decode"]])


def _span(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def gpu_bar(body: dict) -> str:
    lengths = dict.fromkeys(r["tokens"] for r in body["forward"])
    return "; ".join(
        ", ".join(
            f"{r['observing'] / r['best']:.3f}" for r in body["forward"] if r["tokens"] == tokens
        )
        + f" ({tokens:,})"
        for tokens in lengths
    )


def gpu_sweeps(body: dict) -> str:
    ratios = {n: [r[n] / r["plain"] for r in body["forward"]] for n in _SWEEPS}
    return "; ".join(f"{n} {_span(some)}" for n, some in ratios.items())


def gpu_record(body: dict) -> str:
    (row,) = body["record"]
    return (
        f"{row['recorded'] / row['plain']:.3f} ({row['recorded']:.1f} ms of {row['plain']:.1f} ms)"
    )
