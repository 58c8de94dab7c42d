"""transformers reads a model, from safetensors alone; what goes wrong is told in our words."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .progress import Report

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# Any of these may hold a tokenizer; which one is up to its kind.
TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "source.spm", "tekken.json", "tokenizer.tiktoken",
)  # fmt: skip
PATIENCE = 5.0  # seconds for the hub's first answer


@dataclass(frozen=True)
class Wish:
    """How a model is to be loaded, and who hears of what takes another way."""

    dtype: torch.dtype
    attention: str  # as transformers calls it
    progress: Report | None = None


def read_folder(folder: Path, wish: Wish) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """A folder that save_pretrained wrote."""
    _check_folder(folder)
    with _quiet(bars=False):  # a folder loads in a second
        return _read(str(folder), wish, "")


def read(
    name: str, wish: Wish, *, instead: str = ""
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """A transformers id; `instead` says what else there is."""
    with _quiet(bars=True):
        # Where the hub does not answer, its cache may have it: each file would try five times.
        return _read(name, wish, instead, cached=not _hub_answers())


def _read(
    where: str, wish: Wish, instead: str, *, cached: bool = True
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    from transformers import AutoConfig, AutoTokenizer

    safe = {"trust_remote_code": False, "local_files_only": cached}
    try:
        config = AutoConfig.from_pretrained(where, **safe)
        tokenizer = AutoTokenizer.from_pretrained(where, config=config, **safe)
        loaded = _weights(where, wish, config=config, **safe)
    except Exception as error:  # of many libraries and many kinds
        raise ValueError(_told(where, error, instead)) from None
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{where} has no weights for {_parts(missing)} of {type(model).__name__}: "
            f"{'it' if len(missing) == 1 else 'they'} would be random.\n"
            "  Give a model that was trained to continue text (a causal language model)."
        )
    return model, tokenizer


def _weights(where: str, wish: Wish, **more: Any) -> Any:
    """The model and what was found of it; with eager attention where there is no SDPA for it."""
    from transformers import AutoModelForCausalLM

    def load(attention: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            where,
            **more,
            use_safetensors=True,
            dtype=wish.dtype,
            attn_implementation=attention,
            output_loading_info=True,
        )

    try:
        return load(wish.attention)
    except ValueError as error:  # raised before any weight is read
        if wish.attention != "sdpa" or "scaled_dot_product_attention" not in str(error):
            raise
    if wish.progress is not None:
        wish.progress(
            f"Loading {where} with eager attention, as transformers has no SDPA for it", None
        )
    return load("eager")


def _parts(names: list[str]) -> str:
    """
    >>> _parts(["head"]), _parts(["a", "b"])
    ('the part head', '2 parts, a among them,')
    """
    return (
        f"the part {names[0]}" if len(names) == 1 else f"{len(names)} parts, {names[0]} among them,"
    )


def _hub_answers() -> bool:
    """Whether the hub says anything at all, asked once."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # offline by its own switch, or by any error of its client
        return False
    return True


def _check_folder(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    if "config.json" not in names:
        raise ValueError(
            f"{folder} has no config.json, so it is not a model's folder; it has "
            f"{', '.join(names[:5]) or 'nothing'}.\n  Give the folder that save_pretrained wrote."
        )
    if not any(name.endswith(".safetensors") for name in names):
        pickles = [name for name in names if name.endswith(PICKLES)]
        has = f"pickles alone ({', '.join(pickles[:3])})" if pickles else "no weights"
        raise ValueError(
            f"{folder} must hold weights as .safetensors, and has {has}. A pickle can run any "
            "code when it is read, so none ever is.\n"
            "  If you trust it: load it with transformers yourself, then "
            "model.save_pretrained(folder) writes safetensors."
        )
    if not set(names) & set(TOKENIZERS):
        raise ValueError(
            f"{folder} must hold the tokenizer's files ({', '.join(TOKENIZERS[:4])} or the like), "
            "and has none.\n  Save them beside the model: tokenizer.save_pretrained(folder)."
        )


def _told(where: str, error: Exception, instead: str) -> str:
    """What came, in a line, and what to do, by the kind of error the hub had beneath it."""
    kinds: set[str] = set()
    link: BaseException | None = error
    while link is not None:
        kinds |= {kind.__name__ for kind in type(link).__mro__}
        link = link.__cause__ or link.__context__
    if "GatedRepoError" in kinds:
        return (
            f"{where!r} is on the hub, but its owner asks who you are.\n"
            "  Ask for access on its page, then run `hf auth login`, and call again."
        )
    if "RepositoryNotFoundError" in kinds:
        return (
            f"{where!r} is not a name known here, nor a folder, nor a model that the hub shows "
            f"you.\n  {instead}"
        )
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled"}:
        return (
            f"{where!r} is not a name known here, nor a folder; it may be a transformers id, but "
            "the hub's cache has not got it, and the hub cannot be reached or is switched off.\n"
            f"  Go online (with HF_HUB_OFFLINE unset) and call again. {instead}"
        )
    said = " ".join(str(error).split())
    return (
        f"{where} could not be loaded as a language model from safetensors.\n"
        f"  transformers said: {said[:240]}{'…' * (len(said) > 240)}\n"
        "  See that it is a model that continues text, and complete: config.json, .safetensors, "
        "tokenizer."
    )


@contextlib.contextmanager
def _quiet(*, bars: bool) -> Iterator[None]:
    """No words of transformers or of the hub meanwhile: what matters we say ourselves."""
    from transformers.utils import logging as theirs

    were_on = theirs.is_progress_bar_enabled()
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    if not bars:
        theirs.disable_progress_bar()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if were_on:
            theirs.enable_progress_bar()
