"""Maps of several tiles, who may look at whom in each, and what the page must be sent of them."""

import functools
import math

import torch
from architectures import SEEN, build
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh
from multihead.views.report import STATS

LENGTHS = (600, 401)  # of a padded batch
WINDOW, STEPS = 300, 5


class Asks(torch.nn.Module):
    def forward(self, q, k, v):
        return sdpa(q, k, v, is_causal=True)


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def asked(q, k, **options):
    model = Asks()
    with mh.record(model, **{"stats": STATS, **options}) as rec:
        model(q, k, k)
    return rec


def layer_of(mask, *given):
    torch.manual_seed(1)
    attn = mh.MultiHeadAttention(12, 2, mask=mask)
    with torch.no_grad():
        for weight in attn.parameters():
            weight.mul_(2)  # so that heads look somewhere
        with mh.record(attn, stats=STATS) as rec:
            attn(*given)
    return rec


def generated():
    model = build(SEEN["llama"], max_position_embeddings=400, num_hidden_layers=1)
    ids = torch.randint(3, 37, (1, 300), generator=torch.Generator().manual_seed(4))
    with torch.no_grad(), mh.record(model, stats=STATS) as rec:
        model.generate(ids, max_new_tokens=STEPS + 1, do_sample=False)
    return rec


def places(queries, keys):
    return torch.arange(queries)[:, None], torch.arange(keys)[None]


# A recording, the text of its batch, and who may look at whom.
def causal():
    i, j = places(517, 517)
    return layer_of(mh.causal(), made(1, 517, 12)), 0, j <= i


def window():
    i, j = places(1100, 1100)
    rule = mh.causal() & mh.window(WINDOW)
    return layer_of(rule, made(1, 1100, 12)), 0, (j <= i) & (i - j < WINDOW)


def padded():
    i, j = places(600, 600)
    rule = mh.causal() & mh.padding(torch.tensor(LENGTHS))
    return layer_of(rule, made(2, 600, 12)), 1, (j <= i) & (j < LENGTHS[1])


def crossing():
    rec = layer_of(None, made(1, 530, 12), made(1, 270, 12, seed=1))
    return rec, 0, torch.ones(530, 270, dtype=torch.bool)


def steps():
    rec = generated()
    assert len(rec.layers[0].chunks) == 2
    i, j = places(300 + STEPS, rec.layers[0].keys)
    return rec, 0, j <= i


CASES = {f.__name__: f for f in (causal, window, padded, crossing, steps)}


@functools.cache
def case(name):
    return CASES[name]()


def pooled(plane, factor, join):
    """One number of each factor × factor weights; the last cells have fewer."""
    more = [-n % factor for n in plane.shape]
    cells = (
        pad(plane, (0, more[1], 0, more[0])).unflatten(1, (-1, factor)).unflatten(0, (-1, factor))
    )
    return join(cells, (1, 3))


def by_hand(rec, which, allowed, factor, pool):
    """A level of the map, in float64, from the weights and the mask alone."""
    by = "norm" if which.by == "norm" else "weight"
    p = rec.weights(which.layer, which.head, by=by, batch=which.batch).double()
    alike = 1 / allowed.sum(1, keepdim=True).clamp(min=1).double()  # of a head that sees all alike
    allowed = allowed.clone()
    allowed[:, list(which.hidden)] = False
    p = p * allowed
    over = (allowed * alike) if which.by == "uniform" else allowed.double()
    total, over = (pooled(plane, factor, torch.sum) for plane in (p, over))
    if pool == "largest":
        value = pooled(p / alike if which.by == "uniform" else p, factor, torch.amax)
    elif pool == "sum" and which.by != "uniform":
        value = total
    else:
        value = total / over
    return value.masked_fill(over == 0, math.nan)
