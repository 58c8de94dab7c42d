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


def in_halves(tokens: int):
    """A model in bfloat16 whose heads our kernels take, a text, and its eager attentions."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31, hidden_size=256, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, dtype=torch.bfloat16,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().cuda().bfloat16()
    ids = torch.randint(0, 31, (2, tokens)).cuda()
    eager = LlamaForCausalLM._from_config(config, attn_implementation="eager").eval().cuda()
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        weights = eager.bfloat16()(ids, output_attentions=True).attentions
    return model, ids, [w.float().cpu() for w in weights]


@pytest.mark.parametrize("tokens", [130, 131])  # of the second, rows do not begin at 16 bytes
@pytest.mark.parametrize("look", [torch.no_grad, torch.inference_mode])
def test_halves_by_our_kernels(tokens, look, tmp_path):
    model, ids, eager = in_halves(tokens)
    with look(), mh.record(model) as rec:
        model(ids)
    with look(), mh.record(model, max_bytes=0) as spilled:
        model(ids)
    with look(), mh.record(model, to=tmp_path / "run.heads") as written:
        model(ids)
    rec.save(tmp_path / "saved.heads")
    every = (
        rec,
        spilled,
        written,
        mh.load(tmp_path / "saved.heads"),
        mh.load(tmp_path / "run.heads"),
    )
    for layer in range(2):
        first = rec[layer]
        w = torch.stack(
            [torch.stack([rec.weights(layer, h, batch=b) for h in range(4)]) for b in range(2)]
        )
        torch.testing.assert_close(w, eager[layer], rtol=0.05, atol=0.02)
        entropy = -(w * w.clamp(min=1e-30).log()).sum(-1)
        torch.testing.assert_close(first["entropy"], entropy, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(first["peak"], w.amax(-1), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(first["first"], w[..., 0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(first["received"], w.sum(-2), rtol=1e-3, atol=1e-3)
        for other in every[1:]:
            assert torch.equal(other.weights(layer, 3, batch=1), rec.weights(layer, 3, batch=1))
            assert other[layer].tensors.keys() == first.tensors.keys()
            for name, tensor in first.tensors.items():
                assert torch.equal(other[layer].tensors[name], tensor), name
    for other in every[1:]:
        torch.testing.assert_close(other.loss, rec.loss, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(other.ids, ids.cpu())


@torch.no_grad()
def test_norms_of_halves():
    model, ids, _ = in_halves(70)
    held = {}
    attention = model.model.layers[1].self_attn
    attention.v_proj.register_forward_hook(lambda _, __, out: held.update(v=out))
    with mh.record(model) as rec:
        model(ids)
    value = held["v"].double().unflatten(-1, (2, 64)).transpose(1, 2)
    weight = attention.o_proj.weight.double().T.unflatten(0, (4, 64))
    moved = (value.repeat_interleave(2, 1) @ weight).norm(dim=-1).cpu()
    torch.testing.assert_close(rec[1].output_norm().double(), moved, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        rec[1].value_norm().double(), value.norm(dim=-1).cpu(), rtol=1e-5, atol=1e-6
    )


@torch.no_grad()
def test_ids_beyond_the_last_word_have_no_loss():
    model, ids, _ = in_halves(9)
    strange = ids.clone()
    strange[1, 4] = 40
    embedding = model.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(torch.cat([embedding.weight, embedding.weight]))
    embedding.num_embeddings = 62
    with mh.record(model) as rec:
        model(strange)
    assert rec.loss is None
    with mh.record(model) as rec:
        model(ids)
    assert int(rec.loss.isnan().sum()) == 2  # the first of each text
