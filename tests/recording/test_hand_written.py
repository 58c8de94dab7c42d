"""Models that call SDPA or `attend` themselves, in every shape that those take."""

import pytest
import torch
from dense_maps import check_maps, close
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh

TOKENS, WIDTH = 7, 12


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Block(nn.Module):
    """One layer written by hand, by a function that was imported before anyone looked."""

    def __init__(self, heads=3, kv_heads=3, lead=0, **options):
        super().__init__()
        self.heads, self.kv_heads, self.lead, self.options = heads, kv_heads, lead, options
        dim = WIDTH // heads
        self.qkv = nn.Linear(WIDTH, (heads + 2 * kv_heads) * dim)
        self.out = nn.Linear(WIDTH, WIDTH)

    def project(self, x):
        dim = WIDTH // self.heads
        sizes = [n * dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        return [t.unflatten(-1, (-1, dim)).transpose(-2, -3) for t in self.qkv(x).split(sizes, -1)]

    def forward(self, x):
        return x + self.out(sdpa(*self.project(x), **self.options).transpose(-2, -3).flatten(-2))


def stack(*blocks, seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(*blocks)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def own_maps(model, x):
    """Weights by the formula, in float64."""
    maps = []
    for block in model:
        q, k, _ = (t.detach().double() for t in block.project(x))
        k = k.repeat_interleave(block.heads // block.kv_heads, dim=-3)
        scores = q @ k.mT * block.options.get("scale", q.shape[-1] ** -0.5)
        mask = block.options.get("attn_mask")
        if block.options.get("is_causal"):
            mask = torch.ones(scores.shape[-2:]).tril().bool()
        if mask is not None:
            scores = (
                scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            )
        p = scores.softmax(-1).nan_to_num(0.0)
        maps.append(p[:, None] if p.ndim == 3 else p.flatten(0, p.ndim - 4))
        x = block(x)
    return maps


MASK = torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)) > 0.3
MASK[:, 0] = True
EMPTY = MASK.clone()
EMPTY[2] = False
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "bits": {"attn_mask": MASK},
    "a row that sees nothing": {"attn_mask": EMPTY},
    "numbers": {"attn_mask": made(TOKENS, TOKENS)},
    "one number a key": {"attn_mask": made(1, TOKENS)},
    "scale": {"scale": 0.9},
    "bits by head": {
        "attn_mask": (made(3, TOKENS, TOKENS) > 0).logical_or(torch.eye(TOKENS).bool())
    },
}


@pytest.mark.parametrize("lead", [(), (2,), (2, 5)], ids=["3-D", "4-D", "5-D"])
@pytest.mark.parametrize("name", CASES)
def test_sdpa_in_every_shape(name, lead):
    model, x = stack(Block(**CASES[name]), Block(**CASES[name])), made(*lead, TOKENS, WIDTH)
    before = model(x)
    with mh.record(model) as rec:
        during = model(x)
    close(during, before, 5e-5)
    assert during.shape == before.shape
    check_maps(rec, rec.layers, own_maps(model, x))
    assert [layer.name for layer in rec.layers] == ["0", "1"]


@pytest.mark.parametrize("lead", [(), (2,), (2, 5)], ids=["3-D", "4-D", "5-D"])
def test_two_axes_are_one_head(lead):
    """SDPA takes (batch, tokens, dim) too: what stands before the last two is no head there."""
    x = made(*lead, TOKENS, WIDTH)

    class One(nn.Module):
        def forward(self, x):
            return sdpa(x, x, x)

    model = One()
    with mh.record(model) as rec:
        close(model(x), sdpa(x, x, x), 1e-6)
    p = (x @ x.mT * WIDTH**-0.5).softmax(-1)
    found = [
        rec.weights(0, head, batch=batch)
        for batch in range(rec[0].batch)
        for head in range(rec[0].heads)
    ]
    close(torch.stack(found).view(p.shape), p, 1e-6)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_grouped_heads(kv_heads):
    model = stack(Block(6, kv_heads, enable_gqa=True, is_causal=True))
    x = made(2, TOKENS, WIDTH)
    with mh.record(model) as rec:
        during = model(x)
    close(during, model(x), 1e-5)
    assert (rec[0].heads, rec[0].kv_heads) == (6, kv_heads)
    check_maps(rec, rec.layers, own_maps(model, x))


def test_all_arguments_by_name():
    class Named(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(
                query=x, key=x, value=x, attn_mask=None, dropout_p=0.0, is_causal=True, scale=0.5
            )

    x, model = made(2, 3, TOKENS, 4), Named()
    with mh.record(model) as rec:
        close(model(x), Named()(x), 1e-6)
    assert (rec[0].chunks[0].mask, rec[0].chunks[0].scale) == ("causal()", 0.5)


def test_our_own_layer_with_its_cache():
    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(WIDTH, 6, num_kv_heads=3, rope=mh.rope(100), mask=mh.causal())
    x = made(2, TOKENS, WIDTH)
    with torch.no_grad(), mh.record(layer) as rec:
        whole = layer(x)
    with torch.no_grad(), mh.record(layer) as steps:
        cache = layer.new_cache(2, TOKENS)
        parts = [layer(part, cache=cache) for part in x.split([3, 1, 1, 1, 1], 1)]
    close(torch.cat(parts, 1), whole, 1e-5)
    for head in range(6):
        close(steps.weights(0, head, batch=1), rec.weights(0, head, batch=1), 1e-6)
    for name in rec[0].statistics:
        close(steps[0][name], rec[0][name], 1e-5)
    assert len(steps[0].chunks) == 2


def test_our_own_layer_with_a_cache_that_slides():
    torch.manual_seed(0)
    layer = mh.MultiHeadAttention(WIDTH, 3, mask=mh.causal() & mh.window(3))
    x = made(2, 17, WIDTH)
    with torch.no_grad(), mh.record(layer) as rec:
        whole = layer(x)
    with torch.no_grad(), mh.record(layer) as steps:
        cache = layer.new_cache(2, 17)
        parts = [layer(part, cache=cache) for part in x.split([5, 2] + [1] * 10, 1)]
    close(torch.cat(parts, 1), whole, 1e-5)
    assert (steps[0].queries, steps[0].keys) == (17, 17)
    for head in range(3):
        close(steps.weights(0, head, batch=1), rec.weights(0, head, batch=1), 1e-6)
    for name in rec[0].statistics:
        close(steps[0][name], rec[0][name], 1e-5)


def test_everything_that_attend_takes():
    class Rich(nn.Module):
        def forward(self, q, k):
            given = {"mask": mh.causal() & mh.window(4), "softcap": 2.0, "sinks": made(6, seed=4)}
            return mh.attend(
                q, k, k, **given, bias=mh.alibi(6), scale=0.7, offset=torch.tensor([1, 2])
            )

    q, k, model = made(2, 6, 5, 4), made(2, 3, TOKENS, 4, seed=1), Rich()
    with mh.record(model) as rec:
        close(model(q, k), Rich()(q, k), 1e-6)
    given = {"mask": mh.causal() & mh.window(4), "softcap": 2.0, "sinks": made(6, seed=4),
             "bias": mh.alibi(6), "scale": 0.7, "offset": torch.tensor([1, 2])}  # fmt: skip
    dense = mh.weights(q, k, **given)
    for batch in range(2):
        for head in range(6):
            close(rec.weights(0, head, batch=batch), dense[batch, head], 1e-6)


def test_the_same_bits_from_two_places():
    """What is a rule for rows that stand at the start is none for rows that stand elsewhere."""
    bits = torch.ones(5, TOKENS).tril().bool()

    class Twice(nn.Module):
        def forward(self, q, k):
            return [mh.attend(q, k, k, mask=bits, offset=place) for place in (0, 2)]

    q, k, model = made(2, 3, 5, 4), made(2, 3, TOKENS, 4, seed=1), Twice()
    with mh.record(model) as rec:
        model(q, k)
    dense = mh.weights(q, k, mask=bits)
    for layer in (0, 1):
        close(rec.weights(layer, 2, batch=1), dense[1, 2], 1e-6)
    assert rec[0].chunks[0].mask == "causal()"


PROJECTIONS = {
    "@": lambda x, out: x @ out.weight.T + out.bias,
    "matmul": lambda x, out: torch.matmul(x, out.weight.T) + out.bias,
    "x.matmul": lambda x, out: x.matmul(out.weight.T) + out.bias,
    "addmm": lambda x, out: torch.addmm(out.bias, x.flatten(0, 1), out.weight.T).view_as(x),
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_an_output_projection_in_other_words(name):
    class Worded(Block):
        def forward(self, x):
            y = sdpa(*self.project(x), **self.options).transpose(-2, -3).flatten(-2)
            return x + PROJECTIONS[name](y, self.out)

    x, norms = made(2, TOKENS, WIDTH), []
    for kind in (Block, Worded):
        model = stack(kind(is_causal=True))
        with torch.no_grad(), mh.record(model) as rec:
            model(x)
        norms.append(rec.layers[0].output_norm())
    close(norms[1], norms[0], 1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_a_product_of_what_looks_like_the_first_row_is_no_output_projection(causal):
    """In causal attention over the values as they came, the first row is the input's."""

    class Gated(Block):
        def __init__(self):
            super().__init__(is_causal=causal)
            self.gate = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            q, k, _ = self.project(x)
            v = x.unflatten(-1, (q.shape[1], -1)).transpose(1, 2)
            y = sdpa(q, k, v, **self.options).transpose(1, 2).flatten(2)
            gate = self.gate(x)
            return self.out(y) * gate

    model, x = stack(Gated()), made(2, TOKENS, WIDTH)
    with torch.no_grad(), mh.record(model) as rec:
        model(x)
    first = next(part for part in model.modules() if isinstance(part, Gated))
    heads = rec[0].heads
    v = x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (batch, heads, token, dim)
    weight = first.out.weight.T.unflatten(0, (heads, -1))
    close(rec[0].output_norm(), (v @ weight).norm(dim=-1), 1e-4)
