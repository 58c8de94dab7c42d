"""Where a token stands: `rope` turns queries and keys by position, `alibi` lowers far scores.

Both are small frozen values, and neither keeps a tensor of positions between calls: tables are a
few operations on the device of the input, so that compile, export, vmap, autocast and CUDA graphs
see plain arithmetic.

>>> rope(500_000, scaling=llama3(8)), alibi([0.5, 0.25])
(rope(500000, scaling=llama3(8)), alibi([0.5, 0.25]))
"""

from .linear_bias import Alibi, alibi
from .rotary import Rope, rope, rotate
from .scaling import Scaling, linear, llama3, ntk, yarn

__all__ = ["Alibi", "Rope", "Scaling", "alibi", "linear", "llama3", "ntk", "rope", "rotate", "yarn"]
