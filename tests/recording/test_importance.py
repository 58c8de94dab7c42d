"""How much the loss minds each head, against gates by hand; and what cannot be asked."""

import pytest
import torch
import torch.nn.functional as F
from puppets import Puppet
from torch import nn

import multihead as mh


def test_importance_by_hand():
    model = Puppet(("induction", "even"), ("induction", "previous"))
    ids = torch.cat([torch.arange(9), torch.arange(9)])[None]

    def loss(output, batch):
        return F.cross_entropy(output[0, :-1], batch[0, 1:])

    rows = mh.head_importance(model, [ids], loss)
    found = {(row["layer"], row["head"]): row["importance"] for row in rows}
    assert found[0, 0] == pytest.approx(1, abs=1e-6)  # the only one of its layer that speaks
    assert found[0, 1] == 0
    assert found[1, 0] == pytest.approx(1, abs=1e-6)


def test_importance_is_the_gradient_of_a_gate():
    attn = mh.MultiHeadAttention(12, 3, mask=mh.causal(), head_gate="trained")
    x = torch.randn(1, 7, 12)
    attn(x).square().sum().backward()
    expected = attn.head_gate.grad.abs()
    rows = mh.head_importance(attn, [x], lambda out, _: out.square().sum())
    found = torch.tensor([row["importance"] for row in rows])
    torch.testing.assert_close(found, expected / expected.norm())


def squares(out, _):
    return out.square().mean(2).sum(1).mean()  # of each text, and their mean


def test_importance_is_the_mean_over_texts_in_batches_of_any_size():
    attn = mh.MultiHeadAttention(12, 3, mask=mh.causal())
    x = torch.randn(7, 5, 12) * torch.arange(1.0, 8.0)[:, None, None]
    found = [
        torch.tensor([row["importance"] for row in mh.head_importance(attn, batches, squares)])
        for batches in ([x], x.split(1), [x[:1], x[1:]], [x[:5], x[5:]])
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


class Spare(nn.Module):
    """Two layers, the second of no use to the output."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = mh.MultiHeadAttention(8, 2), mh.MultiHeadAttention(8, 2)

    def forward(self, x):
        self.left = self.spare(x)
        return self.used(x)


def test_a_layer_that_the_loss_does_not_use_has_no_importance():
    rows = mh.head_importance(Spare(), [torch.randn(2, 5, 8)], squares)
    found = {(row["name"], row["head"]): row["importance"] for row in rows}
    assert found["spare", 0] == found["spare", 1] == 0
    assert found["used", 0] > 0


def test_importance_under_no_grad():
    attn, x = mh.MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    with torch.no_grad():
        rows = mh.head_importance(attn, [x], squares)
    assert rows == mh.head_importance(attn, [x], squares)


@pytest.mark.parametrize(
    ("model", "batches", "loss", "message"),
    [
        (nn.Linear(8, 8), [torch.randn(1, 5, 8)], squares, "no attention call of Linear was seen"),
        (Spare(), None, squares, "but a NoneType came"),
        (Spare(), 3, squares, "but an? int came"),
        (
            Spare(),
            [torch.randn(1, 5, 8), torch.full((1, 5, 8), torch.nan)],
            squares,
            "the loss of batch 1 is nan",
        ),
        (Spare(), [torch.zeros(1, 5, 8)], lambda out, _: (0 * out).sum().sqrt(), "batch 0 .* used"),
        (Spare(), [torch.randn(1, 5, 8)], None, "loss is a function .* but a NoneType came"),
    ],
)
def test_an_importance_that_cannot_be_had_is_refused(model, batches, loss, message):
    with pytest.raises(ValueError, match=message):
        mh.head_importance(model, batches, loss)


def test_importance_without_gradients_is_refused():
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        mh.head_importance(Spare(), [torch.randn(1, 5, 8)], squares)


def test_importance_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batches are empty"):
        mh.head_importance(Spare(), [], squares)


@pytest.mark.parametrize(
    ("loss", "came"),
    [
        (lambda out, _: 0.3, "a float came"),
        (lambda out, _: out, "a Tensor|shape \\(1, 5, 8\\)"),
        (lambda out, _: out.detach().sum(), "no gradient"),
    ],
)
def test_a_loss_that_is_no_number_is_refused(loss, came):
    attn = mh.MultiHeadAttention(8, 2)
    with pytest.raises(ValueError, match=f"must give a tensor of one number.*({came})"):
        mh.head_importance(attn, [torch.randn(1, 5, 8)], loss)
