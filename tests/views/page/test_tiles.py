"""Every number that the page is sent, against the same worked out by hand from the whole map."""

import pytest
import torch
from dense_maps import close
from map_cases import CASES, asked, by_hand, case, made

import multihead as mh
from multihead.views.page.cache import Cache
from multihead.views.page.session import Session
from multihead.views.page.shown import Shown
from multihead.views.page.thumbs import THUMB
from multihead.views.page.tiles import BY, FEWEST, POOLS, SIDE, Map, build, factors, pooled_layer


def shown_of(rec):
    return Shown(rec, "a text", Cache(2**26), {})


def sent(shown, which, factor, pool):
    """The level as the tiles give it, put together."""
    layer = shown.rec.layer(which.layer)
    size = [-(-n // factor) for n in (layer.queries, layer.keys)]
    down, across = (-(-n // SIDE) for n in size)
    rows = []
    for row in range(down):
        parts = []
        for column in range(across):
            cells = shown.tile(which, factor, row, column, pool)
            high, wide = (
                min(SIDE, n - SIDE * at) for n, at in zip(size, (row, column), strict=True)
            )
            parts.append(torch.frombuffer(bytearray(cells), dtype=torch.half).view(high, wide))
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows)


@pytest.mark.parametrize("hidden", [(), (0, 3, 259)], ids=["shown", "hidden"])
@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", CASES)
def test_every_tile_and_every_range(name, by, hidden):
    rec, batch, allowed = case(name)
    which, shown = Map(0, 1, batch, by, hidden), shown_of(rec)
    ranges = shown.range(which)
    every = factors(rec.layers[0])
    assert {*ranges} == {str(factor) for factor in every}
    assert every[-1] * FEWEST >= max(allowed.shape) > every[-1] * FEWEST // 2
    for factor in every:
        for pool in POOLS:
            expected = by_hand(rec, which, allowed, factor, pool)
            found = sent(shown, which, factor, pool)
            assert torch.equal(found.isnan(), expected.isnan())  # exactly where nobody may look
            torch.testing.assert_close(
                found.double(), expected, rtol=1e-3, atol=1e-7, equal_nan=True
            )
            most = float(expected.nan_to_num(0.0).max())
            assert ranges[str(factor)][pool] == pytest.approx(most, rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_at_once_is_what_its_pyramids_are(name):
    rec, batch, allowed = case(name)
    hidden = [(), (0, 3, 259)]
    factor = factors(rec.layers[0])[-1]
    layer = rec.layers[0]
    every = pooled_layer(rec, layer, batch, factor, [*hidden, *[()] * (layer.heads - 2)])
    for head, keys in enumerate(hidden):
        which = Map(0, head, batch, hidden=keys)
        level = build(rec, which).levels[factor].shown("largest", "weight")
        torch.testing.assert_close(every[head], level, rtol=0, atol=4e-6, equal_nan=True)
        expected = by_hand(rec, which, allowed, factor, "largest")
        close(every[head].nan_to_num(-1), expected.nan_to_num(-1), 4e-6)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", CASES)
def test_a_cell_is_its_largest_link(name, by):
    rec, batch, allowed = case(name)
    which, shown = Map(0, 1, batch, by, (0, 3)), shown_of(rec)
    p = rec.weights(0, 1, by="norm" if by == "norm" else "weight", batch=batch).double()
    ordered = p * allowed.sum(1, keepdim=True) if by == "uniform" else p
    seen = allowed.clone()
    seen[:, [0, 3]] = False
    for factor in factors(rec.layers[0]):
        for at in ((0, 0), (100 // factor, 3 // factor), (259 // factor, 200 // factor)):
            here = tuple(slice(factor * n, factor * (n + 1)) for n in at)
            told = shown.cell(which, factor, *at)
            assert told["pairs"] == int(seen[here].sum())
            if not told["pairs"]:
                assert (told["value"], told["sum"]) == (None, None)
                continue
            best = ordered[here].masked_fill(~seen[here], -1)
            place = divmod(int(best.argmax()), best.shape[1])
            link = (place[0] + here[0].start, place[1] + here[1].start)
            assert (told["query"], told["key"]) == link
            assert told["value"] == pytest.approx(float(p[link]), rel=1e-6, abs=1e-6)
            assert told["sum"] == pytest.approx(float((p * seen)[here].sum()), abs=1e-5)


@pytest.mark.parametrize("by", ["weight", "norm"])
@pytest.mark.parametrize("name", CASES)
def test_rows_and_columns_are_exact(name, by):
    rec, batch, _ = case(name)
    which, shown = Map(0, 1, batch, by), shown_of(rec)
    p, real = rec.weights(0, 1, by=by, batch=batch), rec.real_rows(rec.layers[0])
    by_text = p if real is None else p * real[batch, :, None]  # who looks: no row of padding
    for place in (0, 1, 199, 269):
        for ask, line in ((shown.row, p[place]), (shown.column, by_text[:, place])):
            told = ask(which, place)
            assert told["weights"] == pytest.approx(line.tolist(), rel=2e-6, abs=1e-6)
            top = [w for _, w in told["top"]]
            best = [w for w in line.sort(descending=True).values.tolist()[:8] if w > 0]
            assert top == pytest.approx(best, rel=2e-6, abs=1e-6)
            assert top == pytest.approx([float(line[at]) for at, _ in told["top"]], rel=2e-6)
            assert told["sum"] == pytest.approx(float(line.sum()), rel=1e-5)


def test_what_is_loaded_sends_the_same_bytes(tmp_path):
    for name in ("padded", "steps"):
        rec, batch, _ = case(name)
        rec.save(tmp_path / name)
        one, two = shown_of(rec), shown_of(mh.load(tmp_path / name))
        for which in (
            Map(0, 0, batch),
            Map(0, 1, batch, "norm", (0,)),
            Map(0, 1, batch, "uniform"),
        ):
            assert one.range(which) == two.range(which)
            for factor in factors(rec.layers[0]):
                assert one.tile(which, factor, 0, 0, "mean") == two.tile(
                    which, factor, 0, 0, "mean"
                )
        assert one.home(batch)["heads"] == two.home(batch)["heads"]


@pytest.mark.parametrize("tokens", [517, 1024])
def test_a_uniform_head_is_flat(tokens):
    zero = torch.zeros(1, 1, tokens, 4)
    rec = asked(zero, zero)
    shown, which = shown_of(rec), Map(0, 0, by="uniform")
    for factor in factors(rec.layers[0]):
        for pool in POOLS:
            cells = sent(shown, which, factor, pool)
            there = cells[~cells.isnan()]
            assert (there - 1).abs().max() <= 2e-3
            assert not cells.diagonal().isnan().any()
    assert all(most == pytest.approx(1) for level in shown.range(which).values() for most in level.values())  # fmt: skip


# ---- sinks


def test_sinks_are_hidden_until_they_are_asked_for():
    q, k = torch.ones(1, 1, 300, 4), made(1, 1, 300, 4)
    k[:, :, 3] = 4.0  # the head rests on this key
    rec = asked(q, k)
    session = Session()
    number = session.add(rec, "a text", {})
    p = rec.weights(0, 0)
    share = p.sum(0) / torch.arange(300, 0, -1)
    assert share[3] > 0.3
    assert share[4:200].max() < 0.3
    keys = (share[:225] > 0.3).nonzero()[:, 0].tolist()
    head = session.home(number, 0)["heads"][0]
    assert head["sinks"] == keys
    assert head["hidden"] == pytest.approx(float(p[:, keys].sum() / 300), abs=1e-4)
    shown, hide = session.map(number, Map(0, 0), hide=True)
    assert hide.hidden == tuple(keys)
    assert session.map(number, Map(0, 0), hide=False)[1].hidden == ()
    named = session.map(number, Map(0, 0), hide=(2, 5, 10**6))[1]
    assert named.hidden == (2, 5)  # of another map, which may be longer
    allowed = torch.ones(300, 300, dtype=torch.bool).tril()
    expected = by_hand(rec, hide, allowed, 2, "largest")
    close(sent(shown, hide, 2, "largest").nan_to_num(-1), expected.nan_to_num(-1), 1e-3)


def test_a_sink_of_a_generated_text_is_one_of_all_its_rows():
    """The mean over all rows: those of the prefill and those of the steps are not added up."""
    rec, _, _ = case("steps")
    layer = rec.layers[0]
    for head in range(layer.heads):
        p = rec.weights(0, head)
        rows = layer.queries - torch.arange(layer.keys)
        share = p.sum(0) / rows.clamp(min=1)
        kept = share[: layer.keys - layer.keys // 4]
        assert shown_of(rec).sinks(layer, head, 0) == tuple((kept > 0.3).nonzero()[:, 0].tolist())
        told = shown_of(rec).head(Map(0, head), strips=("received_mean",))
        strip = told["strips"]["received_mean"]
        assert strip == pytest.approx(share.tolist(), abs=1e-4)


# ---- what cannot be shown says why


def test_what_is_not_there_says_why():
    zero = torch.zeros(1, 1, 20, 4)
    rec = asked(zero, zero, stats=("entropy",))
    shown = shown_of(rec)
    with pytest.raises(ValueError, match="no output projection was found"):
        shown.tile(Map(0, 0, by="norm"), 1, 0, 0, "largest")
    told = shown.head(Map(0, 0))
    assert (told["norm_found"], told["moves"], told["sinks"]) == (False, None, [])
    assert shown.home()["heads"][0]["hidden"] == 0
    rec = asked(zero, zero, keep_qk=False)
    assert shown_of(rec).home()["layers"][0]["maps"] is False
    for ask in (lambda s: s.tile(Map(0, 0), 1, 0, 0, "mean"), lambda s: s.row(Map(0, 0), 3)):
        with pytest.raises(ValueError, match="keep_qk=True"):
            ask(shown_of(rec))


@pytest.mark.parametrize("batch", [2, 10**8])
def test_a_text_that_is_not_there(batch):
    shown = shown_of(case("padded")[0])
    for ask in (shown.home, shown.thumbs, lambda b: shown.head(Map(0, 0, b))):
        with pytest.raises(ValueError, match="batch must be 0 to 1"):
            ask(batch)


def test_a_plain_recording_has_thumbnails_and_sinks_too():
    """With the default statistics there is no heat map and no mean: both follow from what is."""
    torch.manual_seed(3)
    attn = mh.MultiHeadAttention(16, 4, num_kv_heads=2, mask=mh.causal())
    x = torch.randn(2, 96, 16)
    x[:, 0] *= 8  # a key that rows rest on
    with torch.no_grad(), mh.record(attn) as plain:
        attn(x)
    more = (*mh.recording.DEFAULT, "received_mean", mh.heatmap(THUMB))
    with torch.no_grad(), mh.record(attn, stats=more) as rich:
        attn(x)
    for batch in range(2):
        assert shown_of(plain).thumbs(batch) == shown_of(rich).thumbs(batch)
    found = [shown_of(plain).sinks(plain[0], head, 1) for head in range(4)]
    assert found == [shown_of(rich).sinks(rich[0], head, 1) for head in range(4)]
    assert any(found)
