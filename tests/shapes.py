"""Run the doors with every annotation checked: shapes, dtypes and types, at run time.

A script of its own, started by test_house.py: the hook must be there before multihead is imported.
"""

from jaxtyping import install_import_hook

with install_import_hook("multihead", "tower.check"):
    import multihead as mh

import torch
import zoo

for mask in (None, *zoo.every_mask(2, 15, 7, 11).values()):
    for backend in ("dense", "tiled", "sdpa"):
        problem = zoo.ask(*zoo.tensors(), mask=mask, sinks=torch.zeros(15))
        if mh.attention.BACKENDS[backend].refuses(problem) is None:
            leaves = [t.requires_grad_() for t in zoo.tensors()]
            out = mh.attend(*leaves, mask=mask, sinks=torch.zeros(15), backend=backend)
            out.sum().backward()
    if mask is not None:
        mask.draw(7, 11)
q, k, v = zoo.tensors()
mh.attend(q, k, v, bias=mh.alibi(15), softcap=2.0, dropout=0.1, offset=torch.tensor([1, 2]))
mh.attend(q, k, v, bias=torch.zeros(11), offset=3)
print(mh.explain_choice(q, k, v, mask=mh.window(3)))

turn = mh.rope(500.0, dim=4, scaling=mh.positions.llama3(8))
attn = mh.MultiHeadAttention(24, 6, num_kv_heads=3, mask=mh.causal() & mh.window(4), rope=turn)
x = torch.randn(2, 9, 24)
cache = attn.new_cache(2, 9)
attn(x[:, :5], cache=cache)
attn(x[:, 5:], cache=cache)
attn(x[0])
attn.prune_heads([0])
cross = mh.MultiHeadAttention(24, 6, d_context=5, qk_norm=True, sinks=True)
cross(x, torch.randn(2, 3, 5), mask=torch.ones(9, 3, dtype=torch.bool))

stats = ("entropy", "effective", "distance", "peak", "peak_key", "max_score", "received_mean")
more = (mh.mass(mh.offset(-1)), mh.top(3), mh.heatmap(4), mh.expect(torch.rand(11)))
leaves = [t.requires_grad_() for t in zoo.tensors()]
for mask in (None, mh.causal(), mh.padding([0, 5])):
    seen = mh.observe(*leaves, mask=mask, stats=(*stats, *more), rows=slice(None, None, 2))
    seen.entropy.sum().backward()
    print(seen)
    mh.weights(q, k, mask=mask, rows=slice(2, 4), keys=torch.tensor([1, 5]))
    mh.pooled_weights(q, k, mask=mask, cells=8)
    mh.similarity(q, k, mask=mask)
shards = [mh.observe(q, k[:, :, s], v[:, :, s], stats="entropy") for s in (slice(4), slice(4, 11))]
mh.merge(shards)
cross.observe(x, torch.randn(2, 3, 5), stats=("output_norm", "received_output"))

packed = mh.MultiHeadAttention(24, 6, mask=mh.causal() & mh.documents(torch.arange(9) // 4))
told = []
with mh.monitor(packed, every=1, rows=5, to=told.append) as watch:
    with mh.entropy_floor(packed, at_least=0.5, weight=0.1, heads=[(0, 1)]) as floor:
        loss = packed(x).square().mean()
    (loss + floor.penalty).backward()
    watch.step(loss)
mh.monitoring.picture(told[0], "entropy")
print("every annotation held")
