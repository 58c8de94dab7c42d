"""Settings that the tests of recordings share."""

import pytest
import torch
from architectures import SEEN, build, inputs
from one_thread import one_thread

import multihead as mh

__all__ = ["one_thread"]


@pytest.fixture(scope="module")
def recording():
    model, given = build(SEEN["mistral"]), inputs("decoder")
    tokenizer = type("Words", (), {"decode": lambda self, ids: f"w{ids[0]}"})()
    stats = ("entropy", "received", mh.top(2), mh.mass(mh.prefix(1), name="first"))
    with torch.no_grad(), mh.record(model, stats=stats, tokenizer=tokenizer) as rec:
        model.generate(**given, max_new_tokens=5, do_sample=False)
        model(given["input_ids"][:, :7])
    rec.about["note"] = "a test"
    return rec


@pytest.fixture
def saved(recording, tmp_path):
    folder = tmp_path / "run.heads"
    recording.save(folder)
    return folder
