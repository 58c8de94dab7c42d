"""A small GPT on `MultiHeadAttention`, to be read in one sitting.

    ids ── embed, place ──▶ x ──▶ block ──▶ … ──▶ block ──▶ norm ──▶ head ──▶ logits
                                   │
                                   └ x + attention(norm(x)), then x + mlp(norm(x))

Where a vocabulary has a separator (the line end between names), each document sees itself alone:
a row may hold many names, and each is read as if it stood by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu

from ..cache import Cache
from ..layer import MultiHeadAttention
from ..masks import Mask, causal, documents
from ..positions import rope
from .sampling import Taste, draw

POSITIONS = ("learned", "rope")
EPS = 2.0**-23  # of the norms: float32's own, in every precision


@dataclasses.dataclass
class GPTConfig:
    """The shape of a GPT. `context` is the longest document, in tokens.

    >>> GPTConfig(vocab_size=27, context=16, d_model=16, num_heads=4, num_layers=1).head_dim
    4
    """

    vocab_size: int
    context: int
    d_model: int
    num_heads: int
    num_layers: int
    positions: str = "learned"
    dropout: float = 0.0
    separator: int | None = None  # the token that begins a document
    about: str = ""  # a line for whoever shows the model
    example: str = ""  # a text that it has not trained on, to show it on

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "d_model", "num_heads", "num_layers"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number above 0, and {value!r} came.")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads, and {self.d_model} dims for "
                f"{self.num_heads} heads came; give heads that divide {self.d_model}."
            )
        if self.positions not in POSITIONS:
            raise ValueError(
                f"positions must be one of {', '.join(POSITIONS)}, and {self.positions!r} came."
            )
        if self.positions == "rope" and self.head_dim % 2:
            raise ValueError(
                f"rope turns pairs of numbers, and a head has {self.head_dim}; give heads of an "
                "even size, or learned positions."
            )

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    # As transformers' configurations are asked, so that every view reads ours the same way.

    def get_text_config(self) -> GPTConfig:
        return self

    @property
    def name_or_path(self) -> str:
        return self.about

    @property
    def num_hidden_layers(self) -> int:
        return self.num_layers

    @property
    def max_position_embeddings(self) -> int | None:
        """None where a text may hold any number of documents."""
        return self.context if self.separator is None else None


class GPT(nn.Module):
    """A decoder: embeddings, blocks, a head; logits of the next token out.

    >>> model = GPT(GPTConfig(vocab_size=27, context=16, d_model=16, num_heads=4, num_layers=1))
    >>> model(torch.randint(27, (2, 10))).shape
    torch.Size([2, 10, 27])
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        learned = config.positions == "learned"
        self.place = nn.Embedding(config.context, config.d_model) if learned else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=EPS)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._start()

    def _start(self) -> None:
        """Normal weights that keep sizes as they are, 1/√in; less, by depth, for what joins x.

        GPT-2's 0.02 is that of some thousand dims; here it would take hundreds of steps to outgrow.
        """
        joins = (2 * self.config.num_layers) ** -0.5
        for name, weight in self.named_parameters():
            if name.startswith(("embed", "place")):
                nn.init.normal_(weight, std=0.3)
            elif name.startswith("head"):
                nn.init.normal_(weight, std=0.02)  # at first all tokens are about as likely
            elif weight.ndim > 1:
                share = joins if name.endswith("out.weight") else 1.0
                nn.init.normal_(weight, std=share * weight.shape[1] ** -0.5)

    def forward(
        self,
        input_ids: Int[Tensor, "batch tokens"],
        *,
        cache: Sequence[Cache] | None = None,
    ) -> Float[Tensor, "batch tokens vocab"]:
        """Logits of each next token; with a cache, `input_ids` are what comes next."""
        mask, places = self._places(input_ids, cache)
        x = self.embed(input_ids)  # (batch, tokens, d_model)
        if self.place is not None:
            x = x + self.place(places)
        for n, block in enumerate(self.blocks):
            x = block(x, mask, None if cache is None else cache[n])
        return self.head(self.norm(x))

    def _places(
        self, ids: Tensor, cache: Sequence[Cache] | None
    ) -> tuple[Mask | None, Int[Tensor, "..."]]:
        """Who may see whom beyond causal, and where each token stands in its document."""
        every = torch.arange(ids.shape[1], device=ids.device)
        if cache is not None:  # which holds one document
            every = every + cache[0].seen
        if self.config.separator is None or cache is not None:
            self._check_length(cache[0].seen if cache is not None else 0, ids.shape[1])
            return None, every
        begins = ids == self.config.separator
        first = torch.where(begins, every, 0).cummax(1).values
        places = every - first  # (batch, tokens)
        if not torch.compiler.is_compiling():
            self._check_length(int(places.max()), 1)
        return documents(begins.cumsum(1)), places

    def _check_length(self, before: int, tokens: int) -> None:
        if before + tokens > self.config.context:
            raise ValueError(
                f"a document may have {self.config.context} tokens, and this one has "
                f"{before + tokens}; give a shorter one, or train with a longer context."
            )

    def new_cache(self, batch: int) -> list[Cache]:
        """Room for one document in each row, a cache a layer."""
        return [block.attention.new_cache(batch, self.config.context) for block in self.blocks]  # type: ignore[union-attr, operator]

    @torch.no_grad()
    def generate(
        self,
        input_ids: Int[Tensor, "batch tokens"],
        tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Int[Tensor, "batch more"]:
        """The prompt and up to `tokens` more, drawn one at a time through the cache.

        A document that came to its end is filled with the separator. Without one, a text that
        fills its context goes on from its last half.

        >>> model = GPT(GPTConfig(vocab_size=5, context=8, d_model=4, num_heads=2, num_layers=1))
        >>> a, b = (model.generate(torch.tensor([[0, 3]]), 20, seed=1) for _ in range(2))
        >>> a.shape, bool((a == b).all())
        (torch.Size([1, 22]), True)
        """
        taste = Taste(temperature, top_k, top_p)
        ids = self._one_document(input_ids)
        random = torch.Generator()
        random.seed() if seed is None else random.manual_seed(seed)
        was_training = self.training
        self.eval()
        try:
            told = self._told(input_ids, ids, tokens, taste, random)
        finally:  # also where it was stopped on the way
            self.train(was_training)
        return torch.cat(told, 1)

    def _told(
        self, prompt: Tensor, ids: Tensor, tokens: int, taste: Taste, random: torch.Generator
    ) -> list[Tensor]:
        """The prompt, and each token that was drawn after `ids`, the end of it."""
        told, end = [prompt], self.config.separator
        cache, new = self.new_cache(len(ids)), ids
        done = torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
        for _ in range(tokens):
            if cache[0].seen + new.shape[1] > self.config.context:
                if end is not None:
                    break
                recent = torch.cat(told, 1)[:, -max(1, self.config.context // 2) :]
                cache, new = self.new_cache(len(ids)), recent
            logits = self(new, cache=cache)[:, -1]  # (batch, vocab)
            new = draw(logits, taste, random)  # (batch, 1)
            if end is not None:
                new = torch.where(done, end, new)
                done = done | (new == end)
            told.append(new)
            if end is not None and bool(done.all()):
                break
        return told

    def _one_document(self, ids: Tensor) -> Tensor:
        """What a cache is to read: the last document of a prompt, or as much as the context has."""
        if ids.ndim != 2 or not ids.numel():
            raise ValueError(
                f"a prompt is token ids (batch, tokens), one token at least, but shape "
                f"{tuple(ids.shape)} came; give the separator to begin a document."
            )
        if self.config.separator is None:
            return ids[:, -self.config.context :]
        begins = (ids == self.config.separator).any(0).nonzero()
        first = int(begins[-1]) if len(begins) else 0
        if not bool((ids[:, first] == self.config.separator).all()):
            raise ValueError(
                "the last document must begin at the same place in all rows, with the separator; "
                "generate from prompts of one length, or one at a time."
            )
        return ids[:, first:]


class Block(nn.Module):
    """norm → attention → residual, norm → MLP → residual."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        turn = rope(10_000) if config.positions == "rope" else None
        self.attention_norm = nn.RMSNorm(config.d_model, eps=EPS)
        self.attention = MultiHeadAttention(
            config.d_model, config.num_heads, mask=causal(), rope=turn, bias=False
        )
        self.mlp_norm = nn.RMSNorm(config.d_model, eps=EPS)
        self.mlp = MLP(config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Mask | None, cache: Cache | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask, cache=cache))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class MLP(nn.Module):
    """Four times as wide, GELU, and back."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.wide = nn.Linear(d_model, 4 * d_model, bias=False)
        self.out = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(gelu(self.wide(x)))
