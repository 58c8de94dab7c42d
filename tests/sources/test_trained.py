"""Models of our own: the one that comes with the package, and the folder of a run."""

import json
import subprocess
import sys

import pytest
import torch

import multihead as mh
from multihead.sources import about, is_trained
from multihead.sources.trained import SHIPPED
from multihead.training import Settings, Trainer
from multihead.training.bigram import names_bigram
from multihead.training.names import pack, part
from multihead.views.learnt import loss_without


@pytest.fixture(scope="module")
def loaded():
    return mh.load_model("names")


def test_names_needs_no_network_and_no_cache(tmp_path):
    """Nor transformers: it is read from the package alone."""
    code = """
import socket, sys
def no(*_, **__): raise OSError("no network")
socket.socket.connect = no
sys.modules["transformers"] = None
import multihead as mh
model, tokenizer = mh.load_model("names")
print(tuple(model(tokenizer("emma", return_tensors="pt")["input_ids"]).shape))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))},
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "(1, 5, 27)\n"), run.stderr
    assert not [*tmp_path.iterdir()]


def test_it_is_small_and_says_what_made_it():
    assert len(SHIPPED.read_bytes()) < 700_000
    told = json.loads(SHIPPED.with_suffix(".json").read_text())
    assert told["command"].startswith("multihead train names")
    assert told["loss"]["test"] < told["bigram"]["test"]
    assert about("names") == "A small GPT of first names, Apache-2.0"


def test_its_loss_is_what_its_figures_say(loaded):
    model, _ = loaded
    told = json.loads(SHIPPED.with_suffix(".json").read_text())
    ids, targets = pack(part("test"), 64)
    each, count = loss_without(model, (ids, targets)), (targets >= 0).sum(1)
    loss = float((each * count).sum() / count.sum())
    assert loss == pytest.approx(told["loss"]["test"], abs=1e-4)
    assert loss < names_bigram("test") - 0.4


def test_it_quacks_like_the_others(loaded):
    model, tokenizer = loaded
    inputs = tokenizer("Emma Olivia", return_tensors="pt")
    with torch.no_grad(), mh.record(model, tokenizer=tokenizer) as rec:
        model(**inputs)
    assert rec.about["model"] == "A small GPT of first names, Apache-2.0"
    assert rec.about["bos"]
    assert rec.loss.shape == inputs["input_ids"].shape
    assert model.config.get_text_config().vocab_size == 27
    assert not model.training


def test_other_precisions(loaded):
    model, tokenizer = mh.load_model("names", dtype=torch.float64)
    ids = tokenizer("emma", return_tensors="pt")["input_ids"]
    assert model(ids).dtype == torch.float64
    assert torch.allclose(model(ids).float(), loaded[0](ids), atol=1e-5)


def test_it_attends_in_one_way():
    with pytest.raises(ValueError, match="attn_implementation='eager' came; leave it out"):
        mh.load_model("names", attn_implementation="eager")


def test_the_folder_of_a_run(tmp_path):
    folder = tmp_path / "mine"
    assert not is_trained(str(folder))
    settings = Settings(d_model=8, num_heads=2, num_layers=1, rows=4, steps=2, device="cpu")
    Trainer(settings, folder).train()
    model, tokenizer = mh.load_model(folder)
    assert len(model.blocks) == 1
    assert model.config.about == "a GPT of 1,224 parameters, of names"
    assert tokenizer("ab")["input_ids"] == [0, 1, 2]


def test_a_run_that_is_damaged(tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        mh.load_model(tmp_path)
