"""transformers reads a model, from safetensors alone; what goes wrong is told in our words."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_folder(
    folder: Path, dtype: torch.dtype, attn_implementation: str
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """A folder that save_pretrained wrote."""
    _check_folder(folder)
    with _no_bars():
        return read(str(folder), dtype, attn_implementation)


def read(
    where: str, dtype: torch.dtype, attn_implementation: str, *, instead: str = ""
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """A folder or a transformers id; `instead` says what else there is."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(where, config=config, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where,
            config=config,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            attn_implementation=attn_implementation,
            output_loading_info=True,
        )
    except Exception as error:  # of many libraries and many kinds
        raise ValueError(_told(where, error, instead)) from None
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{where} has no weights for {len(missing)} parts of {type(model).__name__}, among "
            f"them {missing[0]}: they would be random.\n"
            "  Give a model that was trained to continue text (a causal language model)."
        )
    return model, tokenizer


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
def _no_bars() -> Iterator[None]:
    """A folder loads in a second: no bar of transformers' over it, and theirs as it was later."""
    from transformers.utils import logging

    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            logging.enable_progress_bar()
