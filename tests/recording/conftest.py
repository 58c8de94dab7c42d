"""Settings that the tests of recordings share."""

import pytest
import torch
from architectures import SEEN, build, inputs

import multihead as mh


@pytest.fixture(autouse=True)
def _one_thread():
    """On tensors this small, threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
