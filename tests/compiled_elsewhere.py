"""Every kernel that is nobody's own, or norms, compiled for a GPU that is not here, by their launches.

    python tests/compiled_elsewhere.py cuda:120 64 128 256
    python tests/compiled_elsewhere.py cuda:90 norms

prints, of each compiled kernel, its name and what it takes of a multiprocessor: bytes of shared
memory, and columns of tensor memory (on GPUs that have one). In a process of its own, which takes
that GPU for the one it has.
"""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


def pretend(target: GPUTarget) -> None:
    """From here on that GPU is ours, and a launch compiles and runs nothing."""

    class Elsewhere:  # all that a compiler asks of a device
        def get_current_target(self):
            return target

        def get_current_device(self):
            return 0

        def get_current_stream(self, device=None):
            return 0

    def compiled(kernel, *given, grid, warmup, run=JITFunction.run, **named):
        told = run(kernel, *given, grid=grid, warmup=True, **named).metadata
        print(kernel.fn.__name__, told.shared, getattr(told, "tmem_size", None) or 0, flush=True)

    driver.set_active(Elsewhere())
    JITFunction.run = compiled
    torch.version.hip = "7.0" if target.backend == "hip" else None


def compile_everything(widths: list[int]) -> None:
    """By the functions that launch, which tensors on a CPU send to the kernels for any GPU."""
    import multihead as mh
    from multihead.attention import pose
    from multihead.attention.band import Band
    from multihead.attention.fused import again, launch
    from multihead.attention.fused.question import Asked, Pulls, question_of
    from multihead.observation.fused.cells import cells_of
    from multihead.observation.fused.columns import received
    from multihead.observation.statistics.heatmap import cell_edges
    from multihead.recording import kernels as recording

    again._BY_TRITON = True
    everything = Asked(True, True, True, True, (Band(length=3), Band(right=-1)))

    def question(dim: int, queries: int, keys: int):
        shapes = (4, queries), (2, keys)
        q, k = (torch.zeros(2, heads, n, dim, dtype=torch.bfloat16) for heads, n in shapes)
        return question_of(pose(q, k, k, mask=mh.causal(), bias=None, scale=None, softcap=None,
                                sinks=torch.zeros(4), dropout=0.0, offset=None))  # fmt: skip

    recording.nats(torch.zeros(9, 50_000), torch.zeros(9, dtype=torch.int64))
    for dim in widths:
        square = question(dim, 512, 512)
        recording.copies(*square.tensors)
        told = launch.forward(square, everything)
        assert told.masses is not None
        pulls = Pulls(told.lse, told.lse, told.lse, told.masses, everything.masses)
        launch.backward(square, told.out, told.lse, pulls)
        launch.masses(square, told.lse, everything.masses)
        received(square, told.lse)
        for cells in (32, 31):  # of one size, and not
            cells_of(square, told.lse, [cell_edges(512, cells)] * 2)
        for queries in (1, 100):
            launch.forward(question(dim, queries, 30_000), everything)


def compile_norms() -> None:
    """Of values beside W_O: a recording's, on a Hopper."""
    from multihead.attention.fused import again
    from multihead.recording.kernels import norms

    again._BY_TRITON = True
    for one in (torch.bfloat16, torch.float32):  # float16 is as large as bfloat16
        for other in (one, torch.float32):  # under autocast W_O stays as it is
            norms(torch.zeros(1, 2, 700, 128, dtype=one), torch.zeros(512, 256, dtype=other).T)


if __name__ == "__main__":
    backend, _, which = sys.argv[1].partition(":")
    number = int(which) if backend == "cuda" else which
    pretend(GPUTarget(backend, number, 64 if which.startswith("gfx9") else 32))
    if sys.argv[2:] == ["norms"]:
        compile_norms()
    else:
        compile_everything([int(width) for width in sys.argv[2:]])
