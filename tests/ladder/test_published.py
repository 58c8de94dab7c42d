"""A seeded construction reproduces published numbers, and published checkpoints load.

The numbers are outputs that are printed in the notebook of chapter 3 of Sebastian Raschka, "Build a
Large Language Model (From Scratch)", Manning 2024: github.com/rasbt/LLMs-from-scratch,
ch03/01_main-chapter-code/ch03.ipynb, sections 3.5.3, 3.6.1 and 3.6.2.
"""

import pytest
import torch

from multihead import ladder

INPUTS = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)
BATCH = torch.stack([INPUTS, INPUTS])  # (2, 6, 3)

STACKED = [
    [-0.4519, 0.2216, 0.4772, 0.1063],
    [-0.5874, 0.0058, 0.5891, 0.3257],
    [-0.6300, -0.0632, 0.6202, 0.3860],
    [-0.5675, -0.0843, 0.5478, 0.3589],
    [-0.5526, -0.0981, 0.5321, 0.3428],
    [-0.5299, -0.1081, 0.5077, 0.3493],
]
ONE_HEAD = [row[:2] for row in STACKED]  # the seed draws the first head first
SPLIT = [
    [0.3190, 0.4858],
    [0.2943, 0.3897],
    [0.2856, 0.3593],
    [0.2693, 0.3873],
    [0.2639, 0.3928],
    [0.2575, 0.4028],
]

CASES = {
    "one_head": (lambda: ladder.CausalAttention(3, 2, 6, 0.0), ONE_HEAD),
    "stacked": (lambda: ladder.MultiHeadAttentionWrapper(3, 2, 6, 0.0, num_heads=2), STACKED),
    "split": (lambda: ladder.MultiHeadAttn(3, 2, 6, 0.0, num_heads=2), SPLIT),
    "fused": (lambda: ladder.FusedMultiHeadAttn(3, 2, 0.0, num_heads=2), SPLIT),
}


@pytest.mark.parametrize("case", CASES)
def test_a_seed_gives_the_published_numbers(case):
    build, published = CASES[case]
    torch.manual_seed(123)
    found = build()(BATCH)
    expected = torch.tensor(published).expand(2, -1, -1)
    torch.testing.assert_close(found, expected, rtol=0, atol=5.1e-5)  # printed with four decimals


QKV = {"W_query.weight": (8, 5), "W_key.weight": (8, 5), "W_value.weight": (8, 5)}
BIASES = {"W_query.bias": (8,), "W_key.bias": (8,), "W_value.bias": (8,)}
OUT = {"out_proj.weight": (8, 8), "out_proj.bias": (8,)}
MASK = {"mask": (7, 7)}


def published(shapes):
    """A checkpoint with these names and shapes, the mask as it was saved."""
    state = {name: torch.randn(shape) for name, shape in shapes.items()}
    return {
        name: torch.triu(torch.ones(7, 7), diagonal=1) if name.endswith("mask") else tensor
        for name, tensor in state.items()
    }


def beside(shapes, heads):
    return {f"heads.{h}.{name}": shape for h in range(heads) for name, shape in shapes.items()}


CHECKPOINTS = [
    (lambda: ladder.CausalAttention(5, 8, 7, 0.1), QKV | MASK),
    (lambda: ladder.CausalAttention(5, 8, 7, 0.1, qkv_bias=True), QKV | BIASES | MASK),
    (lambda: ladder.MultiHeadAttentionWrapper(5, 8, 7, 0.1, 3), beside(QKV | MASK, 3)),
    (lambda: ladder.MultiHeadAttn(5, 8, 7, 0.1, 2), QKV | OUT | MASK),
    (lambda: ladder.MultiHeadAttn(5, 8, 7, 0.1, 2, qkv_bias=True), QKV | BIASES | OUT | MASK),
    (lambda: ladder.FusedMultiHeadAttn(5, 8, 0.1, 2), QKV | OUT),
]


@pytest.mark.parametrize(("build", "shapes"), CHECKPOINTS)
def test_a_published_checkpoint_loads(build, shapes):
    module, state = build(), published(shapes)
    module.load_state_dict(state, strict=True)
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == shapes
    assert all(torch.equal(t, state[name]) for name, t in module.state_dict().items())


def test_the_parameters_come_in_the_published_order():
    split = ladder.MultiHeadAttn(5, 8, 7, 0.1, 2, qkv_bias=True)
    layers = [name.partition(".")[0] for name, _ in split.named_parameters()]
    assert list(dict.fromkeys(layers)) == ["W_query", "W_key", "W_value", "out_proj"]
    full = ladder.FullMultiHeadAttention(8, 2)
    layers = [name.partition(".")[0] for name, _ in full.named_parameters()]
    assert layers == ["W_q", "W_q", "W_k", "W_k", "W_v", "W_v", "W_o", "W_o"]


def test_the_fused_rung_leaves_the_mask_behind():
    split, fused = ladder.MultiHeadAttn(5, 8, 7, 0.0, 2), ladder.FusedMultiHeadAttn(5, 8, 0.0, 2)
    missing, unexpected = fused.load_state_dict(split.state_dict(), strict=False)
    assert (missing, unexpected) == ([], ["mask"])
    x = torch.randn(2, 7, 5)
    torch.testing.assert_close(fused(x), split(x))


def test_stacked_heads_widen():
    stacked = ladder.MultiHeadedAttentionWrapper(3, 2, 6, 0.0, num_heads=2)
    assert stacked(BATCH).shape == (2, 6, 4)
    assert ladder.MultiHeadedAttentionWrapper is ladder.MultiHeadAttentionWrapper
