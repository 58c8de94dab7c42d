"""The table of heads, as rows for JSON and as CSV: the same columns in both."""

from __future__ import annotations

import csv
import io
from typing import Any

from .session import Session


def heads_table(session: Session, number: str, batch: int = 0) -> list[dict[str, Any]]:
    """One row a head: its statistics in one text, its names, and its score in every pattern.

    Every row has every column; what a head lacks and others have is None.
    """
    named: dict[tuple[int, int], list[str]] = {}
    for name in session.naming.names or ():
        said = f"{name.pattern} {name.where} {name.score:.2f}"
        named.setdefault((name.layer, name.head), []).append(said)
    scored = {(row["layer"], row["head"]): row["scores"] for row in session.naming.scores}
    rows: list[dict[str, Any]] = []
    for row in session.of(number).heads(batch):
        at = (row["layer"], row["head"])
        scores = {key: value[0] for key, value in scored.get(at, {}).items()}
        rows.append(row | {"names": named.get(at, [])} | scores)
    every = dict.fromkeys(key for row in rows for key in row)
    return [every | row for row in rows]


def heads_csv(session: Session, number: str, batch: int = 0) -> str:
    rows = heads_table(session, number, batch)
    file = io.StringIO()
    table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    table.writeheader()
    for row in rows:
        sinks, names = " ".join(map(str, row["sinks"])), "; ".join(row["names"])
        table.writerow(row | {"sinks": sinks, "names": names})
    return file.getvalue()
