"""Decoding through a cache against the full pass, at every step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import multihead as mh

BATCH, D_MODEL, HEADS, KV_HEADS = 2, 24, 6, 3

LAYERS = {
    "causal": {"mask": mh.causal()},
    "rope": {"mask": mh.causal(), "rope": mh.rope(100.0)},
    "grouped": {"mask": mh.causal(), "num_kv_heads": KV_HEADS, "rope": mh.rope(100.0)},
    "window": {"mask": mh.causal() & mh.window(4), "rope": mh.rope(100.0)},
    "window_of_one": {"mask": mh.causal() & mh.window(1)},
    "window_or_first": {"mask": mh.causal() & (mh.window(3) | mh.prefix(2))},
    "previous": {"mask": mh.offset(-1) | mh.offset(-3)},
    "alibi": {"mask": mh.causal() & mh.window(5), "alibi": True},
    "everything": {
        "mask": mh.causal() & mh.window(6), "rope": mh.rope(100.0), "num_kv_heads": KV_HEADS,
        "head_dim": 8, "v_head_dim": 5, "qk_norm": True, "softcap": 3.0, "sinks": True,
        "head_gate": True,
    },
}  # fmt: skip


def build(name):
    torch.manual_seed(0)
    attn = mh.MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64, **LAYERS[name])
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return attn.eval()


def tokens(count, seed=1):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, count, D_MODEL, generator=random, dtype=torch.float64)


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", LAYERS)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(max_examples=8)
def test_token_by_token_and_in_chunks(name, grad, chunks):
    """Any way to cut a text gives the full pass; a small slack makes the buffer slide often."""
    attn, x = build(name), tokens(sum(chunks))
    with torch.set_grad_enabled(grad):
        cache = attn.new_cache(BATCH, 54)
        found = torch.cat([attn(part, cache=cache) for part in x.split(chunks, dim=1)], dim=1)
    same(found, attn(x))
    assert cache.seen == sum(chunks)


@pytest.mark.parametrize("name", ["window", "everything", "previous", "alibi"])
def test_a_window_runs_for_ever(name, monkeypatch):
    """The buffer stays as it is, however long the text; slid hundreds of times, it is still right."""
    monkeypatch.setattr("multihead.cache._SLACK", 2)
    attn, x = build(name), tokens(500)
    cache = attn.new_cache(BATCH, length=3)
    room = cache._key.shape[2]
    with torch.no_grad():
        found = torch.cat([attn(part, cache=cache) for part in x.split(1, dim=1)], dim=1)
        same(found, attn(x))
        again = attn.new_cache(BATCH, length=3)
        found = torch.cat([attn(part, cache=again) for part in x.split([90, 7, 3, 400], 1)], dim=1)
        same(found, attn(x))
    assert cache._key.shape[2] == room <= 12


@pytest.mark.parametrize("name", ["causal", "window_or_first"])
def test_past_its_length_it_raises_unharmed(name):
    attn, x = build(name), tokens(9)
    cache = attn.new_cache(BATCH, 7)
    with torch.no_grad():
        attn(x[:, :5], cache=cache)
        with pytest.raises(
            ValueError, match="room for 7 tokens and holds 5, but 3 more came; make a"
        ):
            attn(x[:, 5:8], cache=cache)
        assert cache.seen == 5
        same(attn(x[:, 5:7], cache=cache), attn(x[:, :7])[:, 5:])


@pytest.mark.parametrize("d_context", [None, 11])
def test_a_context_is_projected_once(d_context):
    torch.manual_seed(0)
    attn = mh.MultiHeadAttention(
        D_MODEL,
        HEADS,
        d_context=d_context,
        qk_norm=True,
        num_kv_heads=KV_HEADS,
        dtype=torch.float64,
    )
    x, context = tokens(5), torch.randn(BATCH, 13, d_context or D_MODEL, dtype=torch.float64)
    cache = attn.new_cache(BATCH, 13)
    whole = attn(x, context)
    same(attn(x[:, :2], context, cache=cache), whole[:, :2])
    same(attn(x[:, 2:4], cache=cache), whole[:, 2:4])
    assert cache.context
    assert cache.seen == 13
    with torch.no_grad():
        (attn.kv if d_context else attn.qkv).weight[
            -1
        ].zero_()  # the values' last row: not used again
    same(attn(x[:, 4:], cache=cache), whole[:, 4:])
    with pytest.raises(ValueError, match="holds a context already, and another came"):
        attn(x, 2 * context, cache=cache)
    with pytest.raises(ValueError, match="holds a context, which cannot be cut"):
        cache.truncate(1)


def test_beams_die_and_multiply():
    attn, x = build("grouped"), tokens(6)
    cache = attn.new_cache(BATCH, 10)
    with torch.no_grad():
        attn(x[:, :4], cache=cache)
        cache.reorder(torch.tensor([1, 1, 0]))
        rows = x[[1, 1, 0]]
        same(attn(rows[:, 4:], cache=cache), attn(rows)[:, 4:])
    with pytest.raises(ValueError, match=r"row numbers from 0 to 2, but \[3\] came"):
        cache.reorder(torch.tensor([3]))
    with pytest.raises(ValueError, match="1-D tensor of row numbers"):
        cache.reorder(torch.tensor([0.5]))


@pytest.mark.parametrize("name", ["rope", "window", "everything"])
def test_cut_back_and_go_on(name):
    attn, x = build(name), tokens(6)
    cache = attn.new_cache(BATCH, 20)
    with torch.no_grad():
        attn(x, cache=cache)
        cache.truncate(4)
        other = torch.cat([x[:, :4], tokens(4, seed=2)], dim=1)
        same(attn(other[:, 4:], cache=cache), attn(other)[:, 4:])
        cache.truncate(0)
        same(attn(x, cache=cache), attn(x))


def test_what_has_made_room_cannot_come_back(monkeypatch):
    monkeypatch.setattr("multihead.cache._SLACK", 2)
    attn, x = build("window"), tokens(30)  # sees itself and 3 keys back
    cache = attn.new_cache(BATCH, 30)
    with torch.no_grad():
        for part in x.split(1, dim=1):
            attn(part, cache=cache)
        with pytest.raises(ValueError, match="but those before .* have made room; cut back to"):
            cache.truncate(12)
        assert cache.seen == 30
        oldest = cache.seen - cache._held
        cache.truncate(oldest + 3)
        rest = x[:, oldest + 3 :]
        same(attn(rest, cache=cache), attn(x)[:, oldest + 3 :])
    with pytest.raises(ValueError, match="the cache has seen 30"):
        cache.truncate(31)


def test_gradients_flow_through_the_tokens_of_a_call():
    """As with a memory that is looked at and not trained through."""
    attn, x = build("rope"), tokens(7).requires_grad_()
    cache = attn.new_cache(BATCH, 7)
    attn(x[:, :4], cache=cache)
    (found,) = torch.autograd.grad(attn(x[:, 4:], cache=cache).sum(), x)
    assert found[:, :4].eq(0).all()
    (whole,) = torch.autograd.grad(attn(x)[:, 4:].sum(), x)
    same(found[:, 4:], whole[:, 4:])


def test_a_cache_says_what_it_cannot_do():
    x = tokens(3)
    for mask in (None, mh.window(3)):
        attn = mh.MultiHeadAttention(D_MODEL, HEADS, mask=mask, dtype=torch.float64)
        with pytest.raises(ValueError, match="no query may look ahead, but the mask is"):
            attn(x, cache=attn.new_cache(BATCH, 8))
    attn = build("window")
    with pytest.raises(ValueError, match="keeps 3 keys, and .*prefix.* looks at where keys stand"):
        attn(x, mask=mh.prefix(1), cache=attn.new_cache(BATCH, 8))
    with pytest.raises(ValueError, match=r"do not fit the cache(.|\n)*keys \(2, 6, 3, 4\)"):
        attn(x, cache=attn.new_cache(3, 8))
    with pytest.raises(ValueError, match="at least one batch row"):
        attn.new_cache(0, 8)
    held = attn.new_cache(BATCH, 8)
    attn(x, cache=held)
    other = mh.MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64)
    with pytest.raises(ValueError, match="holds 3 tokens and cannot hold a context too"):
        other(x, x, cache=held)
    with pytest.raises(ValueError, match="make another for new tokens"):
        kept = other.new_cache(BATCH, 8)
        other(x, x, cache=kept)
        kept.append(torch.zeros(2, 6, 1, 4), torch.zeros(2, 6, 1, 4))


def test_mixed_precision():
    attn, x = build("rope").float(), tokens(6).float()
    cache = attn.new_cache(BATCH, 6, dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        steps = torch.cat([attn(part, cache=cache) for part in x.split(2, dim=1)], dim=1)
        whole = attn(x)
    torch.testing.assert_close(steps.float(), whole.float(), rtol=0.05, atol=0.1)
    assert repr(cache) == "Cache(6 tokens, room for 6, batch 2, 6 heads, 1,152 bytes)"


def test_reach():
    inf = float("inf")
    assert (mh.causal() & mh.window(256)).reach() == (-255, 0)
    assert (mh.window(3) | mh.offset(5)).reach() == (-2, 5)
    assert mh.causal().reach() == (-inf, 0)
    assert (~mh.causal()).reach() == (-inf, inf)
    assert mh.prefix(3).reach() == (-inf, inf)
    assert mh.same_token([1, 2]).reach() == (-inf, -1)
    assert (mh.causal() & mh.window(3)).relative()
    assert not (mh.causal() & mh.prefix(3)).relative()


WRONG = {
    "bias": {"bias": torch.ones(7, 9)},
    "mask": {"mask": torch.ones(5, 5, dtype=torch.bool)},
    "rows": {"mask": mh.padding([1, 2, 3])},
    "text": {"mask": "causal"},
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["causal", "window"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_call_that_fails_leaves_the_cache_as_it_was(name, wrong, grad, monkeypatch):
    monkeypatch.setattr("multihead.cache._SLACK", 1)
    attn, x = build(name), tokens(12)
    with torch.set_grad_enabled(grad):
        cache = attn.new_cache(BATCH, 20)
        found = []
        for part in x.split(1, dim=1):
            with pytest.raises(ValueError):  # noqa: PT011
                attn(part, cache=cache, **WRONG[wrong])
            found.append(attn(part, cache=cache))
        same(torch.cat(found, dim=1), attn(x))


def test_a_failed_first_call_holds_no_context():
    attn = mh.MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64)
    x, cache = tokens(4), attn.new_cache(BATCH, 9)
    with pytest.raises(ValueError, match="does not broadcast"):
        attn(x, tokens(9), bias=torch.ones(3, 2), cache=cache)
    assert not cache.context
    same(attn(x, tokens(9), cache=cache), attn(x, tokens(9)))


def test_a_mask_that_reaches_further_than_the_cache():
    attn = build("window")
    cache = attn.new_cache(BATCH, 20)
    attn.mask = mh.causal()
    with pytest.raises(ValueError, match="keeps 3 keys, and causal.. looks further back"):
        attn(tokens(3), cache=cache)


def test_a_cache_of_another_dtype():
    attn, x = build("rope").float(), tokens(6).float()
    with torch.no_grad():
        cache = attn.new_cache(BATCH, 6, dtype=torch.bfloat16)
        found = torch.cat([attn(part, cache=cache) for part in x.split(2, dim=1)], dim=1)
    torch.testing.assert_close(found, attn(x), rtol=0.05, atol=0.1)


def test_gradients_of_what_is_not_in_the_keys():
    """Frozen keys, learnt sinks: steps that are kept for one backward do not harm one another."""
    attn, x = build("everything"), tokens(8)
    for name, parameter in attn.named_parameters():
        parameter.requires_grad_(name == "sinks")
    cache = attn.new_cache(BATCH, 8)
    loss = sum(attn(part, cache=cache).square().sum() for part in x.split(1, dim=1))
    loss.backward()
    found = attn.sinks.grad.clone()
    attn.sinks.grad = None
    attn(x).square().sum().backward()
    same(found, attn.sinks.grad)


@pytest.mark.parametrize(
    "call",
    [
        lambda cache: cache.truncate(2.5),
        lambda cache: cache.reorder([0, 1]),
        lambda cache: build("causal").new_cache(2, "10"),
        lambda cache: build("causal").new_cache(2, 10.5),
    ],
)
def test_wrong_types_are_said(call):
    cache = build("causal").new_cache(BATCH, 4)
    with pytest.raises(ValueError, match="; give|give whole"):
        call(cache)
