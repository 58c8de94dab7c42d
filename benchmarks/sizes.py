"""Which sizes are the fastest on this Hopper: rows of attention/fused/sizes.py beside others.

    python benchmarks/sizes.py             heads of 64, some minutes; prints, writes nothing
    python benchmarks/sizes.py 32 128      heads of those widths

The table is made by hand from what this prints: milliseconds, and of the table's row. Variants take
turns in one run. A variant that finds no room, or that nobody can compile, is a dash.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from device import OBSERVING, Calls, drawn, posed, timed, wanted
from triton.runtime.errors import OutOfResources

import multihead as mh
from multihead.attention import fused
from multihead.attention.band import Band
from multihead.attention.fused import sizes
from multihead.attention.fused.launch import masses
from multihead.attention.fused.question import Asked, Question, question_of
from multihead.attention.fused.sizes import Ring
from multihead.observation.fused.cells import cells_of
from multihead.observation.fused.columns import received
from multihead.observation.statistics.heatmap import cell_edges

SHAPES = [(4, 16, 4096), (1, 16, 16384)]
MASKS = {"full": None, "causal": mh.causal(), "window 256": mh.causal() & mh.window(256),
         "window 1,024": mh.causal() & mh.window(1024)}  # fmt: skip
ASKED = {"plain": Asked(), "observing": OBSERVING,
         "and 100 first keys": OBSERVING._replace(masses=(Band(length=100),))}  # fmt: skip
SWEEPS = [(64, 2), (64, 3), (128, 2), (128, 3)]  # rows and stages


def by(ring: Ring, width: int, call: Callable[[], object], *, strict: bool = False) -> Callable:
    """A call with that row in the table; `strict`: as many groups, whatever speaks for two."""
    given = Ring.by_two

    def run() -> None:
        was = sizes._RINGS[width]
        sizes._RINGS[width] = ring
        Ring.by_two = (lambda ring: ring) if strict else given
        try:
            call()
        finally:
            sizes._RINGS[width], Ring.by_two = was, given

    return run


def forwards(width: int, call: Callable[[], object]) -> Calls:
    """The table's row, and others of as many stages as find room."""
    ring = sizes._RINGS[width]
    calls: Calls = {"table": by(ring, width, call)}
    for groups in (2, 3):
        for turns in (False, True):
            other = ring._replace(groups=groups, turns=turns, plain_turns=turns)
            name = f"{groups} groups{', turns' if turns else ''}"
            calls[name] = by(other, width, call, strict=True)
    return calls


def sweeps(width: int, call: Callable[[], object]) -> Calls:
    ring = sizes._RINGS[width]
    calls: Calls = {"table": by(ring, width, call)}
    for rows, stages in SWEEPS:
        other = ring._replace(sweep=(rows, stages))
        calls[f"{rows} rows, {stages} stages"] = by(other, width, call)
    return calls


def told(title: str, calls: Calls) -> None:
    """Print what each takes; without those that find no room."""
    known: Calls = {}
    for name, call in calls.items():
        try:
            call()
            known[name] = call
        except (OutOfResources, RuntimeError) as error:
            print(f"{title}: {name}: – ({str(error).splitlines()[0][:60]})", flush=True)
    found = timed(known)
    table = found.get("table", float("nan"))
    shown = (f"{n} {t:.3f} ({t / table:.3f})" for n, t in found.items())
    print(f"{title}: {'; '.join(shown)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows of the table of sizes beside others.")
    parser.add_argument("widths", type=int, nargs="*", default=[64], help=f"of {[*sizes._RINGS]}")
    widths = parser.parse_args().widths
    if unknown := {*widths} - {*sizes._RINGS}:
        parser.error(f"no heads of {unknown}: the table has {[*sizes._RINGS]}.")
    wanted()
    if not sizes.is_hopper(torch.device("cuda")):
        parser.exit(1, f"the table is Hopper's, and this is a {torch.cuda.get_device_name()}.\n")
    for width in widths:
        for batch, heads, tokens in SHAPES:
            q, k, v = drawn(batch, heads, tokens, width)
            where = f"{batch} × {heads} × {tokens:,}, {width} wide"
            for name, mask in MASKS.items():
                p = posed(q, k, v, mask)
                for what, asked in ASKED.items():
                    calls = forwards(width, lambda p=p, asked=asked: fused.look(p, asked))
                    told(f"{where}, {name}, {what}", calls)
                question = question_of(p)
                for what, call in swept(question, fused.run(p).lse, tokens).items():
                    told(f"{where}, {name}, {what}", sweeps(width, call))


def swept(question: Question, lse, tokens: int) -> Calls:
    edges, half = [cell_edges(tokens, 128)] * 2, (Band(right=-1),)
    return {
        "received": lambda: received(question, lse),
        "map": lambda: cells_of(question, lse, edges),
        "mass": lambda: masses(question, lse, half),
    }


if __name__ == "__main__":
    main()
