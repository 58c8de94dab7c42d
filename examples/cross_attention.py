"""Cross-attention: a decoder that reads an encoder's output, whose keys are made once.

python examples/cross_attention.py
"""

import torch

import multihead as mh

torch.manual_seed(0)
d_text, d_sound = 128, 80
sound = torch.randn(2, 300, d_sound)  # (batch, frames, features): what the encoder made
frames = torch.tensor([300, 180])  # the second recording is shorter, the rest is padding
text = torch.randn(2, 20, d_text)

listen = mh.MultiHeadAttention(d_text, 8, d_context=d_sound)
heard = listen(text, sound, mask=mh.padding(frames))  # (2, 20, 128)

# What stands in the padding does not matter.
louder = sound.clone()
louder[1, 180:] = 1000.0
assert torch.allclose(heard, listen(text, louder, mask=mh.padding(frames)), atol=1e-6)

# Word by word, with the keys of the sound projected at the first word only.
with torch.no_grad():
    cache = listen.new_cache(batch=2, length=300)
    words = [listen(text[:, :1], sound, mask=mh.padding(frames), cache=cache)]
    words += [
        listen(text[:, i : i + 1], mask=mh.padding(frames), cache=cache) for i in range(1, 20)
    ]
difference = (torch.cat(words, dim=1) - heard).abs().max().item()
print(cache)
print(f"largest difference {difference:.1e}")
assert difference < 1e-5
