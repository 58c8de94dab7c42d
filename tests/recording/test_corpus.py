"""Many texts: means, intervals and strongest links, beside each text on its own."""

import pytest
import torch
from puppets import VOCAB, Puppet

import multihead as mh

IDS = torch.randint(0, VOCAB, (2, 11), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("given", [None, 3])
def test_no_batches_at_all_are_refused(given):
    with pytest.raises(ValueError, match="batches are a list of what the model is called with"):
        mh.record_many(Puppet(("even",)), given)


@pytest.mark.parametrize("one", [IDS, {"input_ids": IDS}, "a text"])
def test_one_batch_in_place_of_a_list_is_refused(one):
    with pytest.raises(ValueError, match="put it into a list"):
        mh.record_many(Puppet(("even",)), one)
    with pytest.raises(ValueError, match="put it into a list"):
        mh.head_importance(Puppet(("even",)), one, lambda out, _: out.sum())


@torch.no_grad()
def test_many_texts():
    model = Puppet(("previous", "random"))
    texts = [torch.randint(0, VOCAB, (2, 13)), torch.randint(0, VOCAB, (1, 17))]
    told = []
    corpus = mh.record_many(model, texts, examples=3, progress=told.append)
    assert told == [1, 2]
    assert corpus.texts == 3
    row = corpus.heads()[1]
    single = []
    for batch in texts:
        for one in batch:
            with mh.record(model) as rec:
                model(one[None])
            single.append(rec.heads()[1]["entropy"])
    single = torch.tensor(single, dtype=torch.float64)
    assert row["entropy"] == pytest.approx(float(single.mean()), rel=1e-5)
    half = 4.3027 * float(single.std()) / 3**0.5  # Student's, of three texts
    assert row["entropy_high"] - row["entropy"] == pytest.approx(half, rel=1e-3)
    best = corpus.examples(0, 0)
    assert len(best) == 3
    assert all(one.key == one.query - 1 and one.weight > 0.9 for one in best)
    with pytest.raises(ValueError, match="batches are empty"):
        mh.record_many(model, [])


@torch.no_grad()
def test_what_keys_receive_over_many_texts():
    model = Puppet(("first", "random"), ("previous", "even"))
    texts = [torch.randint(0, VOCAB, (2, 13)), torch.randint(0, VOCAB, (1, 17))]
    rows = mh.record_many(model, texts).heads()
    single = []
    for one in (text for batch in texts for text in batch):
        with mh.record(model) as rec:
            model(one[None])
        single.append([row["received_top_share"] for row in rec.heads()])
    single = torch.tensor(single, dtype=torch.float64)
    found = torch.tensor([row["received_top_share"] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(found, single.mean(0), rtol=1e-5, atol=0)
    assert found[0] > 0.9
    low = torch.tensor([row["received_top_share_low"] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(low, found - 4.3027 * single.std(0) / 3**0.5, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        (("received", mh.heatmap(4)), "heatmap\\(4\\) is a map"),
        ((mh.top(2),), "top\\(2\\) is a list of keys"),
        (("received_mean",), "received_mean is one number a key"),
        ((mh.received(torch.ones(13)),), "is one number a key"),
    ],
)
def test_what_has_no_mean_over_texts_is_refused(stats, said):
    model, texts = Puppet(("previous",)), [torch.randint(0, VOCAB, (2, 13))]
    with pytest.raises(ValueError, match=said + ".*mh.record"):
        mh.record_many(model, texts, stats=stats)


@pytest.mark.parametrize("count", [-1, "a", True, 1.5, None])
def test_a_number_of_examples_that_is_none(count):
    with pytest.raises(ValueError, match="examples are a number of links, 0 or more"):
        mh.record_many(Puppet(("previous",)), [torch.randint(0, VOCAB, (2, 13))], examples=count)


def test_examples_by_the_name_of_a_layer():
    corpus = mh.record_many(Puppet(("previous",), ("even",)), [torch.arange(13)[None]])
    assert corpus.examples("layers.1", 0) == corpus.examples(1, 0)
    assert corpus.examples("layers.0", 0) != corpus.examples(1, 0)
    for layer, head in (("layers.7", 0), (0, 1), (0, True), (0, "a"), ([0], 0)):
        with pytest.raises(ValueError, match="no layer .* with a head"):
            corpus.examples(layer, head)


@pytest.mark.parametrize("batch", ["some words", [1, 2, 3]])
def test_a_batch_that_no_model_is_called_with(batch):
    with pytest.raises(ValueError, match="a batch is what the model is called with, but a"):
        mh.record_many(torch.nn.Linear(2, 2), [batch])


@pytest.mark.parametrize("tokens", [5, 9])
def test_examples_of_an_encoder_are_words_of_what_it_reads(tokens):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()

    class Letters:
        def decode(self, ids, **_):
            return "".join(chr(97 + int(i) % 26) for i in ids)

    source, text = torch.arange(1, 1 + tokens)[None], torch.arange(20, 25)[None]
    batch = {"input_ids": source, "decoder_input_ids": text}
    found = mh.record_many(model, [batch], tokenizer=Letters())
    letters = {"encoder": "bcdefghij"[:tokens], "decoder": "uvwxy"}
    for name, read in letters.items():
        examples = [
            example
            for index, layer, head in found.names
            if layer.startswith(name) and "EncDec" not in layer
            for example in found.examples(index, head)
        ]
        assert examples
        assert all(one.words == (read[one.query], read[one.key]) for one in examples)
