"""Decode token by token through a cache: the same as the full pass, without doing it again.

python examples/decode.py
"""

import time

import torch

import multihead as mh

torch.manual_seed(0)
attn = mh.MultiHeadAttention(256, 8, num_kv_heads=2, rope=mh.rope(10_000), mask=mh.causal())
x = torch.randn(1, 200, 256)

with torch.no_grad():
    cache = attn.new_cache(batch=1, length=200)
    start = time.perf_counter()
    prompt = attn(x[:, :100], cache=cache)  # a prompt in one go …
    steps = [attn(x[:, i : i + 1], cache=cache) for i in range(100, 200)]  # … then one by one
    cached = time.perf_counter() - start
    whole = attn(x)

    start = time.perf_counter()
    for i in range(100, 201):
        attn(x[:, :i])  # what decoding costs without a cache
    again = time.perf_counter() - start

difference = (torch.cat([prompt, *steps], dim=1) - whole).abs().max().item()
print(cache)
print(f"largest difference {difference:.1e}; {again / cached:.1f} × faster than starting anew")
assert difference < 1e-5

# A window needs only its own keys: this cache never grows, and never ends.
near = mh.MultiHeadAttention(256, 8, mask=mh.causal() & mh.window(32))
cache = near.new_cache(batch=1, length=32)
with torch.no_grad():
    for i in range(200):
        near(x[:, i : i + 1], cache=cache)
print(cache)
