"""A report in files: each is written whole beside its place, then renamed into it."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .counts import many
from .findings import findings
from .report import ORDER, Report

KINDS = ("png", "svg")


def to_json(report: Report) -> str:
    """One object: model, text, heads, names, verdicts, findings. What is no number is null."""
    about, layers = report.about, report.rec.layers
    whole = {
        "model": {"about": about.model, "licence": about.licence, "class": report.rec.model,
                  "layers": len(layers), "heads": sum(layer.heads for layer in layers)},
        "text": {"source": about.text, "tokens": report.tokens, "tokens_of_the_whole": about.total,
                 "content": about.content, "bos": about.has_bos, "words": report.words},
        "tokens": report.tokens,
        "loss": report.loss,
        "controlled": report.controlled if report.names is not None else None,
        "heads": [_head(report, row) for row in report.heads()],
        "names": _records(report.names),
        "verdicts": _records(report.verdicts),
        "findings": findings(report),
    }  # fmt: skip
    return json.dumps(plain(whole), ensure_ascii=False, indent=1, allow_nan=False)


def to_csv(report: Report) -> str:
    """The heads as a table: statistics, names, scores. What is no number is left empty."""
    rows = [{"model": report.about.model, **plain(_head(report, row))} for row in report.heads()]
    for row in rows:
        row |= row.pop("scores", {})
        if "names" in row:
            told = (f"{n['pattern']} {n['where']} {n['score']:.2f}" for n in row["names"])
            row["names"] = "; ".join(told)
    file = io.StringIO()
    table = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return file.getvalue()


def _head(report: Report, row: dict[str, Any]) -> dict[str, Any]:
    row = dict(row)
    if "names" in row:
        keep = ("pattern", "where", "score", "low")
        row["names"] = [{key: getattr(n, key) for key in keep} for n in row["names"]]
    for scored in report.scores or ():
        if (scored["layer"], scored["head"]) == (row["layer"], row["head"]):
            row["scores"] = {k: v for k, v in scored.items() if k not in ("layer", "head")}
    return row


def _records(found: Any) -> list[dict[str, Any]] | None:
    return None if found is None else [dataclasses.asdict(one) for one in found]


def plain(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def prepare(folder: Path) -> None:
    """Make the folder, and see that it can be written, before minutes are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{folder} must be a folder that can be written, and is not: "
            f"{error.strerror or error}; give another with -o."
        ) from None


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[None]:
    """The same, and what we made and left empty is gone in the end, as after Ctrl-C."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    prepare(folder)
    try:
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # one that holds something stays
                path.rmdir()


def write_report(report: Report, folder: Path) -> Iterator[Path]:
    """Write every file, telling each when it is done. Others' files are left alone.

    Ours are replaced, and those of an earlier run that this one has not are removed in the end:
    they would be taken for figures of this one.
    """
    from .figures import figures, save

    said = "\n".join([subject(report), *findings(report)]) + "\n"
    texts = {
        "heads.json": to_json(report) + "\n",
        "heads.csv": to_csv(report),
        "findings.txt": said,
    }
    for name, content in texts.items():
        yield put(folder / name, content.encode("utf-8", "replace"))
    drawn = set()
    for name, figure in figures(report):
        drawn.add(name)
        for kind in KINDS:
            yield put(folder / f"{name}.{kind}", save(figure, kind))
    for name in every_figure() - drawn:
        for kind in KINDS:
            with contextlib.suppress(OSError):
                (folder / f"{name}.{kind}").unlink()


def subject(report: Report) -> str:
    """A line that says of which model and text this is."""
    about = report.about
    start = f": {report.start}" if about.content else ""
    return f"{about.model}; {many(report.tokens, 'token')} of {about.text}{start}"


def every_figure() -> set[str]:
    """What a figure of ours may be called, and nothing else is."""
    from .figures import GRIDS
    from .terminal import EXTREMES

    named = {f"grid-{key.replace('_', '-')}" for key in GRIDS} | {"entropy-distance"}
    return named | {f"map-{what.replace(' ', '-')}" for what in (*ORDER, *EXTREMES)}


def put(path: Path, content: bytes, *, other: str = "another folder with -o") -> Path:
    """A file is there as a whole or not at all; `other` is what to give where it cannot be."""
    beside = ""
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(beside, 0o666 & ~_umask())  # a temporary file is for its owner alone
        os.replace(beside, path)
    except BaseException as error:
        if beside:
            with contextlib.suppress(OSError):
                os.unlink(beside)
        if not isinstance(error, OSError):
            raise
        raise ValueError(
            f"{path} could not be written: {error.strerror or error}; make room, or give {other}."
        ) from None
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
