"""A tiny random model in a folder, and reports with names and verdicts made by hand."""

import dataclasses
import functools
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import multihead as mh
from multihead.patterns import Name, Verdict, habits
from multihead.views.report import STATS, About, Report

LAYERS, HEADS, VOCABULARY = 2, 3, 200
WORDS = [
    "The",
    "red",
    "light",
    "on",
    "the",
    "mole",
    "was",
    "out",
    "and",
    "the",
    "red",
    "light",
    "on",
    "the",
    "tower",
    "was",
    "out",
    "too",
]


def save_model(folder: Path, **options) -> Path:
    """A LLaMA of random weights and a tokenizer of whole words, as save_pretrained writes them."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(**{
        "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 20, "head_dim": 8,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1,
        "max_position_embeddings": 160, "bos_token_id": 1, "eos_token_id": 2, **options,
    })  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    known = ["<unk>", "<s>", "</s>", *dict.fromkeys(WORDS), "日本", "$x$"]
    known += [f"w{i}" for i in range(VOCABULARY - len(known))]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return folder


@functools.cache
def recorded(tokens: int = 64):
    """A recording of the tiny model, its tokens named by hand."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=20, head_dim=8,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(tokens)[None] % 17
    with torch.no_grad(), mh.record(model, stats=STATS) as rec:
        model(ids)
    rec.words = [[[" cat", "$x$", "\n", "日本", "the"][i % 5] for i in range(tokens)]]
    return rec


def name(layer, head, pattern, where="on cue", score=0.84, **more) -> Name:
    numbers = {"low": score - 0.03, "chance": 0.02, "control": 0.05, "spread": 0.1, "rows": 587}
    return Name(layer, head, pattern, where, score, **{**numbers, **more})


NAMES = [
    name(1, 2, "induction"),
    name(0, 1, "previous token", score=0.7),
    name(1, 2, "first token", "at rest", score=0.6),
    name(0, 0, "induction", "at rest", score=0.5),
]


def verdict(of: Name, holds=True, measured="loss", **numbers) -> Verdict:
    told = {"effect": 1.94, "low": 1.6, "untouched": 0.0, "elsewhere": -0.13,
            "mass": 0.84, "elsewhere_mass": 0.07, "others": 0.1, "together": 8.16}  # fmt: skip
    return Verdict(of, measured, holds=holds, **{**told, **numbers})


def report(tokens: int = 64, **changes) -> Report:
    rec = recorded(tokens)
    about = About("tiny, 4-bit quantised", "Apache-2.0", "a text", 70, False, "<s>")
    scores = [{"layer": layer, "head": h, "induction, on cue": 0.1 * h}
              for layer in range(LAYERS) for h in range(HEADS)]  # fmt: skip
    made = Report(about, rec, habits(rec), NAMES, scores, True, [verdict(NAMES[0])])
    return dataclasses.replace(made, **changes)
