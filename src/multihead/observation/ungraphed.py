"""The sweep where a graph is compiled: called as it is written, and no part of the graph.

A tile is a few operations of a size of its own, and each size would be compiled: minutes where the
sweep takes milliseconds. Imported there alone, for to say so loads the compiler.
"""

from collections.abc import Callable

import torch

from . import gather

gather_as_written: Callable[..., dict[str, object]] = torch.compiler.disable(  # pyright: ignore[reportAssignmentType]
    gather,
    reason="a sweep over the tiles of a map is no part of a graph: observe outside of it, without "
    "fullgraph=True, or on a GPU what kernels tell on the way (entropy, distance, peak, masses)",
)
