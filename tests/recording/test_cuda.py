"""On a GPU: recorded there, kept here, and the same as on the CPU."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import multihead as mh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def models():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    there = LlamaForCausalLM(config).eval()
    there.load_state_dict(model.state_dict())
    return model, there.cuda()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_the_same_as_on_the_cpu(padded):
    here, there = models()
    ids = torch.randint(0, 31, (2, 13))
    mask = torch.ones_like(ids)
    mask[0, :4] = 1 - int(padded)
    with mh.record(here) as ours:
        here(ids, attention_mask=mask)
    with mh.record(there) as theirs:
        out = there(ids.cuda(), attention_mask=mask.cuda()).logits
    torch.testing.assert_close(out, there(ids.cuda(), attention_mask=mask.cuda()).logits)
    for layer in range(2):
        assert theirs[layer]["entropy"].device.type == "cpu"
        for head in range(4):
            torch.testing.assert_close(
                theirs.weights(layer, head), ours.weights(layer, head), rtol=1e-3, atol=1e-4
            )
    torch.testing.assert_close(theirs.loss, ours.loss, rtol=1e-3, atol=1e-3, equal_nan=True)


@torch.no_grad()
def test_generation_cuts_and_importance_there():
    _, there = models()
    ids = torch.randint(0, 31, (1, 9)).cuda()
    with mh.record(there) as rec:
        there.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert rec.weights(0, 0).shape == (13, 13)
    with mh.record(there) as rec, mh.cut(there, [(1, 2)], links=mh.offset(-1)):
        there(ids)
    assert float(rec.weights(1, 2).diagonal(-1).abs().max()) == 0
    rows = mh.head_importance(there, [ids], lambda out, _: out.logits.square().mean())
    assert len(rows) == 8
