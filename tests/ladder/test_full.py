"""The full rung: any query and context, any mask, and the weights of each head."""

import pytest
import torch

import multihead as mh
from multihead import ladder


def full_problem():
    torch.manual_seed(0)
    full = ladder.FullMultiHeadAttention(15, 3).double()
    query = torch.randn(2, 5, 15, dtype=torch.float64, requires_grad=True)
    context = torch.randn(2, 7, 15, dtype=torch.float64, requires_grad=True)
    return full, query, context


def test_full_gives_output_and_the_weights_of_each_head():
    full, query, context = full_problem()
    output, weights = full(query, context, context)
    assert output.shape == (2, 5, 15)
    assert weights.shape == (2, 3, 5, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5).double())
    theirs = torch.nn.MultiheadAttention(15, 3, batch_first=True).double()
    theirs.in_proj_weight.data = torch.cat([full.W_q.weight, full.W_k.weight, full.W_v.weight])
    theirs.in_proj_bias.data = torch.cat([full.W_q.bias, full.W_k.bias, full.W_v.bias])
    theirs.out_proj.load_state_dict(full.W_o.state_dict())
    expected = theirs(query, context, context, average_attn_weights=False)
    for found, other in zip((output, weights), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (7,), (2, 1, 1, 7), (2, 3, 5, 7), (3, 5, 1)], ids=str)
def test_full_where_zero_means_may_not_attend(shape, dtype):
    full, query, context = full_problem()
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6
    output, weights = full(query, context, context, mask=mask.to(dtype))
    q, k, v = (
        layer(t).unflatten(-1, (3, 5)).transpose(1, 2)
        for layer, t in ((full.W_q, query), (full.W_k, context), (full.W_v, context))
    )
    found = mh.attend(q, k, v, mask=mask, backend="dense").transpose(1, 2).flatten(-2)
    torch.testing.assert_close(output, full.W_o(found), rtol=0, atol=1e-12)
    assert weights[~mask.expand_as(weights)].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_full_rows_that_may_see_nothing(dtype):
    full, query, context = full_problem()
    full.to(dtype)
    query, context = (t.detach().to(dtype).requires_grad_() for t in (query, context))
    mask = torch.ones(5, 7)
    mask[2] = 0
    output, weights = full(query, context, context, mask)
    assert weights[:, :, 2].eq(0).all()
    assert torch.equal(output[:, 2], full.W_o.bias.expand(2, -1))
    assert weights[:, :, [0, 1, 3, 4]].ne(0).all()
    with torch.autograd.set_detect_anomaly(True):  # not a NaN on the way either
        output.sum().backward()
    assert query.grad[:, 2].eq(0).all()
    assert query.grad[:, 1].ne(0).all()
    assert all(p.grad.isfinite().all() for p in (query, context, *full.parameters()))
