"""Published attention shapes, and what a shape costs.

>>> preset("gpt2-small").num_heads, cost("gpt2-small", 1024).layers[0].parameters
(12, 2362368)
"""

from .figures import Cost, Figures, cost
from .published import PRESETS, preset
from .shape import AttentionShape

__all__ = ["PRESETS", "AttentionShape", "Cost", "Figures", "cost", "preset"]
