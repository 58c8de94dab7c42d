"""The table of what the forms of attention cost, and how to read it."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from .forms import count, measure
from .lines import columns, say, show

TOKENS, DIMS = 512, 128  # small enough for a second, large enough for a clock
MOST = 16  # heads


def show_costs(console: Console, heads: int, dims: int) -> None:
    """Count the forms at the reader's own size, then measure them at one that a clock can tell."""
    if heads > 1:
        say(console, f"Counted, for {dims} dims and {heads} heads:")
        console.print()
        show(console, counted(heads, dims))
        console.print()
        for paragraph in reading(heads, dims):
            say(console, paragraph)
            console.print()
    tokens, wide, some = sizes(heads)
    table = measured(tokens, wide, some)
    say(
        console,
        f"Measured on this machine, for {tokens} tokens, {wide} dims and {some} heads of "
        f"{wide // some}, causal, float32{_why(heads)}:",
    )
    console.print()
    show(console, table)
    console.print()
    show(console, [line for name, text in notes(some) for line in _note(console, name, text)])


def sizes(heads: int) -> tuple[int, int, int]:
    """Tokens, dims and heads to measure: the heads asked for, where they tell something.

    >>> sizes(4), sizes(3), sizes(1), sizes(64)
    ((512, 128, 4), (512, 120, 3), (512, 128, 4), (512, 128, 16))
    """
    some = 4 if heads == 1 else min(heads, MOST)
    return TOKENS, some * (DIMS // some // 8 * 8), some


def _why(heads: int) -> str:
    """Why the table has not the heads that were asked for."""
    if heads == 1:
        return " (one head has nothing to compare)"
    return f" ({heads} would take long)" if heads > MOST else ""


def counted(heads: int, dims: int) -> list[Text]:
    """What a score costs and what is learnt."""
    rows = [("", "multiplications a score", "numbers in all W", "maps")]
    for form, name, maps, width in (
        ("one wide head", f"one wide head of {dims}", 1, dims),
        ("slices, split", f"{heads} slices of {dims // heads}", heads, dims // heads),
        ("full-width, stacked", f"{heads} full-width heads of {dims}", heads, dims),
    ):
        seen = count(form, 8, dims, heads)
        score = f"{maps} × {width} = {seen.per_score:,}"
        learnt = f"{4 * seen.per_score // dims} × {dims}² = {seen.weights:,}"
        rows.append((name, score, learnt, str(maps)))
    return columns(rows)


def reading(heads: int, dims: int) -> list[str]:
    many = heads * dims
    return [
        f"A score is one query with one key, in all heads. Heads are often said to save here, "
        f"from {many:,} multiplications to {dims:,}. But the {many:,} belong to {heads} full-width "
        f"heads: one wide head needs {dims:,} too, and as many numbers in W. Slices cost no "
        "multiplication more than the head they are cut from, and save none.",
        f"What they do cost is {heads} maps in place of 1: {heads} times as many exp in the "
        f"softmax, and {heads} times the memory where maps are built. A count of multiplications "
        "leaves both out.",
    ]


def measured(tokens: int, dims: int, heads: int) -> list[Text]:
    """Every form at one size: counted, timed and weighed."""
    rows = [("", "numbers in W", "products", "time", "memory", "training")]
    took = measure(tokens, dims, heads)
    for form, here in took.items():
        seen = count(form, tokens, dims, heads)
        rows.append((
            form if form == "one wide head" else f"{heads} {form}",
            f"{seen.weights:,}", f"{seen.multiplications / 1e6:,.0f} M",
            f"{here.seconds * 1e3:.1f} ms",
            f"{here.forward_bytes / 1e6:.1f} MB", f"{here.training_bytes / 1e6:.1f} MB",
        ))  # fmt: skip
    return columns(rows, gap=2)


def notes(heads: int) -> list[tuple[str, str]]:
    return [
        ("split", f"holds {heads} maps at once, in a few large products."),
        (
            "stacked",
            "does the same work in small products, a head at a time: one map at once, until "
            "training keeps them all. Which is faster is up to the machine.",
        ),
        ("full-width", f"is {heads} times the work and {heads} times the numbers in W."),
        (
            "fused",
            "builds no map: its memory grows with the tokens, not with their square. It passes "
            "over what the mask hides, which the count does not know.",
        ),
        ("products", "multiplications of one forward pass, by torch.utils.flop_counter."),
        ("time", "of one forward pass on one core; the median of several, forms in turns."),
        (
            "memory",
            "the most bytes of tensors alive at once beyond W and the input, in a forward pass; "
            "training adds the way back. Scratch space inside a kernel is not seen.",
        ),
    ]


def _note(console: Console, name: str, text: str, label: int = 12) -> list[Text]:
    wrapped = Text(text).wrap(console, max(20, console.width - label - 4))
    first = Text(f"{name:{label}}", "dim")
    return [(first if n == 0 else Text(" " * label)) + line for n, line in enumerate(wrapped)]
