"""What a recording must say, worked out in float64 from whole maps that a model gave itself."""

import torch


def check_maps(rec, layers, maps, atol=1e-5, rows=None):
    """Every weight and statistic of these layers against maps (batch, heads, query, key)."""
    assert len(layers) == len(maps)
    for layer, dense in zip(layers, maps, strict=True):
        assert (layer.batch, layer.heads, layer.queries, layer.keys) == dense.shape, layer.name
        for batch in range(layer.batch):
            chosen = slice(None) if rows is None else rows[batch]
            for head in range(layer.heads):
                ours = rec.weights(layer.index, head, batch=batch)[chosen]
                close(ours, dense[batch, head][chosen], atol, layer.name)
        if rows is None:
            check_statistics(layer, dense.double(), 20 * atol)


def check_statistics(layer, p, atol):
    first = torch.tensor([c.offset for c in layer.chunks for _ in range(c.rows)])
    within = torch.cat([torch.arange(c.rows) for c in layer.chunks])
    if layer.crosses:
        assert torch.equal(first + within, torch.arange(p.shape[2]))
    apart = ((first + within)[:, None] - torch.arange(p.shape[-1])).abs().double()
    expected = {
        "entropy": -torch.special.xlogy(p, p).sum(-1),
        "distance": (p * apart).sum(-1),
        "peak": p.amax(-1),
        "first": p[..., 0],
        "received": p.sum(2),
    }
    for name, value in expected.items():
        close(layer[name], value, atol, f"{layer.name} {name}")


def close(ours, theirs, atol, name=""):
    torch.testing.assert_close(
        ours.double(), theirs.double(), rtol=0, atol=atol, msg=lambda t: f"{name}: {t}"
    )
