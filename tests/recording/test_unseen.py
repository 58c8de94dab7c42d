"""A model that works attention out by hand is refused with a reason, never half seen."""

import pytest
import torch
from architectures import BERT, VOCABULARY, Architecture, build, inputs
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import multihead as mh

SMALL = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {**SMALL, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_inner": 8, "rotary_dim": 4}
APART = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
BY_HAND = {
    "bloom": Architecture("bloom", {**SMALL, "hidden_size": 24, "n_layer": 2, "n_head": 3}),
    "falcon": Architecture("falcon", {
        **SMALL, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_kv_heads": 3, "ffn_hidden_size": 8}),
    "gptj": Architecture("gptj", GPT),
    "codegen": Architecture("codegen", GPT),
    "gpt_neo": Architecture("gpt_neo", {
        **SMALL, "hidden_size": 24, "num_layers": 2, "num_heads": 3,
        "attention_types": [[["global"], 2]]}),
    "deberta": Architecture("deberta", {**BERT, **APART}, "encoder"),
    "deberta-v2": Architecture("deberta-v2", {**BERT, **APART}, "encoder"),
    "mpt": Architecture("mpt", {
        **SMALL, "d_model": 24, "n_heads": 3, "n_layers": 2, "max_seq_len": 32}),
    "xlnet": Architecture("xlnet", {
        **SMALL, "d_model": 24, "n_head": 3, "n_layer": 2, "d_inner": 8}, "encoder"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # DeBERTa's own
@pytest.mark.parametrize("name", BY_HAND)
def test_attention_by_hand_is_refused_with_a_reason(name):
    model = build(BY_HAND[name], "eager")
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="softmax of its own in .*|no attention call"),
        mh.record(model),
    ):
        model(**inputs("decoder"))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("bloom", "use F.scaled_dot_product_attention"),
        ("mpt", "use F.scaled_dot_product_attention"),
        ("gptj", "use F.scaled_dot_product_attention"),
        ("gpt_neo", "use F.scaled_dot_product_attention"),
        ("falcon", "load it with attn_implementation='sdpa'"),
    ],
)
def test_the_advice_is_one_that_can_be_taken(name, advice):
    model = build(BY_HAND[name], "eager")
    with torch.no_grad(), pytest.raises(ValueError, match=advice), mh.record(model):
        model(**inputs("decoder"))


def test_falcon_is_seen_as_sdpa():
    import architectures
    from dense_maps import check_maps

    model = build(BY_HAND["falcon"], "sdpa")
    with torch.no_grad(), mh.record(model) as rec:
        model(**inputs("decoder"))
    maps = architectures.maps(build(BY_HAND["falcon"], "eager"), **inputs("decoder"))
    check_maps(rec, rec.layers, maps)
    assert all(layer.output_norm() is not None for layer in rec.layers)  # input @ weight.T


class HalfSeen(nn.Module):
    """One layer by SDPA, one by hand."""

    def __init__(self, softmax):
        super().__init__()
        self.seen, self.unseen = nn.Linear(6, 6), ByHand(softmax)

    def forward(self, x):
        y = self.seen(x)[:, None]
        return self.unseen(nn.functional.scaled_dot_product_attention(y, y, y)[:, 0])


class ByHand(nn.Module):
    def __init__(self, softmax):
        super().__init__()
        self.softmax = softmax

    def forward(self, x):
        x = x.unflatten(-1, (2, 3)).transpose(1, 2)
        return self.softmax(x @ x.mT) @ x


SOFTMAXES = {
    "torch.softmax": lambda s: torch.softmax(s, -1),
    "F.softmax": lambda s: nn.functional.softmax(s, dim=-1),
    "Tensor.softmax": lambda s: s.softmax(-1),
    "by name": lambda s: torch.softmax(input=s, dim=-1),
    "nn.Softmax": nn.Softmax(-1),
    "log_softmax": lambda s: s.log_softmax(-1).exp(),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_a_model_that_is_seen_in_part_is_refused(name):
    model = HalfSeen(SOFTMAXES[name])
    with pytest.raises(ValueError, match="softmax of its own in unseen"), mh.record(model):
        model(torch.randn(2, 5, 6))


def test_attention_by_distances_is_no_less_attention():
    class Near(nn.Module):
        def forward(self, x):
            return (-torch.cdist(x, x)).softmax(-1) @ x

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.near, self.codes = Near(), nn.Parameter(torch.randn(7, 6))

        def forward(self, x):
            y = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
            return self.near(y) if self.training else y - self.codes[self.nearest(y)]

        def nearest(self, y):
            return torch.cdist(y, self.codes).argmin(-1)

    model, x = Both(), torch.randn(2, 5, 6)
    with torch.no_grad(), pytest.raises(ValueError, match="its own in near"), mh.record(model):
        model(x)
    with torch.no_grad(), mh.record(model.eval()) as rec:  # a code that is nearest weighs nothing
        model(x)
    assert len(rec.layers) == 1


KERNELS = {
    "flex_attention": lambda x: flex_attention(x, x, x),
    "aten": lambda x: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)[0],
    "an overload": lambda x: torch.ops.aten.scaled_dot_product_attention.default(x, x, x),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_kernel_called_past_us_is_told(name):
    class Inner(nn.Module):
        def forward(self, x):
            return KERNELS[name](x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(nn.functional.scaled_dot_product_attention(x, x, x))

    model = Outer()
    with torch.no_grad(), pytest.raises(ValueError, match="in inner"), mh.record(model):
        model(torch.randn(1, 2, 128, 16))


def test_allow_unseen_records_the_rest():
    model = HalfSeen(SOFTMAXES["F.softmax"])
    with mh.record(model, allow_unseen=True) as rec:
        model(torch.randn(2, 5, 6))
    assert [layer.queries for layer in rec.layers] == [5]


def test_a_model_that_was_never_called():
    model = nn.TransformerEncoderLayer(8, 2)
    reason = "no attention call of TransformerEncoderLayer was seen"
    with pytest.raises(ValueError, match=reason), mh.record(model):
        pass
    with mh.record(model, allow_unseen=True) as rec:
        pass
    assert rec.layers == []
    assert rec.heads() == []
