"""The explorer in a notebook: the standalone page in a frame, with no server behind it."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable
from pathlib import Path

from ..recording import Recording


@dataclasses.dataclass(frozen=True)
class Explorer:
    """What `explore` gives: a notebook shows it as a page in the cell; `save` writes the page."""

    page: str = dataclasses.field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        # A frame of its own keeps two cells apart; scripts run in it, and nothing else may.
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self.height}px;border:1px solid #ccc;border-radius:6px">'
            "</iframe>"
        )

    def save(self, path: str | Path) -> None:
        """Write the page as one file, whole or not at all."""
        from .files import put

        put(Path(path), self.page.encode("utf-8", "replace"), other="another path")


def explore(
    rec: Recording,
    *,
    heads: Iterable[tuple[int, int]] = (),
    label: str = "",
    batch: int = 0,
    height: int = 760,
) -> Explorer:
    """Look into a recording in a notebook cell, with no server and no request to anywhere.

    `heads` are exact at every zoom; all others are pooled, and say so. Without any, the first head
    is exact.

    >>> import multihead as mh, torch
    >>> attn = mh.MultiHeadAttention(8, 2, mask=mh.causal())
    >>> with torch.no_grad(), mh.record(attn) as rec:
    ...     y = attn(torch.randn(1, 5, 8))
    >>> mh.explore(rec, heads=[(0, 1)])
    Explorer(height=760)
    """
    from .page.session import Session
    from .page.standalone import standalone

    if not isinstance(rec, Recording) or not rec.layers:
        raise ValueError(
            f"explore shows a recording, but {type(rec).__name__} came, or an empty one; give what "
            "mh.record or mh.load gave, after its with statement."
        )
    session = Session()
    number = session.add(rec, label or rec.model, {"model": rec.model, **rec.about})
    chosen = [(int(layer), int(head)) for layer, head in heads]
    return Explorer(standalone(session, number, chosen, batch).decode(), height)
