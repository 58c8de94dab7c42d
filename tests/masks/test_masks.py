"""Masks against a definition of each in plain Python, and blocks against masks."""

import itertools

import pytest
import torch
import zoo
from hypothesis import given
from hypothesis import strategies as st
from zoo import every_mask

import multihead as mh
from multihead import masks
from multihead.masks import EMPTY, FULL, MASKS, PARTIAL
from multihead.masks.mask import Mask, frozen

IDS = [[7, 4, 7, 4, 4, 9, 7, 4, 4, 1, 7], [1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]]
BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 11
DENSE = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) > 0.5


def known(place):
    return 0 <= place < KEYS


# Who may look at whom, said once more in plain Python: batch row, head, query, place, key.
DEFINITIONS = {
    "causal": (mh.causal(), lambda b, h, i, p, j: j <= p),
    "window": (mh.window(3), lambda b, h, i, p, j: abs(p - j) < 3),
    "prefix": (mh.prefix(4), lambda b, h, i, p, j: j < 4),
    "offset": (mh.offset(-2), lambda b, h, i, p, j: j == p - 2),
    "padding": (mh.padding([3, 8]), lambda b, h, i, p, j: j < [3, 8][b]),
    "documents": (
        mh.documents(torch.tensor(IDS)),
        lambda b, h, i, p, j: known(p) and IDS[b][j] == IDS[b][p],
    ),
    "dense": (mh.dense(DENSE), lambda b, h, i, p, j: bool(DENSE[b, h, i, j])),
    "same_token": (
        mh.same_token(torch.tensor(IDS)),
        lambda b, h, i, p, j: known(p) and j < p and IDS[b][j] == IDS[b][p],
    ),
    "after_same_token": (
        mh.after_same_token(torch.tensor(IDS)),
        lambda b, h, i, p, j: known(p) and 0 < j < p and IDS[b][j - 1] == IDS[b][p],
    ),
}


def table(mask, queries=QUERIES, keys=KEYS, offset=0):
    allowed = mask.allows(torch.arange(queries), torch.arange(keys), offset)
    return allowed.expand(BATCH, HEADS, queries, keys)


def test_every_mask_is_defined_here():
    assert set(DEFINITIONS) == set(MASKS)
    assert set(MASKS) <= set(every_mask(2, 3, 5, 7))


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("offset", [0, 6, -3, 9, torch.tensor([6, -2])], ids=str)
def test_allows(name, offset):
    mask, definition = DEFINITIONS[name]
    allowed = table(mask, offset=offset)
    for b, h, i, j in itertools.product(*map(range, (BATCH, HEADS, QUERIES, KEYS))):
        place = i + (int(offset[b]) if isinstance(offset, torch.Tensor) else offset)
        assert allowed[b, h, i, j] == definition(b, h, i, place, j), (b, h, i, j)


def compositions():
    leaves = st.sampled_from([mask for mask, _ in DEFINITIONS.values()])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
            inner.map(lambda mask: ~mask),
        ),
        max_leaves=4,
    )


@st.composite
def edges(draw, length):
    inside = draw(st.sets(st.integers(1, length - 1)))
    return torch.tensor(sorted({0, length} | inside))


offsets = st.one_of(
    st.integers(-12, 12), st.lists(st.integers(-12, 12), min_size=2, max_size=2).map(torch.tensor)
)


@given(compositions(), edges(QUERIES), edges(KEYS), offsets)
def test_blocks_never_contradict_the_mask(mask, query_edges, key_edges, offset):
    allowed = table(mask, offset=offset)
    blocks = mask.blocks(query_edges, key_edges, offset)
    assert blocks.dtype == torch.int8
    blocks = blocks.expand(BATCH, len(query_edges) - 1, len(key_edges) - 1)
    for b, i, j in itertools.product(*map(range, blocks.shape)):
        tile = allowed[b, :, query_edges[i] : query_edges[i + 1], key_edges[j] : key_edges[j + 1]]
        if blocks[b, i, j] == EMPTY:
            assert not tile.any()
        if blocks[b, i, j] == FULL:
            assert tile.all()


@pytest.mark.parametrize("name", ["causal", "window", "prefix", "offset", "padding", "dense"])
@pytest.mark.parametrize("offset", [0, 6, torch.tensor([6, -2])], ids=str)
def test_single_cells_are_never_partial(name, offset):
    """Where a mask can know, it must: that is what tiles are skipped by."""
    mask, _ = DEFINITIONS[name]
    if name == "dense":  # heads share their blocks
        mask = mh.dense(DENSE[:, :1])
    cells = mask.blocks(torch.arange(QUERIES + 1), torch.arange(KEYS + 1), offset)
    expected = torch.where(table(mask, offset=offset)[:, 0], FULL, EMPTY)
    assert torch.equal(cells.expand(BATCH, QUERIES, KEYS), expected.to(torch.int8))


def test_packed_documents_leave_out_other_documents():
    ids = torch.arange(8).repeat_interleave(64)
    quarter = torch.arange(0, 513, 64)
    expected = torch.where(torch.eye(8, dtype=torch.bool), FULL, EMPTY).to(torch.int8)
    assert torch.equal(mh.documents(ids).blocks(quarter, quarter)[0], expected)
    assert (mh.documents(ids).blocks(quarter + 0, torch.tensor([0, 96, 512])) == PARTIAL).any()


@given(compositions(), compositions(), offsets)
def test_composition_is_element_by_element(one, two, offset):
    a, b = table(one, offset=offset), table(two, offset=offset)
    assert torch.equal(table(one & two, offset=offset), a & b)
    assert torch.equal(table(one | two, offset=offset), a | b)
    assert torch.equal(table(~one, offset=offset), ~a)


@given(compositions(), compositions())
def test_equal_by_value_and_written_as_read(one, two):
    again = masks.read(*masks.write(one))
    assert again == one
    assert hash(again) == hash(one)
    if masks.write(one)[0] != masks.write(two)[0]:
        assert one != two


@pytest.mark.parametrize(
    "text",
    [
        "causal() & window(256)",
        "causal() & window(3) | prefix(1)",
        "causal() & (window(3) | prefix(1))",
        "~(causal() | offset(-1)) & ~prefix(2)",
        "causal() & (window(9) & prefix(1))",
        "padding([3, 5])",
        "documents([[1, 1], [2, 2]]) | offset(1)",
    ],
)
def test_printed_as_written(text):
    assert repr(masks.read(text)) == text


def test_data_counts_in_equality_not_in_the_hash():
    one, two = mh.padding([3, 5]), mh.padding([3, 6])
    assert one != two
    assert hash(one) == hash(two)
    assert mh.window(3) != mh.window(4)
    assert mh.causal() != "causal()"
    assert mh.causal() & mh.window(2) != mh.window(2) & mh.causal()
    assert (
        repr(mh.documents(torch.zeros(2, 4096, dtype=torch.int64))) == "documents(<int64 2×4096>)"
    )


@pytest.mark.parametrize("name", every_mask(2, 3, 5, 7))
def test_rows_of_a_batch_are_the_rows_of_the_mask(name):
    mask = every_mask(BATCH, HEADS, QUERIES, KEYS)[name]
    whole = mask.allows(torch.arange(QUERIES), torch.arange(KEYS), 6)
    one = mask.row(slice(1, 2)).allows(torch.arange(QUERIES), torch.arange(KEYS), 6)
    expected = whole.expand(BATCH, *whole.shape[1:])[1:2]
    assert torch.equal(one.expand(expected.shape), expected)


def test_a_tile_is_a_tile_whatever_the_length():
    """A million tokens: nothing n × n is built, for a tile nor for the blocks."""
    length = 1_000_000
    packed = torch.arange(length) // 1000
    mask = mh.causal() & mh.window(256) & mh.documents(packed) | mh.prefix(4)
    far = torch.arange(length - 64, length)
    assert mask.allows(far, far).shape == (1, 1, 64, 64)
    coarse = torch.arange(0, length + 1, 10_000)
    assert mask.blocks(coarse, coarse).shape == (1, 100, 100)


def test_a_million_tokens_are_planned_a_few_strips_at_a_time():
    """The tiles that a window leaves of a million tokens, without ever a table of all blocks."""
    from multihead.attention.plan import Size, plan

    wide = torch.empty(1, 1, 1_000_000, 1, device="meta")
    problem = zoo.ask(wide, wide, wide, mask=mh.causal() & mh.window(256))
    size = Size(queries=256, tallest=2048, block=128, partial_run=2048, full_run=8192)
    strips = [strip for _, strips in plan(problem, size, 1) for strip in strips]
    assert sum(s.queries.stop - s.queries.start for s in strips) == 1_000_000
    assert max(run.keys.stop - run.keys.start for s in strips for run in s.runs) <= 768


def test_a_picture_is_as_large_as_the_data():
    assert mh.documents([1, 1, 2]).draw() == "■ ■ ·\n■ ■ ·\n· · ■"
    assert mh.dense(torch.eye(2, 3).bool()).draw() == "■ · ·\n· ■ ·"
    assert len((mh.causal() & mh.same_token([1, 2, 1])).draw().splitlines()) == 3


def test_moved_to_a_device():
    moved = (mh.causal() & mh.padding([3])).to("meta")
    assert moved.right.lengths.device.type == "meta"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: mh.window(0), r"window\(size\) must be at least 1 .*, but 0 came; give"),
        (lambda: mh.window(2.5), "takes a whole number, but 2.5 came"),
        (lambda: mh.prefix(-1), "must be at least 0"),
        (lambda: mh.offset(True), "takes a whole number"),
        (lambda: mh.padding(torch.tensor([1.5])), "takes whole numbers, but torch.float32 came"),
        (lambda: mh.padding(torch.ones(2, 2, dtype=torch.int64)), r"\(n,\), but \(2, 2\) came"),
        (lambda: mh.documents(torch.tensor(3)), r"\(n,\) or \(batch, n\), but \(\) came"),
        (lambda: mh.dense(torch.ones(3, 3)), "boolean tensor.*float32 came.*as bias="),
        (lambda: mh.dense(torch.ones(1, 1, 1, 3, 3).bool()), "has 5 axes"),
        (lambda: masks.read("causal() and window(3)"), "cannot read the mask"),
        (lambda: masks.read("__import__('os').system('true')"), "cannot read the mask"),
        (lambda: masks.read("causal("), "cannot read the mask"),
        (lambda: masks.read("documents(t1)", [torch.ones(3)]), "names t1, but 1 tensors came"),
    ],
)
def test_bad_masks_say_what_was_expected(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_and_or_not_are_caught():
    with pytest.raises(TypeError, match=r"join masks with & \| ~"):
        _ = mh.causal() and mh.window(3)
    with pytest.raises(TypeError):
        _ = mh.causal() & 3


def test_a_mask_of_ones_own_is_made_of_anything():
    """It prints, and is answered by the definition."""

    @frozen
    class strided(Mask):
        rate: float
        name: str
        odd: bool

        def allows(self, query, key, offset=0):
            return (key % 2 == self.odd)[None, None, None, :]

    @frozen
    class wrapped(Mask):
        inner: Mask

    assert not masks.known(wrapped(mh.causal()) & mh.window(3))
    assert masks.known(~mh.causal() & mh.window(3) | mh.prefix(2))
    mask = strided(1.5, "every other", True)
    assert repr(mask) == "strided(1.5, every other, True)"
    x = torch.randn(1, 2, 6, 8)
    found = mh.attend(x, x, x, mask=mask)
    assert torch.equal(found, mh.attend(x, x, x, mask=torch.arange(6) % 2 == 1, backend="dense"))
