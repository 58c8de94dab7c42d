"""Small models in training, one a way to call attention, and a step of each on its batch."""

import torch
from architectures import SEEN, build, inputs
from hand_written import Block, texts
from torch import nn

import multihead as mh

TOKENS, WIDTH = 13, 12


class Packed(nn.Module):
    """Our layer over packed documents, causal inside of each."""

    def __init__(self, documents=None, layers=2, dropout=0.0):
        super().__init__()
        mask = mh.causal() if documents is None else mh.causal() & mh.documents(documents)
        self.blocks = nn.ModuleList(
            mh.MultiHeadAttention(WIDTH, 3, mask=mask, dropout=dropout) for _ in range(layers)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class Biased(nn.Module):
    """SDPA with numbers added to its scores."""

    def __init__(self, bias):
        super().__init__()
        self.qkv, self.bias = nn.Linear(WIDTH, 3 * WIDTH), bias

    def parts(self, x):
        return [t.unflatten(-1, (3, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(*self.parts(x), attn_mask=self.bias)


def vectors(batch=2, tokens=TOKENS, seed=0):
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def _transformers(family):
    model = build(SEEN[family])
    if hasattr(model.config, "attn_pdrop"):
        model.config.attn_pdrop = 0.1
    return model.train(), inputs("decoder")


def _encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 3, 16, dropout=0.2, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(), {"src": vectors()}


def _sequential(how):
    return nn.Sequential(Block(how), Block(how)), {"input": texts()}


KINDS = {
    "llama": lambda: _transformers("llama"),
    "gpt2": lambda: _transformers("gpt2"),
    "encoder": _encoder,
    "ours": lambda: (Packed(dropout=0.1).train(), {"x": vectors()}),
    "packed": lambda: (Packed(torch.arange(TOKENS) // 5).train(), {"x": vectors()}),
    "sdpa": lambda: _sequential(None),
    "checkpoint": lambda: _sequential(False),
    "reentrant": lambda: _sequential(True),
}


def watched(kind, seed=0):
    torch.manual_seed(seed)
    model, given = KINDS[kind]()
    if kind in ("checkpoint", "reentrant"):
        given["input"].requires_grad_()  # else a reentrant checkpoint sees nothing to do
    return model, given


def loss_of(model, given):
    out = model(**given)
    out = out if isinstance(out, torch.Tensor) else out[0]
    return out.float().square().mean()


def train(model, given, steps, watch=None, micro=1):
    """Plain steps with AdamW; every loss, and the gradients of the last step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, records = [], []
    for _ in range(steps):
        optimiser.zero_grad()
        for _ in range(micro):
            loss = loss_of(model, given)
            (loss / micro).backward()
            losses.append(loss.item())
        optimiser.step()
        if watch is not None:
            records.append(watch.step(loss))
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return losses, grads, [record for record in records if record is not None]


def sample(model, given, **options):
    """The record of one step, looked at in training mode."""
    with mh.monitor(model, every=1, **options) as watch:
        loss_of(model, given).backward()
        return watch.step()


def column(record, layer, key):
    return torch.tensor(record["layers"][layer][key])


def close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found, expected.float(), atol=tolerance, rtol=1e-4)
