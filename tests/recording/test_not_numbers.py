"""Weights that are not numbers are reported; rows that see nothing are none of these."""

import pytest
import torch
from safetensors.torch import save_file
from saved_layers import contents, file_of

import multihead as mh


@pytest.mark.parametrize(("which", "chunk"), [("0.query", 0), ("1.query", 1), ("key.0", None)])
def test_queries_and_keys_that_are_not_numbers(saved, which, chunk):
    path = file_of(saved)
    tensors, said = contents(path)
    tensors[which][1, 0, 1 if chunk != 1 else 0, 2] = torch.nan
    save_file(tensors, path, said)
    rec = mh.load(saved)
    assert rec.damaged() == [rec[0].name]
    assert f"not numbers: weights of 1 layers, {rec[0].name} first" in repr(rec)
    assert rec.weights(0, 0, batch=1).isnan().any()


def test_rows_that_see_nothing_are_not_damaged():
    class One(torch.nn.Module):
        def forward(self, q):
            return mh.attend(q, q, q, mask=mh.padding([0]))

    with mh.record(model := One()) as rec:
        model(torch.randn(1, 2, 5, 4))
    assert bool((rec[0].lse == -torch.inf).all())
    assert rec.damaged() == []
    assert "not numbers" not in repr(rec)
