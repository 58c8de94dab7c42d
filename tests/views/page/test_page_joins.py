"""How heads join: what each moves, measured where the model is at hand, and else the most it can be."""

import pytest
import torch
from pages import TEXT, loaded, look, redrawn, said, serve, tiny, tiny_session, until
from small_reports import save_model

import multihead as mh
from multihead.views.page.session import Session
from multihead.views.page.tiles import Map


def truth(model, ids: torch.Tensor, real: torch.Tensor | None = None) -> dict[int, list[float]]:
    """The mean ‖context · W_O‖ of each head, in float64, from what the model gives its W_O."""
    found, hooks = {}, []
    for index, layer in enumerate(model.model.layers):
        part = layer.self_attn.o_proj

        def hear(module, given, index=index):
            context = given[0][0].double().unflatten(-1, (3, 8))  # (row, heads, dim)
            weight = module.weight.double().T.unflatten(0, (3, 8))  # (heads, dim, model)
            moved = torch.einsum("rhd,hdm->rhm", context, weight).norm(dim=-1)
            found[index] = (
                moved[real].mean(0).tolist() if real is not None else moved.mean(0).tolist()
            )

        hooks.append(part.register_forward_pre_hook(hear))
    mask = {} if real is None else {"attention_mask": real[None].long()}
    with torch.no_grad():
        model(ids, **mask)
    for hook in hooks:
        hook.remove()
    return found


def bars(page) -> list[float]:
    page.wait_for_selector("svg.joins")
    return [float(t) for t in page.locator("svg.joins g text").all_text_contents()[::2]]


def test_what_each_head_moves_is_measured(new_page):
    session = tiny()[0]
    page = look(new_page(), tiny()[1], view="head", layer=1, head=2, tab="joins")
    moves = truth(loaded()[0], session.of("0").rec.ids)
    assert bars(page) == pytest.approx(moves[1], abs=0.006)
    most = session.of("0").head(Map(1, 2, 0))["moves"]
    assert all(one < 0.95 * other for one, other in zip(moves[1], most, strict=True))
    assert "measured in one more run" in page.locator(".panel").inner_text()
    assert (
        page.locator("svg.joins")
        .get_attribute("aria-label")
        .startswith(f"head 2 moves {said(moves[1][2])},")
    )
    shared = page.locator(".panel dd").first
    assert shared.inner_text() == "0, the only one, shared by 3 heads"
    page.locator("svg.joins g.click").first.click()
    until(page, "document.querySelector('h1').textContent === '1.0'")
    redrawn(page, "m.shown.map.head === 0")


def test_without_a_model_it_is_the_most_it_can_be_and_says_so(new_page, from_disk):
    rec = tiny()[0].of("0").rec
    alone = Session()
    alone.add(rec, "a text", {"model": "tiny"})
    moves = (rec.layer(1)["received"][0] * rec.layer(1).output_norm()[0]).sum(-1) / 60
    for page in (
        look(new_page(), serve(alone), view="head", layer=1, head=2, tab="joins"),
        from_disk(tiny_session(), [(1, 2)], view="head", layer=1, head=2, tab="joins"),
    ):
        assert bars(page) == pytest.approx(moves.tolist(), abs=0.006)
        assert "the most that the head can move" in page.locator(".panel").inner_text()
        assert "moves at most" in page.locator("svg.joins").get_attribute("aria-label")


def test_the_model_runs_once_for_all_layers():
    session, runs = tiny_session(), []
    hook = session.model.register_forward_pre_hook(lambda *_: runs.append(1))
    found = [session.outputs("0") for _ in range(3)]
    hook.remove()
    assert len(runs) == 1
    assert found[0] == found[2]
    moves = truth(session.model, session.of("0").rec.ids)
    for layer in (0, 1):
        assert found[0][str(layer)] == pytest.approx(moves[layer], rel=1e-3)


def test_padding_is_no_row_of_it():
    model, tokenizer = loaded()
    ids = torch.tensor([tokenizer(TEXT)["input_ids"], [0] * 29 + tokenizer(TEXT)["input_ids"][:31]])
    mask = torch.ones_like(ids)
    mask[1, :29] = 0
    with torch.no_grad(), mh.record(model, tokenizer=tokenizer) as rec:
        model(ids, attention_mask=mask)
    session = Session(model, tokenizer, "tiny")
    session.add(rec, "two", {})
    moves = truth(model, ids[1:], mask[1].bool())
    assert session.outputs("0", 1)["1"] == pytest.approx(moves[1], rel=1e-3)


def test_a_recording_of_another_model_is_refused(new_page, tmp_path):
    other, _ = mh.load_model(str(save_model(tmp_path)))
    with torch.no_grad():
        for layer in other.model.layers:
            layer.self_attn.o_proj.weight *= 0.2
    ids = tiny()[0].of("0").rec.ids
    with torch.no_grad(), mh.record(other, tokenizer=loaded()[1]) as rec:
        other(ids)
    session = Session(*loaded(), "tiny")
    session.add(rec, "another", {})
    with pytest.raises(ValueError, match="move more in this model than was recorded"):
        session.outputs("0")
    with pytest.raises(ValueError, match="nothing can be measured without the model"):
        alone = Session()
        alone.add(rec, "another", {})
        alone.outputs("0")
    page = look(new_page(), serve(session), view="head", layer=1, head=2, tab="joins")
    page.get_by_role("alert").wait_for()
    assert "Not measured: the heads of layer 0 move more" in page.get_by_role("alert").inner_text()
    bars(page)
    assert "the most that the head can move" in page.locator(".panel").inner_text()
    assert len([said for said in page.troubles if "400" in said or "outputs.json" in said]) >= 1
    page.troubles.clear()
