"""FlexAttention: every mask a place at a time, and its blocks. Here without being compiled."""

import itertools

import numpy as np
import pytest
import torch
import zoo
from torch.nn.attention.flex_attention import BlockMask

import multihead as mh
from multihead.attention import dense, flex, flex_blocks
from multihead.masks import FULL, PARTIAL

MASKS = zoo.every_mask(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.KEYS)
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize("offset", [4, -2, torch.tensor([3, -4])], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_at_single_places_is_what_it_allows(name, offset):
    at = flex.at_places(MASKS[name], offset)
    sizes = (zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.KEYS)
    allowed = MASKS[name].allows(torch.arange(zoo.QUERIES), torch.arange(zoo.KEYS), offset)
    allowed = allowed.expand(sizes)
    b, h, q, k = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    found = torch.vmap(at)(b.flatten(), h.flatten(), q.flatten(), k.flatten())
    assert torch.equal(found.reshape(sizes), allowed)


@pytest.fixture
def eagerly(monkeypatch):
    """The same call, not compiled: it builds the matrix, on any device."""
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(flex, "_kernel", lambda: flex_attention)


ASKED = {
    "plain": {},
    "softcap": {"softcap": 1.3},
    "bias": {"bias": torch.linspace(-2, 2, 200)},
    "alibi": {"bias": mh.alibi(zoo.HEADS)},
    "sinks": {"sinks": torch.linspace(-1, 1, zoo.HEADS)},
    "offsets": {"offset": torch.tensor([60, -4])},
}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("extra", ASKED)
@pytest.mark.parametrize("name", ["none", "causal", "packed", "dense", "same_token", "nothing"])
def test_numbers(eagerly, name, extra):
    """Of more than one block; rows that see nothing are 0, and their lse −inf."""
    q, k, v = zoo.tensors(queries=150, keys=200, dim=16, value_dim=16)
    masks = {"none": None, **zoo.every_mask(zoo.BATCH, zoo.HEADS, 150, 200)}
    p = zoo.ask(q, k, v, mask=masks[name], **ASKED[extra])
    found, expected = flex.run(p), dense.run(p)
    torch.testing.assert_close(found.out, expected.out, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.lse, expected.lse, rtol=1e-6, atol=2e-6)


def test_blocks_are_those_of_the_mask(eagerly):
    q, k, v = zoo.tensors(queries=400, keys=400, dim=16, value_dim=16)
    blocks = flex._block_mask(zoo.ask(q, k, v, mask=mh.causal() & mh.window(130)))
    assert blocks is not None
    part, whole = blocks.kv_num_blocks, blocks.full_kv_num_blocks
    assert (part + whole)[0, 0].tolist() == [1, 2, 3, 3]  # what lies beyond is never visited
    assert blocks.kv_indices[0, 0, 2, : part[0, 0, 2]].tolist() == [0, 1, 2]


@pytest.mark.parametrize("offset", [0, -130, torch.tensor([100, -300])], ids=str)
@pytest.mark.parametrize("name", zoo.every_mask(zoo.BATCH, zoo.HEADS, 300, 500))
def test_lists_are_those_that_pytorch_makes(name, offset):
    """By row and by column; whatever device new tensors come on."""
    q, k, v = zoo.tensors(queries=300, keys=500, dim=16, value_dim=16)
    mask = zoo.every_mask(zoo.BATCH, zoo.HEADS, 300, 500)[name]
    p = zoo.ask(q, k, v, mask=mask, offset=offset)
    with torch.device("meta"):
        part, which, whole, those, *by_column = flex_blocks.lists_of(p)
    blocks = BlockMask.from_kv_blocks(part, which, whole, those, BLOCK_SIZE=128)
    told = (blocks.q_num_blocks, blocks.q_indices, blocks.full_q_num_blocks, blocks.full_q_indices)
    for found, expected in zip(by_column, told, strict=True):
        assert torch.equal(found, expected)
    edges = [torch.tensor([*range(0, n, 128), n]) for n in (300, 500)]
    kinds = mask.blocks(*edges, offset).expand(-1, 3, 4)
    for kind, (many, at) in {PARTIAL: (part, which), FULL: (whole, those)}.items():
        for row in itertools.product(range(len(kinds)), range(3)):
            listed = at[row[0], 0, row[1], : many[row[0], 0, row[1]]].tolist()
            assert listed == (kinds[row] == kind).nonzero().flatten().tolist()


def test_blocks_are_listed_once_for_all_layers(monkeypatch):
    """Anew where lengths or the offset differ, or its data, however that was written to."""
    asked, whole = [], flex_blocks._blocks
    monkeypatch.setattr(flex_blocks, "_blocks", lambda *given: asked.append(1) or whole(*given))
    text = np.arange(400) // 70
    mask = mh.causal() & mh.documents(torch.from_numpy(text))
    q, k, v = zoo.tensors(queries=400, keys=400, dim=16, value_dim=16)

    def listed(queries=400, batch=zoo.BATCH, **more):
        asked.clear()
        p = zoo.ask(q[:batch, :, :queries], k[:batch], v[:batch], mask=mask, **more)
        lists = torch.cat([t.flatten() for t in flex_blocks.lists_of(p)])
        assert torch.equal(lists, whole(mask, -1, queries, 400, p.offset))
        return len(asked)

    assert [listed(), listed(), listed(batch=1), listed(offset=-130), listed()] == [1, 0, 0, 1, 1]
    assert [listed(queries=300, offset=0), listed(offset=0)] == [1, 1]
    offsets = torch.tensor([0, -130])
    assert [listed(offset=offsets), listed(offset=offsets), listed()] == [1, 1, 0]
    text[130:] = 9
    assert [listed(), listed()] == [1, 0]
    object.__setattr__(mask, "left", mh.window(30))
    assert [listed(), listed()] == [1, 0]
    at = id(mask)
    assert at in flex_blocks._LAST
    del mask
    assert at not in flex_blocks._LAST


def test_what_is_kept_may_be_trained_with():
    q, k, v = zoo.tensors(queries=400, keys=400, dim=16, value_dim=16)
    p = zoo.ask(q, k, v, mask=mh.causal())
    with torch.inference_mode():
        flex_blocks.lists_of(p)
    assert not any(t.is_inference() for t in flex_blocks.lists_of(p))


def test_a_large_table_is_not_kept(monkeypatch):
    q, k, v = zoo.tensors(queries=400, keys=400, dim=16, value_dim=16)
    p = zoo.ask(q, k, v, mask=torch.ones(400, 400, dtype=torch.bool))
    flex_blocks.lists_of(p)
    assert flex_blocks._LAST.pop(id(p.mask))
    monkeypatch.setattr(flex_blocks, "_MUCH", 400)
    flex_blocks.lists_of(p)
    assert id(p.mask) not in flex_blocks._LAST


def test_every_kind_of_mask_is_compiled_however_many_there_are(monkeypatch):
    """PyTorch gives up after a few, and builds the matrix: more are allowed, and giving up raises."""
    from torch._dynamo.exc import FailOnRecompileLimitHit
    from torch._dynamo.testing import CompileCounterWithBackend
    from torch.nn.attention.flex_attention import flex_attention

    counted, compile_ = CompileCounterWithBackend("aot_eager"), torch.compile
    tensors = zoo.tensors(queries=150, keys=200, dim=16, value_dim=16)
    kinds = [zoo.ask(*tensors, mask=mask) for mask in three_kinds(200)]
    torch._dynamo.reset()
    flex._kernel.cache_clear()
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=1):
        theirs = compile_(flex_attention, backend="eager")  # who compiles it too does not count
        for n in (3, 4):
            theirs(*(torch.zeros(1, 1, n, 16) for _ in "qkv"))
        monkeypatch.setattr(torch, "compile", lambda f, **_: compile_(f, backend=counted))
        for p in (*kinds, *kinds):
            flex.run(p)
        assert counted.frame_count == 3
        monkeypatch.setattr(flex, "_KINDS", 3)
        with pytest.raises(FailOnRecompileLimitHit):
            flex.run(zoo.ask(*tensors, mask=mh.window(5)))
    flex._kernel.cache_clear()


def three_kinds(keys: int) -> list:
    ids = torch.arange(keys) // 70
    return [mh.documents(ids), mh.causal() & mh.documents(ids), mh.documents(ids) | mh.window(9)]


def test_what_it_refuses():
    p = zoo.ask(*zoo.tensors())
    assert "needs a GPU" in str(flex.refuses(p))


@GPU
def test_compiled_once_for_a_kind_of_mask():
    """Every mask and argument on a GPU; another text's ids do not compile it again."""
    import torch._dynamo.testing

    q, k, v = (t.cuda() for t in zoo.tensors(0, torch.bfloat16, queries=900, keys=1000, dim=64,
                                            value_dim=64))  # fmt: skip
    torch._dynamo.reset()
    flex._kernel.cache_clear()
    counts = []
    for seed in range(3):
        ids = torch.randint(0, 4, (zoo.BATCH, 1000), generator=torch.Generator().manual_seed(seed))
        mask = mh.causal() & mh.documents(ids.sort().values.cuda())
        p = zoo.ask(q, k, v, mask=mask)
        assert flex.refuses(p) is None
        found, expected = (
            flex.run(p),
            dense.run(zoo.ask(q.float(), k.float(), v.float(), mask=mask)),
        )
        torch.testing.assert_close(found.out.float(), expected.out, rtol=0, atol=2e-2)
        torch.testing.assert_close(found.lse, expected.lse, rtol=0, atol=1e-4)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] == counts[-1], counts


@GPU
def test_ids_that_change_on_the_device_change_the_blocks():
    q, k, v = (torch.randn(1, 2, 4096, 64, device="cuda").bfloat16() for _ in "qkv")
    ids = torch.arange(4096, device="cuda") // 700
    mask = mh.causal() & mh.documents(ids)
    for step in (700, 300):
        ids.copy_(torch.arange(4096, device="cuda") // step)
        expected = dense.run(zoo.ask(q.float(), k.float(), v.float(), mask=mask)).out
        for _ in range(2):
            found = flex.run(zoo.ask(q, k, v, mask=mask)).out.float()
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


@GPU
def test_a_process_may_ask_for_many_kinds_of_masks():
    q, k, v = (torch.randn(1, 2, 4096, 64, device="cuda").bfloat16() for _ in "qkv")
    with torch._dynamo.config.patch(recompile_limit=1):
        for mask in three_kinds(4096):
            p = zoo.ask(q, k, v, mask=mask)
            flex.run(p)  # compiled
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            flex.run(p)
            assert torch.cuda.max_memory_allocated() - before < 2 * 4096 * 4096  # a byte a score


@GPU
@pytest.mark.parametrize(
    ("name", "extra"), [*itertools.product(["packed", "dense"], ["alibi", "sinks"])]
)
def test_numbers_and_gradients_compiled(name, extra):
    from oracle import assert_by_the_rule, results

    tensors = [t.cuda() for t in zoo.tensors(0, torch.bfloat16, queries=900, keys=1000, dim=64,
                                             value_dim=64)]  # fmt: skip
    mask = zoo.every_mask(zoo.BATCH, zoo.HEADS, 900, 1000)[name].to("cuda")
    given = {n: t.cuda() if isinstance(t, torch.Tensor) else t for n, t in ASKED[extra].items()}
    if extra == "alibi":
        given = {"bias": mh.alibi(mh.alibi(zoo.HEADS).slopes.cuda())}
    p = zoo.ask(*tensors, mask=mask, **given)
    grad = torch.randn(*p.query.shape[:3], 64, device="cuda").bfloat16()
    assert_by_the_rule(p, results(flex.run, p, grad), grad)
