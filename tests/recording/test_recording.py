"""What a recording can be asked: parts of maps, pooled maps, norms, losses, words, a table."""

import math

import architectures
import pytest
import torch
from architectures import BATCH, SEEN, TOKENS, build, inputs, maps
from dense_maps import close
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import multihead as mh


def record(name, **more):
    model, given = build(SEEN[name]), inputs(SEEN[name].kind)
    with torch.no_grad(), mh.record(model, **more) as rec:
        out = model(**given)
    return model, rec, out, given


def pooled(dense, cells):
    """Sums and largest weights of cells, by the definition."""
    rows, keys = dense.shape
    cut = [[c * n // cells for c in range(cells + 1)] for n in (rows, keys)]
    total, most = torch.zeros(cells, cells), torch.zeros(cells, cells)
    for i in range(cells):
        for j in range(cells):
            part = dense[cut[0][i] : cut[0][i + 1], cut[1][j] : cut[1][j + 1]]
            if part.numel():
                total[i, j], most[i, j] = part.sum(), part.max()
    return total, most


@pytest.mark.parametrize("cells", [1, 4, 13, 32])
@pytest.mark.parametrize("name", ["llama", "mistral", "bart"])
def test_a_pooled_map(name, cells):
    model, rec, _, given = record(name)
    for layer, dense in zip(rec.layers, maps(model, **given), strict=True):
        for head in range(layer.heads):
            found = rec.heatmap(layer.index, head, cells, batch=1)
            total, most = pooled(dense[1, head], cells)
            close(found.sum, total, 1e-5)
            close(found.largest, most, 1e-5)
    if name == "llama":
        assert int(rec.heatmap(0, 0, cells).pairs.sum()) == TOKENS * (TOKENS + 1) // 2


@pytest.mark.parametrize("cells", [3, 8])
def test_a_pooled_map_of_a_generation(cells):
    model, given = build(SEEN["mistral"]), inputs("decoder")
    with torch.no_grad(), mh.record(model) as rec:
        ids = model.generate(**given, max_new_tokens=6, do_sample=False)
    for layer, dense in zip(rec.layers, maps(model, input_ids=ids[:, :-1]), strict=True):
        found = rec.heatmap(layer.index, 2, cells, batch=1)
        total, most = pooled(dense[1, 2], cells)
        close(found.sum, total, 1e-5)
        close(found.largest, most, 1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "t5"])
def test_parts_of_a_map(name):
    model = build(SEEN[name], "eager")
    given = inputs(SEEN[name].kind)
    with torch.no_grad(), mh.record(model) as rec:
        model(**given)
    dense = maps(model, **given)[1]
    for rows, keys in [(slice(2, 7), slice(0, 5)), ([1, 4], [0, 3, 5]), (slice(3, 4), None)]:
        found = rec.weights(1, 2, rows=rows, keys=keys, batch=1)
        expected = dense[1, 2][rows]
        close(found, expected if keys is None else expected[:, keys], 1e-5)


def llama_norms(model, x):
    attn = model.model.layers[0].self_attn
    value = attn.v_proj(model.model.layers[0].input_layernorm(x)).unflatten(-1, (3, 4))
    return value.repeat_interleave(2, dim=2), attn.o_proj.weight.T.unflatten(0, (6, 4))


def gpt2_norms(model, x):
    block = model.transformer.h[0]
    value = block.attn.c_attn(block.ln_1(x)).chunk(3, -1)[2].unflatten(-1, (3, 8))
    return value, block.attn.c_proj.weight.unflatten(0, (3, 8))


def bert_norms(model, x):
    attn = model.encoder.layer[0].attention
    return attn.self.value(x).unflatten(-1, (3, 8)), attn.output.dense.weight.T.unflatten(0, (3, 8))


def bart_norms(model, x):
    attn = model.model.encoder.layers[0].self_attn
    return attn.v_proj(x).unflatten(-1, (3, 8)), attn.out_proj.weight.T.unflatten(0, (3, 8))


FIRST = {
    "llama": (llama_norms, "model.layers.0"),
    "gpt2": (gpt2_norms, "transformer.h.0"),
    "bert": (bert_norms, "encoder.layer.0"),
    "bart": (bart_norms, "model.encoder.layers.0"),
}


@pytest.mark.parametrize("name", FIRST)
def test_weights_by_norm(name):
    model, given = build(SEEN[name]), inputs(SEEN[name].kind)
    norms, block = FIRST[name]
    seen = []
    hook = model.get_submodule(block).register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    with torch.no_grad(), mh.record(model) as rec:
        model(**given)
        value, out = norms(model, seen[0])  # (batch, key, heads, dim), (heads, dim, model)
    hook.remove()
    moved = torch.einsum("bkhd,hdm->bhkm", value, out).norm(dim=-1)
    dense = maps(model, **given)[0]
    for head in range(rec[0].heads):
        found = rec.weights(0, head, by="norm", batch=1)
        close(found, dense[1, head] * moved[1, head], 2e-5)
        by_value = rec.weights(0, head, by="value", batch=1)
        close(by_value, dense[1, head] * value[1, :, head].norm(dim=-1), 2e-5)


@pytest.mark.parametrize("name", architectures.SEEN)
def test_the_output_projection_is_found(name):
    what = SEEN[name]
    model = build(what, architectures.implementations(what)[0])
    with torch.no_grad(), mh.record(model) as rec:
        model(**inputs(what.kind))
    for layer in rec.layers:
        shape = (layer.batch, layer.heads, layer.keys)
        assert layer.output_norm() is not None, layer.name
        assert layer.output_norm().shape == shape


@pytest.mark.parametrize("cache", [None, "static"])
def test_norms_of_a_generation(cache):
    model, given = build(SEEN["llama"]), inputs("decoder")
    with torch.no_grad(), mh.record(model) as rec:
        ids = model.generate(**given, max_new_tokens=6, do_sample=False, cache_implementation=cache)
    with torch.no_grad(), mh.record(model) as whole:
        model(ids[:, :-1])
    tokens = ids.shape[1] - 1
    for layer in (0, 1):
        for head in range(6):
            for by in ("norm", "value"):
                found = rec.weights(layer, head, by=by)[:, :tokens]
                close(found, whole.weights(layer, head, by=by), 2e-5)


def test_norms_of_a_cache_that_was_reordered():
    model, ids = build(SEEN["llama"]), inputs("decoder")["input_ids"]
    with torch.no_grad(), mh.record(model) as rec:
        cache = model(ids[:, :11]).past_key_values
        cache.reorder_cache(torch.tensor([1, 0]))
        model(ids[:, 11:12], past_key_values=cache)
    with torch.no_grad(), mh.record(model) as before:
        model(ids[:, :11])
    for by in ("norm", "value"):
        found = rec.weights(1, 3, by=by, batch=0)
        close(found[:11, :11], before.weights(1, 3, by=by, batch=0), 2e-5)
        assert found[11, :11].any()


def test_a_model_without_an_output_projection():
    class Bare(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    model = Bare()
    with mh.record(model) as rec:
        model(torch.randn(1, 2, 5, 4))
    assert rec[0].name == "Bare"
    with pytest.raises(ValueError, match="no output projection was found behind Bare"):
        rec.weights(0, 0, by="norm")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_loss_of_each_token(name):
    _, rec, out, given = record(name)
    ids = given["input_ids"]
    expected = nn.functional.cross_entropy(
        out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).view(BATCH, -1)
    assert rec.loss[:, 0].isnan().all()
    close(rec.loss[:, 1:], expected, 1e-5)
    assert f"{float(rec.loss.nanmean()):.3f} nats" in repr(rec)


def test_the_loss_of_a_generation_and_of_padding():
    model, ids = build(SEEN["llama"]), inputs("decoder")["input_ids"]
    real = torch.arange(TOKENS) >= torch.tensor([[0], [4]])
    given = {"input_ids": ids, "attention_mask": real.long()}
    with torch.no_grad(), mh.record(model) as rec:
        found = model.generate(**given, max_new_tokens=5, do_sample=False, min_new_tokens=5)
    assert rec.loss.shape == rec.ids.shape == (BATCH, TOKENS + 4)
    assert rec.loss[1, :5].isnan().all()
    assert not rec.loss[:, 5:].isnan().any() or rec.loss[:, 1:TOKENS].isnan().all()
    with torch.no_grad():
        whole = torch.nn.functional.pad(real, (0, 4), value=True)
        positions = (whole.long().cumsum(1) - 1).clamp(min=0)
        logits = model(found[:, :-1], attention_mask=whole.long(), position_ids=positions).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].mT, found[:, 1:-1], reduction="none")
    known = ~rec.loss[:, 1:].isnan()
    close(rec.loss[:, 1:][known], expected[known], 2e-5)
    assert known[:, TOKENS:].all()


def test_models_without_ids_or_logits_have_no_loss():
    for name in ("bert", "vit", "wav2vec2"):
        _, rec, _, _ = record(name)
        assert rec.loss is None
        assert (rec.ids is None) == (name != "bert")


def test_words():
    class Words:
        def decode(self, ids):
            return f"<{ids[0]}>"

    _, rec, _, given = record("llama", tokenizer=Words())
    assert rec.tokens == [[f"<{i}>" for i in row] for row in given["input_ids"].tolist()]
    _, rec, _, given = record("llama")
    assert torch.equal(rec.tokens, given["input_ids"])


def test_the_table_of_heads():
    model, rec, _, given = record("llama")
    dense = [d.double() for d in maps(model, **given)]
    rows = rec.heads()
    assert [(row["layer"], row["head"]) for row in rows] == [
        (n, h) for n in (0, 1) for h in range(6)
    ]
    for row in rows:
        p = dense[row["layer"]][:, row["head"]]
        assert row["entropy"] == pytest.approx(
            float(-torch.special.xlogy(p, p).sum(-1).mean()), abs=1e-4
        )
        assert row["first"] == pytest.approx(float(p[..., 0].mean()), abs=1e-5)
        total = p.sum((0, 1))
        assert row["received_top"] == int(total.argmax())
        assert row["received_top_share"] == pytest.approx(
            float(total.max()) / (BATCH * TOKENS), abs=1e-5
        )


def test_the_table_leaves_padding_out():
    model, ids = build(SEEN["bert"]), inputs("encoder")["input_ids"]
    real = torch.arange(TOKENS) < torch.tensor([[TOKENS], [5]])
    with torch.no_grad(), mh.record(model) as rec:
        model(ids, attention_mask=real.long())
    p = maps(model, input_ids=ids, attention_mask=real.long())[0][:, 0].double()
    expected = -torch.special.xlogy(p, p).sum(-1)[real].mean()
    assert rec.heads()[0]["entropy"] == pytest.approx(float(expected), abs=1e-5)
    assert not math.isnan(rec.heads()[0]["received_top_share"])
    share = float(p[real].sum(0).max() / real.sum())
    assert rec.heads()[0]["received_top_share"] == pytest.approx(share, abs=1e-5)


@torch.no_grad()
def test_rows_of_padding_that_are_forbidden_by_numbers_look_at_all_alike():
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    ids, mask = torch.randint(0, 31, (1, 9)), torch.ones(1, 9, dtype=torch.long)
    mask[0, :3] = 0  # an eager model adds the least float there, and its first rows see only that
    with mh.record(model) as rec:
        model(ids, attention_mask=mask)
    own = model(ids, attention_mask=mask, output_attentions=True).attentions[0][0]
    for head in range(2):
        torch.testing.assert_close(rec.weights(0, head), own[head], rtol=0, atol=1e-6)
    torch.testing.assert_close(rec[0]["received"][0], own.sum(1), rtol=0, atol=1e-5)


def test_a_recording_lives_no_longer_than_it_is_held():
    """On a GPU its memory is pinned, and there is only so much of that."""
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        with torch.no_grad(), mh.record(model) as rec:
            model(torch.randn(1, 5, 8))
        kept = weakref.ref(rec[0].tensors["0.query"])
        del rec
        assert kept() is None
    finally:
        gc.enable()
