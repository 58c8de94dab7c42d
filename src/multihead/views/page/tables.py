"""The table of heads as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from .session import Session


def heads_csv(session: Session, number: str, batch: int = 0) -> str:
    """One line a head: its statistics in one text, its names, and its score in every pattern."""
    named: dict[tuple[int, int], list[str]] = {}
    for name in session.naming.names or ():
        said = f"{name.pattern} {name.where} {name.score:.2f}"
        named.setdefault((name.layer, name.head), []).append(said)
    scored = {(row["layer"], row["head"]): row["scores"] for row in session.naming.scores}
    rows: list[dict[str, Any]] = []
    for row in session.of(number).heads(batch):
        at = (row["layer"], row["head"])
        row = {
            **row,
            "sinks": " ".join(map(str, row["sinks"])),
            "names": "; ".join(named.get(at, [])),
        }
        rows.append(row | {key: value[0] for key, value in scored.get(at, {}).items()})
    file = io.StringIO()
    every = dict.fromkeys(key for row in rows for key in row)  # a head may lack what others have
    table = csv.DictWriter(file, list(every), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return file.getvalue()
