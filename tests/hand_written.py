"""A small model that calls SDPA itself, and whether anything of a watch was left behind."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils.checkpoint import checkpoint

TOKENS, WIDTH = 7, 8


class Block(nn.Module):
    def __init__(self, how=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.how = how  # (use_reentrant,) for a checkpoint

    def inner(self, x):
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(sdpa(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x):
        return x + (
            checkpoint(self.inner, x, use_reentrant=self.how)
            if self.how is not None
            else self.inner(x)
        )


def stack(how=None, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(Block(how), Block(how))


def texts(seed=0):
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def clean():
    """Nothing of a watch is left behind."""
    from torch.nn.modules import module as internals

    from multihead.recording import transformers, watch

    return not (
        watch._WATCHES
        or transformers._OWNERS
        or torch._C._len_torch_function_stack()
        or internals._global_forward_hooks
        or internals._global_forward_pre_hooks
        or torch._dynamo.eval_frame._stance.stance != "default"
    )
