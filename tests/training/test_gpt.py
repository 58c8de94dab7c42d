"""The model: one document sees itself alone, the cache gives the full pass, a file gives it back."""

import pytest
import torch

import multihead as mh
from multihead.training import GPT, Alphabet, GPTConfig, read_model, write_model
from multihead.training.names import NAMES
from multihead.training.sampling import Taste, allowed, draw

SIZES = {"vocab_size": 27, "context": 13, "d_model": 12, "num_heads": 3, "num_layers": 2}


def make(**more) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**SIZES, **more})).eval()
    for weight in model.parameters():  # a start of 0.02 hides what is wrong
        torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.parametrize("positions", ["learned", "rope"])
@torch.no_grad()
def test_a_document_sees_itself_alone(positions):
    model = make(positions=positions, separator=0)
    row = torch.tensor([NAMES.encode("emma olivia bo")])
    whole = model(row)[0, 5:12]
    alone = model(torch.tensor([NAMES.encode("olivia")]))[0]
    assert torch.allclose(whole, alone, atol=1e-5)
    # and without a separator it does not
    other = make(positions=positions)
    assert not torch.allclose(other(row[:, :13])[0, 5:12], other(row[:, 5:12])[0], atol=1e-3)


@pytest.mark.parametrize("positions", ["learned", "rope"])
@torch.no_grad()
def test_the_cache_gives_the_full_pass(positions):
    model = make(positions=positions)
    ids = torch.randint(27, (2, 11))
    cache = model.new_cache(2)
    steps = [model(ids[:, :3], cache=cache)]
    steps += [model(ids[:, i : i + 1], cache=cache) for i in range(3, 11)]
    assert torch.allclose(torch.cat(steps, 1), model(ids), atol=1e-5)


@torch.no_grad()
def test_generation_is_what_the_full_pass_would_draw():
    model = make(separator=0)
    ids = model.generate(torch.zeros(5, 1).long(), 12, temperature=0)
    for row in ids:
        for n in range(1, len(row)):
            if (row[1:n] == 0).any():  # it ended before
                assert row[n] == 0
            else:
                assert model(row[None, :n])[0, -1].argmax() == row[n]


def test_a_seed_says_what_is_drawn():
    model = make()
    state = torch.get_rng_state()
    first, same, other = (
        model.generate(torch.zeros(2, 1).long(), 30, seed=s).tolist() for s in (1, 1, 2)
    )
    assert first == same != other
    assert torch.equal(state, torch.get_rng_state())  # the caller's numbers are as they were
    assert len(first[0]) == 31  # beyond the context, too


def test_generation_gives_back_the_mode_it_found():
    model = make(dropout=0.5).train()
    model.generate(torch.zeros(1, 1).long(), 2, seed=0)
    assert model.training


def test_a_model_that_could_not_go_on_trains_as_before():
    model = make().train()
    with pytest.raises(IndexError):
        model.generate(torch.full((1, 2), 10_000), 3)  # no such token
    assert model.training
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-201, 1e-199])
def test_a_temperature_near_0_takes_the_likeliest(temperature):
    model, begin = make().eval(), torch.zeros(3, 1).long()
    found = model.generate(begin, 5, temperature=temperature, seed=1)
    assert torch.equal(found, model.generate(begin, 5, temperature=0))


@pytest.mark.parametrize(
    ("taste", "kept"),
    [
        (Taste(), [0, 1, 2, 3]),
        (Taste(top_k=1), [0]),
        (Taste(top_k=3), [0, 1, 2]),
        (Taste(top_k=9), [0, 1, 2, 3]),
        (Taste(top_p=0.6), [0]),
        (Taste(top_p=0.7), [0, 1]),
        (Taste(top_p=1.0), [0, 1, 2, 3]),
        (Taste(top_k=2, top_p=0.99), [0, 1]),
    ],
)
def test_what_may_be_drawn(taste, kept):
    logits = torch.tensor([[0.65, 0.2, 0.1, 0.05]]).log()
    assert allowed(logits, taste).isfinite()[0].nonzero()[:, 0].tolist() == kept


def test_draws_follow_the_probabilities():
    logits = torch.tensor([0.7, 0.2, 0.1]).log().expand(20_000, 3)
    drawn = draw(logits, Taste(), torch.Generator().manual_seed(0)).flatten()
    shares = torch.bincount(drawn, minlength=3) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.7, 0.2, 0.1]), atol=0.015)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": -1}, "temperature must be 0 or more, and -1 came"),
        ({"temperature": float("nan")}, "temperature must be 0 or more"),
        ({"top_k": 0}, "top_k must be 1 or more"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
    ],
)
def test_a_taste_that_cannot_be(given, said):
    with pytest.raises(ValueError, match=said):
        make().generate(torch.zeros(1, 1).long(), 1, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_heads": 5}, "12 dims for 5 heads came"),
        ({"num_layers": 0}, "num_layers must be a whole number above 0, and 0 came"),
        ({"positions": "none"}, "positions must be one of learned, rope"),
        ({"positions": "rope", "num_heads": 4}, "rope turns pairs of numbers, and a head has 3"),
    ],
)
def test_a_shape_that_cannot_be(given, said):
    with pytest.raises(ValueError, match=said):
        GPTConfig(**{**SIZES, **given})


@pytest.mark.parametrize("separator", [None, 0])
def test_a_document_that_is_too_long(separator):
    with pytest.raises(ValueError, match="a document may have 13 tokens, and this one has 14"):
        make(separator=separator)(torch.ones(1, 14).long())


def test_prompts_that_cannot_be_gone_on_from():
    model = make(separator=0)
    with pytest.raises(ValueError, match="must begin at the same place in all rows"):
        model.generate(torch.tensor([[0, 3, 0], [0, 3, 4]]), 2)
    with pytest.raises(ValueError, match="one token at least"):
        model.generate(torch.zeros(1, 0).long(), 2)


@torch.no_grad()
def test_a_file_gives_the_model_back(tmp_path):
    model, path = make(separator=0, example="emma"), tmp_path / "model.safetensors"
    write_model(path, model, NAMES, {"command": "by hand"})
    read, alphabet, made = read_model(path)
    ids = torch.tensor([NAMES.encode("emma")])
    assert torch.equal(read(ids), model(ids))
    assert (alphabet, made, read.config) == (NAMES, {"command": "by hand"}, model.config)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]  # nothing beside it


def test_a_file_that_is_damaged(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model(path, make(), NAMES, {})
    whole = path.read_bytes()
    for content in (b"", whole[:100], b"\x80\x04pickle"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            read_model(path)
    path.write_bytes(whole.replace(b'num_layers\\": 2', b'num_layers\\": 3'))
    with pytest.raises(ValueError, match="does not hold the model that its header tells of"):
        read_model(path)


def test_heads_are_recorded_and_cut():
    model = make(separator=0)
    ids = torch.tensor([NAMES.encode("emma olivia")])
    with torch.no_grad(), mh.record(model, tokenizer=NAMES) as rec:
        logits = model(ids)
    assert [layer.name for layer in rec.layers] == ["blocks.0.attention", "blocks.1.attention"]
    assert rec.words[0][:6] == ["\n", "e", "m", "m", "a", "\n"]
    weights = rec.weights(0, 0)
    assert weights[6, :5].sum() == 0  # olivia does not see emma
    assert weights[6].sum() == pytest.approx(1)
    with torch.no_grad(), mh.cut(model, heads=[(0, 1)], links=mh.offset(-1)):
        assert not torch.allclose(model(ids), logits)


def test_an_alphabet_of_bytes():
    alphabet = Alphabet(None)
    ids = alphabet("é!")["input_ids"]
    assert ids == [0xC3, 0xA9, 0x21]
    assert alphabet.decode(ids) == "é!"
    assert mh.recording.words._text(alphabet, 0xC3) == "<C3>"
    assert alphabet.bos_token_id is None
    assert len(alphabet) == 256


def test_a_character_that_is_not_known():
    with pytest.raises(ValueError, match="knows the characters 'abc.*', and 'é' came"):
        NAMES("Zoé")
    assert NAMES("Zoe\tANN\n\n").keys() == {"input_ids"}
    assert NAMES.decode(NAMES.encode("Zoe\tANN\n\n")) == "\nzoe\nann"
