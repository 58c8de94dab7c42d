"""Models whose heads do exactly what they are told: for tests of names, cuts and importance."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 97


def weights_of(role: str, ids: torch.Tensor, seed: int) -> torch.Tensor:
    """The map of one head, rows sum to 1; rows without the occasion look at all they may see."""
    n = len(ids)
    allowed = torch.ones(n, n).tril().bool()
    i, j = torch.arange(n)[:, None], torch.arange(n)
    inside = {
        "previous": j == i - 1,
        "self": j == i,
        "first": (j == 0) & (i >= 0),
        "far": j == i - 23,  # always so far back, whatever stands there
        "duplicate": (ids[:, None] == ids) & (j < i),
        "induction": (ids[:, None] == ids.roll(1)) & (j > 0) & (j < i),
        "marks": (ids == 1) & (j <= i),
        "even": torch.zeros(n, n).bool(),
    }
    if role == "random":
        random = torch.Generator().manual_seed(seed)
        return (torch.randn(n, n, generator=random)).masked_fill(~allowed, -torch.inf).softmax(-1)
    chosen = inside[role] & allowed
    score = torch.where(chosen, 4.0 + torch.tensor(float(n)).log(), 0.0)
    return score.masked_fill(~allowed, -torch.inf).softmax(-1)


class Puppet(nn.Module):
    """Layers of heads with roles; what induction heads read is what comes next."""

    def __init__(self, *roles: tuple[str, ...]) -> None:
        super().__init__()
        self.roles = roles
        self.layers = nn.ModuleList(_Puppets(row) for row in roles)
        self.anchor = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        read = F.one_hot(input_ids, VOCAB).float()
        out = torch.zeros(*input_ids.shape, VOCAB)
        for layer in self.layers:
            out = out + layer(input_ids, read)
        return 8.0 * out


class _Puppets(nn.Module):
    def __init__(self, roles: tuple[str, ...]) -> None:
        super().__init__()
        self.roles = roles

    def forward(self, ids: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        heads = len(self.roles)
        maps = [
            torch.stack([weights_of(role, row, h) for h, role in enumerate(self.roles)])
            for row in ids
        ]
        bias = torch.stack(maps).log()  # (batch, heads, query, key): softmax of it is itself
        nothing = torch.zeros(*bias.shape[:3], 2)
        value = read[:, None].expand(-1, heads, -1, -1)
        out = F.scaled_dot_product_attention(nothing, nothing, value, attn_mask=bias)
        speaks = torch.tensor([role == "induction" for role in self.roles])
        return out[:, speaks].sum(1)


class Words:
    """A tokenizer of single signs: 0 is a BOS, 1 a full stop."""

    bos_token_id, all_special_ids = 0, [0]

    def decode(self, ids):
        return {0: "<s>", 1: "."}.get(ids[0], f"w{ids[0]}")


def text(tokens=300):
    random = torch.Generator().manual_seed(1)
    return torch.cat([torch.tensor([0]), torch.randint(1, 40, (tokens,), generator=random)])
