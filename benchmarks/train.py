"""Training on our layer, beside the same model on a hand-written layer and on PyTorch's own.

    python benchmarks/train.py             a few minutes; writes results/train.json
    python benchmarks/train.py --quick     a small model, writes nothing

CPU, float32: `training.GPT` of 4 layers, 8 heads of 32, 256 tokens, batch 8, learned positions;
forward, backward and AdamW's step, all three models in turns, medians. Only the attention differs;
their losses on one batch agree, which is checked first. What the monitor costs is measured in
benchmarks/monitor.py.
"""

from __future__ import annotations

import argparse

import torch
from layer import HandWritten, TorchLayer
from measure import medians, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from multihead.training.gpt import GPT, GPTConfig

VOCABULARY = 256


class Given(nn.Module):
    """A layer in the place of ours: causal, as it is written; it takes no mask and no cache."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *, mask: None, cache: None) -> Tensor:
        assert mask is None
        assert cache is None
        return self.inner(x)


def handwritten(ours: nn.Module, config: GPTConfig) -> nn.Module:
    theirs = HandWritten(config.d_model, config.num_heads)
    theirs.qkv.bias = theirs.out.bias = None
    with torch.no_grad():
        theirs.qkv.weight.copy_(ours.qkv.weight)
        theirs.out.weight.copy_(ours.out.weight)
    return theirs


def torch_layer(ours: nn.Module, config: GPTConfig) -> nn.Module:
    theirs = TorchLayer(config.d_model, config.num_heads, config.context, weights=False)
    theirs.inner = nn.MultiheadAttention(
        config.d_model, config.num_heads, bias=False, batch_first=True
    )
    with torch.no_grad():
        theirs.inner.in_proj_weight.copy_(ours.qkv.weight)
        theirs.inner.out_proj.weight.copy_(ours.out.weight)
    return theirs


def models(config: GPTConfig) -> dict[str, GPT]:
    """The same weights three times, in three attentions."""
    made = {}
    others = {"SDPA by hand": handwritten, "nn.MultiheadAttention": torch_layer}
    for name, make in {"ours": None, **others}.items():
        torch.manual_seed(0)
        model = GPT(config)
        for block in model.blocks if make is not None else ():
            block.attention = Given(make(block.attention, config))
        made[name] = model
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(2)
    layers, dims, tokens, batch = (2, 64, 64, 4) if quick else (4, 256, 256, 8)
    config = GPTConfig(VOCABULARY, context=tokens, d_model=dims, num_heads=8, num_layers=layers)
    ids = torch.randint(VOCABULARY, (batch, tokens + 1))
    steps, losses = {}, {}
    for name, model in models(config).items():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(model: GPT = model, optimizer: torch.optim.Optimizer = optimizer) -> float:
            loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.item()

        losses[name] = [step() for _ in range(3)]
        steps[name] = step
    for name, told in losses.items():
        same = torch.allclose(torch.tensor(told), torch.tensor(losses["ours"]), atol=1e-3)
        assert same, f"{name} is another model: {told}, ours {losses['ours']}"
    found = medians(steps, seconds=5 if quick else 120)
    speeds = {name: batch * tokens / seconds for name, seconds in found.items()}
    for name, speed in speeds.items():
        print(f"{name:<24} {speed:9,.0f} tokens/s   ours is {speeds['ours'] / speed:.3f} of it")
    if not quick:
        shape = {"layers": layers, "dims": dims, "heads": 8, "tokens": tokens, "batch": batch}
        save("train", {"shape": shape, "tokens_per_second": speeds})


if __name__ == "__main__":
    main()
