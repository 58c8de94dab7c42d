"""A generation, a prefill and then steps, is recorded as one pass over the whole text would be."""

import architectures
import pytest
import torch
from architectures import BATCH, SEEN, TOKENS, build, inputs
from dense_maps import check_maps

import multihead as mh
from multihead.recording.growing import Growing

STEPS = 7
CASES = [
    (name, implementation, cache)
    for name in ("llama", "gpt2", "mistral", "gemma3", "gpt_oss", "deepseek_v3", "opt")
    for implementation in architectures.implementations(SEEN[name])
    for cache in (None, "static")
    if not (name == "opt" and cache)
]


def generate(model, given, **more):
    with torch.no_grad():
        return model.generate(**given, max_new_tokens=STEPS, do_sample=False, **more)


def short(rec, tokens):
    """The recording with its keys cut to those that were ever filled; the others get nothing."""
    for layer in rec.layers:
        assert layer.keys >= tokens
        for head in range(layer.heads):
            for batch in range(layer.batch):
                assert not rec.weights(layer.index, head, batch=batch)[:, tokens:].any()
    return rec.layers


@pytest.mark.parametrize(("name", "implementation", "cache"), CASES)
def test_steps_are_rows_of_one_map(name, implementation, cache):
    model, given = build(SEEN[name], implementation), inputs("decoder")
    plain = generate(model, given, cache_implementation=cache)
    with mh.record(model) as rec:
        ids = generate(model, given, cache_implementation=cache)
    assert torch.equal(ids, plain)
    assert torch.equal(rec.ids, ids[:, :-1])
    tokens = TOKENS + STEPS - 1
    maps = architectures.maps(model, input_ids=ids[:, :-1])
    for layer, dense in zip(short(rec, tokens), maps, strict=True):
        assert layer.queries == tokens
        assert len(layer.chunks) == 2
        more = torch.nn.functional.pad(dense, (0, layer.keys - tokens))
        check_maps(rec, [layer], [more])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_a_padded_batch(name, cache):
    model = build(SEEN[name], architectures.implementations(SEEN[name])[0])
    real = torch.arange(TOKENS) >= torch.tensor([[0], [4]])
    given = {**inputs("decoder"), "attention_mask": real.long()}
    with mh.record(model) as rec:
        ids = generate(model, given, cache_implementation=cache)
    whole = torch.nn.functional.pad(real, (0, STEPS - 1), value=True)
    positions = (whole.long().cumsum(1) - 1).clamp(min=0)
    maps = architectures.maps(
        model, input_ids=ids[:, :-1], attention_mask=whole.long(), position_ids=positions
    )
    for layer, dense in zip(short(rec, whole.shape[1]), maps, strict=True):
        more = torch.nn.functional.pad(dense, (0, layer.keys - whole.shape[1]))
        check_maps(rec, [layer], [more], rows=whole)
    assert torch.equal(rec.real, whole)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["t5", "bart", "marian", "whisper"])
def test_an_encoder_and_a_decoder(name, implementation):
    model, given = build(SEEN[name], implementation), inputs(SEEN[name].kind)
    start = given.pop("decoder_input_ids")
    with mh.record(model) as rec:
        ids = generate(model, given, decoder_input_ids=start, eos_token_id=None)
    assert torch.equal(rec.ids[:, 1 - STEPS :], ids[:, -STEPS:-1])
    maps = architectures.maps(model, **given, decoder_input_ids=rec.ids)
    assert [layer.crosses for layer in rec.layers] == [False] * 3 + [True, False, True]
    check_maps(rec, rec.layers, maps)
    assert {len(layer.chunks) for layer in rec.layers} == {1, 2}


def test_two_generations_are_two_texts():
    for cache in (None, "static"):
        model = build(SEEN["llama"])
        one = inputs("decoder")["input_ids"]
        two = one.flip(1)[:, :11]
        with mh.record(model) as rec:
            found = [
                generate(model, {"input_ids": t}, cache_implementation=cache) for t in (one, two)
            ]
        assert len(rec.texts) == 2
        for text, ids in zip(rec.texts, found, strict=True):
            assert torch.equal(text.ids, ids[:, :-1])
            maps = architectures.maps(model, input_ids=ids[:, :-1])
            for layer, dense in zip(text.layers, maps, strict=True):
                more = torch.nn.functional.pad(dense, (0, layer.keys - dense.shape[3]))
                check_maps(text, [layer], [more])


def test_two_generations_of_an_encoder_and_a_decoder_are_two_texts():
    model, given = build(SEEN["bart"]), inputs("both")
    del given["decoder_input_ids"]
    with mh.record(model) as rec:
        found = [
            generate(model, {"input_ids": t})
            for t in (given["input_ids"], given["input_ids"].flip(1))
        ]
    assert len(rec.texts) == 2
    for text, ids in zip(rec.texts, found, strict=True):
        assert torch.equal(text.ids, ids[:, :-1])


def test_a_prefill_in_parts():
    model, ids = build(SEEN["llama"]), inputs("decoder")["input_ids"]
    with torch.no_grad(), mh.record(model) as rec:
        cache = model(ids[:, :5]).past_key_values
        cache = model(ids[:, 5:8], past_key_values=cache).past_key_values
        model(ids[:, 8:], past_key_values=cache)
    check_maps(rec, rec.layers, architectures.maps(model, input_ids=ids))
    assert torch.equal(rec.ids, ids)


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_beams(name):
    model, given = build(SEEN[name]), inputs(SEEN[name].kind)
    given.pop("decoder_input_ids", None)
    with torch.no_grad():
        plain = generate(model, given, num_beams=3)
        with mh.record(model) as rec:
            found = generate(model, given, num_beams=3)
    assert torch.equal(plain, found)
    for layer in rec.layers:
        assert layer.batch == 3 * BATCH or layer.name.startswith("model.encoder")
        for batch in range(layer.batch):
            rows = rec.weights(layer.index, 1, batch=batch)
            torch.testing.assert_close(rows.sum(-1), torch.ones(layer.queries))
            torch.testing.assert_close(layer["peak"][batch, 1], rows.amax(-1))


def test_beams_over_a_cache_that_slides():
    """What was dropped in front stays counted, and no row has a text of its own."""
    model, given = build(SEEN["mistral"]), inputs("decoder")
    with torch.no_grad(), mh.record(model) as rec:
        generate(model, given, num_beams=3)
    window = model.config.sliding_window
    assert (rec.ids, rec.loss, rec.about["reordered"]) == (None, None, True)
    for layer in rec.layers:
        assert layer.queries == layer.keys == layer["received"].shape[-1]
        for batch in range(layer.batch):
            rows = rec.weights(layer.index, 1, batch=batch)
            torch.testing.assert_close(rows.sum(-1), torch.ones(layer.queries))
            apart = torch.arange(layer.queries)[:, None] - torch.arange(layer.keys)
            assert not rows[(apart < 0) | (apart >= window)].any()
            assert not layer["first"][batch, :, window:].any()


def test_what_is_held_is_counted_as_it_comes(monkeypatch):
    """Not anew over all pieces at each step, which would be quadratic in the steps."""
    model, given, add, told = build(SEEN["mistral"]), inputs("decoder"), Growing.add, []

    def counted(self, *args):
        before = self.bytes
        add(self, *args)
        told.append((self.bytes, sum(t.nbytes for t in self._held().values())))
        assert self.added == self.bytes - before > 0

    monkeypatch.setattr(Growing, "add", counted)
    with torch.no_grad(), mh.record(model):
        generate(model, given)
    assert len(told) > 2 * STEPS - 2
    assert all(kept == held for kept, held in told)


def test_a_step_of_beams_is_over_the_keys_of_its_own_past():
    """The cache is reordered between steps; each row must still be over the keys it saw."""
    model, ids = build(SEEN["llama"]), inputs("decoder")["input_ids"]
    order = torch.tensor([1, 1])
    with torch.no_grad(), mh.record(model) as rec:
        cache = model(ids[:, :11]).past_key_values
        cache.reorder_cache(order)
        model(ids[:, 11:12], past_key_values=cache)
    before = architectures.maps(model, input_ids=ids[:, :11])
    after = architectures.maps(model, input_ids=torch.cat([ids[order, :11], ids[:, 11:12]], 1))
    for layer, one, two in zip(rec.layers, before, after, strict=True):
        whole = torch.cat([torch.nn.functional.pad(one, (0, 1)), two[:, :, -1:]], 2)
        check_maps(rec, [layer], [whole])


def test_drafts_are_refused():
    model, given = build(SEEN["llama"]), inputs("decoder")
    given = {"input_ids": given["input_ids"][:1].repeat(1, 2)}
    with pytest.raises(ValueError, match="a generation from drafts"), mh.record(model):
        generate(model, given, prompt_lookup_num_tokens=3)


def test_a_cache_that_was_cropped_is_refused():
    model, ids = build(SEEN["llama"]), inputs("decoder")["input_ids"]
    with torch.no_grad(), pytest.raises(ValueError, match="7 keys of the 9"), mh.record(model):
        cache = model(ids[:, :9]).past_key_values
        cache.crop(-2)
        model(ids[:, 9:11], past_key_values=cache)


class Latents(torch.nn.Module):
    """A few queries of their own over a text, as in a Perceiver."""

    def __init__(self, queries=3):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.queries = torch.nn.Parameter(torch.randn(1, 2, queries, 4, generator=generator))

    def forward(self, x):  # (batch, tokens, 8)
        k = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(self.queries, k, k)


def texts_of_latents():
    one = torch.randn(1, 7, 8, generator=torch.Generator().manual_seed(2))
    like = torch.cat([one[:, :5], one[:, 5:].flip(1)], dim=1)
    return {
        "another": (one, one.flip(1)),
        "the same": (one, one),
        "one that begins alike": (one, like),
        "a longer one": (one, torch.cat([one.flip(1), one], dim=1)),
        "a shorter one": (one, one.flip(1)[:, :5]),
    }


@pytest.mark.parametrize("name", texts_of_latents())
def test_latent_queries_over_two_texts_are_two_texts(name):
    texts, model = texts_of_latents()[name], Latents()
    with torch.no_grad(), mh.record(model) as rec:
        for text in texts:
            model(text)
    assert len(rec.texts) == 2
    for found, text in zip(rec.texts, texts, strict=True):
        k = text.unflatten(-1, (2, 4)).transpose(1, 2)
        check_maps(found, found.layers, [(model.queries @ k.mT / 2).softmax(-1).detach()])


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_what_a_key_receives_on_average_is_over_all_rows(name):
    """Rows of the prefill and of each step count alike: means are not added up."""
    model = build(SEEN[name])
    real = torch.arange(TOKENS) >= torch.tensor([[0], [4]])
    with mh.record(model, stats=("received_mean",)) as rec:
        generate(model, {**inputs("decoder"), "attention_mask": real.long()})
    for layer in rec.layers:
        assert len(layer.chunks) == 2
        for batch in range(BATCH):
            for head in range(layer.heads):
                p = rec.weights(layer.index, head, batch=batch)
                rows = layer.allowed(batch, head).sum(0).clamp(min=1)
                torch.testing.assert_close(
                    layer["received_mean"][batch, head], p.sum(0) / rows, rtol=0, atol=1e-5
                )
