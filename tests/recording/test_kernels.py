"""What recording does on a GPU in one pass; without one under Triton's interpreter."""

import pytest
import torch
from kernels import DEVICE

pytest.importorskip("triton")
from multihead.recording.kernels import copies, nats, norms


@pytest.mark.parametrize("words", [7, 4096, 5000])
def test_losses_of_rows(words):
    torch.manual_seed(0)
    logits = (20 * torch.randn(1, 9, words, device=DEVICE)).half()[0]
    targets = torch.randint(0, words, (9,), device=DEVICE)
    expected = torch.nn.functional.cross_entropy(logits.double(), targets, reduction="none")
    torch.testing.assert_close(nats(logits, targets).double(), expected, rtol=1e-6, atol=1e-5)
    assert nats(logits[:0], targets[:0]).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("dim", "group"), [(16, 1), (13, 3), (64, 2), (128, 1)])
def test_norms_of_what_a_key_moves(dim, group, dtype):
    if dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter multiplies no bfloat16")
    torch.manual_seed(0)
    value = torch.randn(2, 2, 70, dim, device=DEVICE).to(dtype)
    weight = torch.randn(31, 2 * group * dim, device=DEVICE).T  # as a Linear layer keeps it
    moved = value.double().repeat_interleave(group, 1) @ weight.double().unflatten(0, (-1, dim))
    for laid in (weight, weight.contiguous()):
        found = norms(value, laid)
        torch.testing.assert_close(found.double(), moved.norm(dim=-1), rtol=2e-6, atol=1e-5)
    assert norms(value.new_zeros(1, 1, 3, 200), torch.zeros(200, 200)) is None


def test_norms_of_more_keys_than_one_program_takes():
    torch.manual_seed(0)
    value = torch.randn(3, 43, 150, 16, device=DEVICE).half()
    weight = torch.randn(43 * 16, 70, device=DEVICE).half()
    moved = value.double() @ weight.double().unflatten(0, (43, 16))
    found = norms(value, weight)
    torch.testing.assert_close(found.double(), moved.norm(dim=-1), rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 70, 700])
def test_copies_and_norms_of_values(tokens, dtype):
    torch.manual_seed(0)
    drawn = torch.randn(2, tokens, 12, 24, device=DEVICE).to(dtype).transpose(1, 2)
    query, key, value = drawn[:, :8].clone(), drawn[:, 8:10].contiguous(), drawn[:, 10:]
    found = copies(query, key, value)
    assert found is not None
    for one, copy in zip((query, key), found[:2], strict=True):
        assert torch.equal(one, copy)
        assert one.stride() == copy.stride()
        assert one.data_ptr() != copy.data_ptr()
    expected = value.double().norm(dim=-1)
    torch.testing.assert_close(found[2].double(), expected, rtol=1e-6, atol=1e-6)


def test_copies_of_what_has_gaps_are_left_to_others():
    wide = torch.zeros(1, 4, 6, 8, device=DEVICE)
    assert copies(wide[:, :2], wide, wide) is not None
    assert copies(wide[..., ::2], wide, wide) is None
    assert copies(wide, wide[:, :, ::2], wide) is None
    assert copies(wide, wide.expand(2, -1, -1, -1), wide) is None
    assert copies(wide, wide, wide.mT) is None
