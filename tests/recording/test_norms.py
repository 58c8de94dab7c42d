"""‖v‖ and ‖v W_O‖ are of the values that were asked with, whatever becomes of their memory."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh


class InPlace(nn.Module):
    """Its output is added to what it was made of."""

    def forward(self, x):
        h = x.unflatten(-1, (4, -1)).transpose(1, 2)
        x += sdpa(h, h, h).transpose(1, 2).flatten(2)
        return x


class Overwritten(nn.Module):
    """A value that is gone before the output projection."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(32, 32)

    def forward(self, x):
        h = x.unflatten(-1, (4, -1)).transpose(1, 2)
        value = h.clone()
        found = sdpa(h, h, value)
        value.zero_()
        return self.out(found.transpose(1, 2).flatten(2))


@torch.no_grad()
def test_norms_of_values_that_are_written_over():
    x = torch.randn(2, 10, 32)
    expected = x.unflatten(-1, (4, -1)).transpose(1, 2).norm(dim=-1)
    model = InPlace()
    with mh.record(model) as rec:
        model(x.clone())
    torch.testing.assert_close(rec[0].value_norm(), expected)
    model = Overwritten()
    with mh.record(model) as rec:
        model(x)
    torch.testing.assert_close(rec[0].value_norm(), expected)
    assert rec[0].output_norm() is None  # not of zeros
