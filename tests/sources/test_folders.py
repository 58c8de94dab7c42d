"""Folders and ids: safetensors alone, and a reason for what is refused."""

import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from tiny_wheel import cut, logits, never, scribble
from tokenizers import Tokenizer, models

from multihead import record, sources
from multihead.sources import about, load_model, reading


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A random model and a tokenizer, as save_pretrained writes them."""
    folder = tmp_path_factory.mktemp("saved")
    config = transformers.LlamaConfig(
        vocab_size=41, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(41)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", [None, 3, b"smollm2", True])
def test_what_is_no_name_at_all(name):
    with pytest.raises(ValueError, match="a model is given by its name or its folder, but .* came"):
        load_model(name)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Gemma2", {"head_dim": 8, "attn_logit_softcapping": 5.0, "sliding_window": 4}),
        ("GptOss", {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}),
    ],
)
def test_a_model_without_sdpa_is_read_and_seen(saved, tmp_path, kind, more):
    """transformers has eager attention alone for a softcap or sinks."""
    folder = copy(saved, tmp_path / "eager", "model.safetensors", "config.json")
    sizes = {"vocab_size": 41, "hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(**sizes, **heads, **more)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    told = []
    model, _ = load_model(folder, progress=lambda message, _: told.append(message))
    assert [m for m in told if "eager attention, as transformers has no SDPA for it" in m] == told[
        1:
    ]
    with torch.no_grad(), record(model) as rec:
        output = model(torch.arange(12)[None], output_attentions=True)
    for layer, expected in enumerate(output.attentions):
        for head in range(3):
            torch.testing.assert_close(rec.weights(layer, head), expected[0, head])


def copy(saved: Path, to: Path, *but: str) -> Path:
    to.mkdir()
    for path in saved.iterdir():
        if path.name not in but:
            (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_folder(saved, capfd):
    model, tokenizer = load_model(saved)
    expected = transformers.LlamaForCausalLM.from_pretrained(saved)
    capfd.readouterr()
    assert torch.equal(logits(model), logits(expected.eval()))
    assert not model.training
    assert tokenizer("w7")["input_ids"] == [7]
    assert about(model) == str(saved)
    half, _ = load_model(str(saved), dtype=torch.bfloat16, attn_implementation="eager")
    assert (half.dtype, half.config._attn_implementation) == (torch.bfloat16, "eager")
    assert capfd.readouterr().err == ""  # no bars over a second's work
    assert transformers.utils.logging.is_progress_bar_enabled()


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("sprung",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_never_read(saved, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = copy(saved, tmp_path / "pickled", "model.safetensors")
    (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=rf"pickles alone \({name}\)") as error:
        load_model(folder)
    assert "save_pretrained" in str(error.value)
    assert not (tmp_path / "sprung").exists()


def without_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if k != "lm_head.weight"},
        folder / "model.safetensors",
        {"format": "pt"},
    )


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "and has no weights"),
        (lambda folder: cut(folder / "model.safetensors"), "could not be loaded"),
        (lambda folder: scribble(folder / "model.safetensors"), "could not be loaded"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "nope"}'), "`nope`"),
        (lambda folder: (folder / "config.json").write_text("{"), "could not be loaded"),
        (
            lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
            "must hold the tokenizer's files .*, and has none",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "could not be loaded"),
        (without_head, "no weights for the part lm_head.weight of LlamaForCausalLM: it would"),
    ],
    ids=[
        "config",
        "weights",
        "cut",
        "scribbled",
        "kind",
        "json",
        "tokenizer",
        "tokenizer.json",
        "head",
    ],
)
def test_a_folder_that_is_not_complete(saved, tmp_path, hurt, said):
    folder = copy(saved, tmp_path / "hurt")
    hurt(folder)
    with pytest.raises(ValueError, match=said) as error:
        load_model(folder)
    assert str(folder) in str(error.value)
    assert len(str(error.value).splitlines()) > 1  # what to do, too
    assert error.value.__cause__ is None


def test_an_attention_that_is_not_there(saved):
    with pytest.raises(ValueError, match="transformers said:.*nonsense"):
        load_model(saved, attn_implementation="nonsense")


def test_a_wrong_name_hears_of_the_right_ones():
    with pytest.raises(ValueError, match="Did you mean 'names'") as error:
        load_model("namse")
    assert "'smollm2' (SmolLM2-135M-Instruct, 4-bit quantised, Apache-2.0)" in str(error.value)
    assert "'names' (A small GPT of first names, Apache-2.0)" in str(error.value)


@pytest.mark.parametrize(
    "name", ["", "no/such/folder", "./nothing", "/nothing", "a b", "../x", "https://a.b/c"]
)
def test_what_can_be_no_model(name):
    with pytest.raises(ValueError, match="not a name known here, nor a folder") as error:
        load_model(name)
    assert "owner/name, as in" in str(error.value)


@pytest.mark.parametrize("name", ["smolm2", "SmolLM2", "smollm-2"])
def test_a_name_that_is_nearly_ours_is_answered_without_the_hub(name, monkeypatch):
    monkeypatch.setattr(sources, "read", never)
    with pytest.raises(ValueError, match="nor a folder.\n  Did you mean 'smollm2'?"):
        load_model(name)


def test_a_hub_that_does_not_answer_is_asked_once_and_quietly(tmp_path, monkeypatch, capfd):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: it refuses
        monkeypatch.setattr(
            huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}"
        )
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(time, "sleep", never)  # what its retries do
        with pytest.raises(ValueError, match="the hub cannot be reached"):
            load_model("nosuchmodel")
    assert capfd.readouterr().err == ""


def test_nothing_of_transformers_own_words_is_shown(saved, tmp_path, capfd):
    folder = copy(saved, tmp_path / "hurt")
    without_head(folder)
    level = logging.getLogger("transformers").level
    with pytest.raises(ValueError, match="no weights for"):
        load_model(folder)
    assert capfd.readouterr() == ("", "")  # no table of what is missing
    assert logging.getLogger("transformers").level == level


@pytest.mark.parametrize("name", ["gpt2", "owner/name"])
def test_the_hub_is_out_of_reach(name, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="the hub cannot be reached or is switched off") as error:
        load_model(name)
    assert "Go online (with HF_HUB_OFFLINE unset)" in str(error.value)
    assert "Did you mean" not in str(error.value)
    assert error.value.__suppress_context__


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (errors.RepositoryNotFoundError, "nor a model that the hub shows you"),
        (errors.GatedRepoError, "hf auth login"),
        (errors.LocalEntryNotFoundError, "the hub cannot be reached"),
    ],
)
def test_what_the_hub_answers(monkeypatch, kind, said):
    def answer(*_, **__):
        raise OSError("long words of theirs") from kind.__new__(kind)

    monkeypatch.setattr(reading, "_hub_answers", lambda: True)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", answer)
    with pytest.raises(ValueError, match=said):
        load_model("owner/name")


def test_only_safetensors_and_no_code_of_others(monkeypatch, saved):
    asked = []
    for auto in (
        transformers.AutoConfig,
        transformers.AutoTokenizer,
        transformers.AutoModelForCausalLM,
    ):
        real = auto.from_pretrained

        def spy(*args, real=real, **options):
            asked.append(options)
            return real(*args, **options)

        monkeypatch.setattr(auto, "from_pretrained", spy)
    load_model(saved)
    assert len(asked) >= 3  # transformers asks itself, too
    assert not any(options.get("trust_remote_code") for options in asked)
    assert sum(options.get("trust_remote_code") is False for options in asked) >= 3
    (weights,) = (options for options in asked if "output_loading_info" in options)
    assert weights["use_safetensors"] is True


def test_import_loads_nothing_heavier_than_torch():
    code = "import sys, torch; old = set(sys.modules); import multihead.sources; print(*set(sys.modules) - old)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    added = {name.partition(".")[0] for name in run.stdout.split()}
    assert added - set(sys.stdlib_module_names) <= {
        "multihead",
        "numpy",
        "jaxtyping",
        "wadler_lindig",
    }
