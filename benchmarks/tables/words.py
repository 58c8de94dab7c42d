"""Numbers as a page shows them."""

from __future__ import annotations


def machine(body: dict) -> str:
    told = body["machine"]
    return f"*{told['date']}; {told['cpu']}; torch {told['torch']}; Python {told['python']}.*"


def table(head: str, rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def bold(ratio: float) -> str:
    return f"**{ratio:.3f}**"


def times(row: dict, name: str) -> str:
    return f"{row[name] / row['sdpa']:.1f}" if name in row else "–"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
