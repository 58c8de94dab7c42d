"""The table of published shapes, and `preset`, which finds one by name."""

from __future__ import annotations

from difflib import get_close_matches
from textwrap import fill
from typing import Any

from ..positions import llama3, rope, yarn
from .shape import AttentionShape


def _card(paper: str, model: str) -> str:
    return f"{paper}; config.json of {model}"


_TRANSFORMER = "arXiv:1706.03762, table 3: the encoder; the decoder has 6 causal and 6 cross layers"
_BERT = "arXiv:1810.04805, section 3"
_GPT2 = "Radford et al. 2019, table 2"
_GPT3 = "arXiv:2005.14165, table 2.1; every 2nd layer is sparse, of a width that is not published"
_LLAMA2, _LLAMA3, _QWEN3 = "arXiv:2307.09288", "arXiv:2407.21783", "arXiv:2505.09388"
_OSS = rope(150_000, scaling=yarn(32, original_length=4096, truncate=False))
_encoder: dict[str, Any] = {"causal": False}
_biased: dict[str, Any] = {"bias": True, "out_bias": True}
_oss: dict[str, Any] = {"sinks": True, "window": 128, "full_every": 2, **_biased}

_row = AttentionShape
# A new model is one more row here:
# name, layers, d_model, num_heads, num_kv_heads, head_dim, context, positions, source
# fmt: off
PRESETS: dict[str, AttentionShape] = {shape.name: shape for shape in (
    _row("transformer-base", 6, 512, 8, 8, 64, None, "sinusoidal", _TRANSFORMER, **_encoder),
    _row("transformer-big", 6, 1024, 16, 16, 64, None, "sinusoidal", _TRANSFORMER, **_encoder),
    _row("bert-base", 12, 768, 12, 12, 64, 512, "learned", _BERT, **_encoder, **_biased),
    _row("bert-large", 24, 1024, 16, 16, 64, 512, "learned", _BERT, **_encoder, **_biased),
    _row("gpt2-small", 12, 768, 12, 12, 64, 1024, "learned", _card(_GPT2, "gpt2"), **_biased),
    _row("gpt2-medium", 24, 1024, 16, 16, 64, 1024, "learned", _card(_GPT2, "gpt2-medium"),
         **_biased),
    _row("gpt2-large", 36, 1280, 20, 20, 64, 1024, "learned", _card(_GPT2, "gpt2-large"),
         **_biased),
    _row("gpt2-xl", 48, 1600, 25, 25, 64, 1024, "learned", _card(_GPT2, "gpt2-xl"), **_biased),
    _row("gpt3", 96, 12288, 96, 96, 128, 2048, "learned", _GPT3, **_biased),
    _row("bloom-176b", 70, 14336, 112, 112, 128, 2048, "alibi",
         _card("arXiv:2211.05100", "bigscience/bloom"), **_biased),
    _row("pythia-160m", 12, 768, 12, 12, 64, 2048, rope(10_000, dim=16),
         _card("arXiv:2304.01373", "EleutherAI/pythia-160m"), **_biased),
    _row("falcon-7b", 32, 4544, 71, 1, 64, 2048, rope(10_000),
         _card("arXiv:2311.16867", "tiiuae/falcon-7b")),
    _row("llama-2-7b", 32, 4096, 32, 32, 128, 4096, rope(10_000),
         _card(_LLAMA2, "meta-llama/Llama-2-7b-hf")),
    _row("llama-2-70b", 80, 8192, 64, 8, 128, 4096, rope(10_000),
         _card(_LLAMA2, "meta-llama/Llama-2-70b-hf")),
    _row("llama-3-8b", 32, 4096, 32, 8, 128, 8192, rope(500_000),
         _card(_LLAMA3, "meta-llama/Meta-Llama-3-8B")),
    _row("llama-3-70b", 80, 8192, 64, 8, 128, 8192, rope(500_000),
         _card(_LLAMA3, "meta-llama/Meta-Llama-3-70B")),
    _row("llama-3.1-405b", 126, 16384, 128, 8, 128, 131072, rope(500_000, scaling=llama3(8)),
         _card(_LLAMA3, "meta-llama/Llama-3.1-405B")),
    _row("llama-3.2-1b", 16, 2048, 32, 8, 64, 131072, rope(500_000, scaling=llama3(32)),
         _card("Llama 3.2 model card", "meta-llama/Llama-3.2-1B")),
    _row("mistral-7b-v0.1", 32, 4096, 32, 8, 128, 32768, rope(10_000),
         _card("arXiv:2310.06825, table 1", "mistralai/Mistral-7B-v0.1"), window=4096),
    _row("qwen2.5-7b", 28, 3584, 28, 4, 128, 131072, rope(1_000_000),
         _card("arXiv:2412.15115", "Qwen/Qwen2.5-7B"), bias=True),
    _row("qwen3-0.6b", 28, 1024, 16, 8, 128, 40960, rope(1_000_000),
         _card(_QWEN3, "Qwen/Qwen3-0.6B"), qk_norm=True),
    _row("qwen3-8b", 36, 4096, 32, 8, 128, 40960, rope(1_000_000),
         _card(_QWEN3, "Qwen/Qwen3-8B"), qk_norm=True),
    _row("gemma-2-9b", 42, 3584, 16, 8, 256, 8192, rope(10_000),
         _card("arXiv:2408.00118", "google/gemma-2-9b"), softcap=50.0, window=4096, full_every=2),
    _row("gemma-3-1b", 26, 1152, 4, 1, 256, 32768, rope(1_000_000),
         _card("arXiv:2503.19786", "google/gemma-3-1b-pt"), qk_norm=True, window=512, full_every=6,
         window_rope=rope(10_000)),
    _row("smollm2-135m", 30, 576, 9, 3, 64, 8192, rope(100_000),
         _card("arXiv:2502.02737", "HuggingFaceTB/SmolLM2-135M")),
    _row("gpt-oss-20b", 24, 2880, 64, 8, 64, 131072, _OSS,
         _card("arXiv:2508.10925", "openai/gpt-oss-20b"), **_oss),
    _row("gpt-oss-120b", 36, 2880, 64, 8, 64, 131072, _OSS,
         _card("arXiv:2508.10925", "openai/gpt-oss-120b"), **_oss),
)}
# fmt: on


# Other names that can mean one row alone; "gpt-2" is four models, so it is not here.
ALIASES = {
    "gpt2": "gpt2-small",  # what the model hub calls by this name
    "gpt-2-small": "gpt2-small",
    "gpt-2-medium": "gpt2-medium",
    "gpt-2-large": "gpt2-large",
    "gpt-2-xl": "gpt2-xl",
    "gpt-3": "gpt3",
    "gpt-3-175b": "gpt3",
    "gpt3-175b": "gpt3",
    "bloom": "bloom-176b",
    "llama2-7b": "llama-2-7b",
    "llama2-70b": "llama-2-70b",
    "llama3-8b": "llama-3-8b",
    "llama3-70b": "llama-3-70b",
    "llama3.1-405b": "llama-3.1-405b",
    "llama3.2-1b": "llama-3.2-1b",
    "mistral-7b": "mistral-7b-v0.1",
    "gemma2-9b": "gemma-2-9b",
    "gemma3-1b": "gemma-3-1b",
}


def preset(name: str) -> AttentionShape:
    """The published shape of this name; `dataclasses.replace` makes a variant of it.

    >>> preset("llama-3-8b").num_kv_heads
    8
    >>> preset("mistral-7b").name
    'mistral-7b-v0.1'
    """
    names = fill(", ".join(PRESETS), 96, initial_indent="  ", subsequent_indent="  ")
    if not isinstance(name, str):
        raise ValueError(
            f"preset takes the name of a model, and {type(name).__name__} came; "
            f"choose one of these.\n{names}"
        )
    known = ALIASES.get(name, name)
    if known in PRESETS:
        return PRESETS[known]
    near = get_close_matches(name.lower(), PRESETS, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}?" if near else "choose one of these."
    raise ValueError(f"there is no preset {name!r}; {meant}\n{names}")
