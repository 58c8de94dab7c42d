"""multihead: multi-head attention you can read, run and look into, at full speed."""

from .attention import attend, explain_choice
from .masks import (
    after_same_token,
    causal,
    dense,
    documents,
    offset,
    padding,
    prefix,
    same_token,
    window,
)
from .positions import alibi, rope

__version__ = "0.1.0"

__all__ = [
    "after_same_token",
    "alibi",
    "attend",
    "causal",
    "dense",
    "documents",
    "explain_choice",
    "offset",
    "padding",
    "prefix",
    "rope",
    "same_token",
    "window",
]
