"""multihead: multi-head attention you can read, run and look into, at full speed."""

from .attention import attend, explain_choice
from .cache import Cache
from .convert import from_torch, from_transformers, masks_from_torch, to_torch
from .layer import MultiHeadAttention
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
from .monitoring import HeadWarning, entropy_floor, monitor
from .observation import (
    Observation,
    expect,
    heatmap,
    mass,
    merge,
    observe,
    pooled_weights,
    received,
    similarity,
    top,
    weights,
)
from .patterns import Probe, copying, habits, probe, verify
from .positions import alibi, rope
from .presets import cost, preset
from .recording import (
    Recording,
    ablate,
    cut,
    head_importance,
    load,
    record,
    record_many,
)
from .sources import load_model
from .views.explore import explore

__version__ = "0.1.0"

__all__ = [
    "Cache",
    "HeadWarning",
    "MultiHeadAttention",
    "Observation",
    "Probe",
    "Recording",
    "ablate",
    "after_same_token",
    "alibi",
    "attend",
    "causal",
    "copying",
    "cost",
    "cut",
    "dense",
    "documents",
    "entropy_floor",
    "expect",
    "explain_choice",
    "explore",
    "from_torch",
    "from_transformers",
    "habits",
    "head_importance",
    "heatmap",
    "load",
    "load_model",
    "masks_from_torch",
    "mass",
    "merge",
    "monitor",
    "observe",
    "offset",
    "padding",
    "pooled_weights",
    "prefix",
    "preset",
    "probe",
    "received",
    "record",
    "record_many",
    "rope",
    "same_token",
    "similarity",
    "to_torch",
    "top",
    "verify",
    "weights",
    "window",
]
