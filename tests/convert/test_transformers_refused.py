"""What of transformers cannot come along, and the error that says so."""

import pytest
from small_models import attention_modules, build
from torch import nn
from transformers.models.bert import modeling_bert
from transformers.models.phi import PhiConfig, modeling_phi

from multihead.convert import from_transformers
from multihead.convert.transformers import FAMILIES


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 5, "long_factor": [2.0] * 5,
         "original_max_position_embeddings": 32},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
    ],
    ids=["dynamic", "longrope", "partial"],
)  # fmt: skip
def test_a_rope_that_we_do_not_have_is_an_error(rope):
    given = {"rope_theta": 100.0, **rope}
    module = attention_modules(build("llama", rope_parameters=given))[0]
    with pytest.raises(ValueError, match="default, linear, yarn, llama3") as caught:
        from_transformers(module)
    assert str(rope["rope_type"]) in str(caught.value).splitlines()[-1]


def test_half_of_bert_is_an_error_that_names_the_whole():
    module = attention_modules(build("bert"))[0]
    for half in (module.self, modeling_bert.BertCrossAttention(module.self.config)):
        with pytest.raises(ValueError, match="no projection out.* pass the BertAttention"):
            from_transformers(half)


@pytest.mark.parametrize("where", ["module", "config"])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions_of_bert_are_an_error(kind, where):
    module = attention_modules(build("bert"))[0]
    owner = module.self if where == "module" else module.self.config
    owner.position_embedding_type = "absolute"
    from_transformers(module)
    owner.position_embedding_type = kind
    with pytest.raises(
        ValueError, match=f"'absolute': .*; keep .*\n  {where}.position_embedding_type '{kind}'"
    ):
        from_transformers(module)


def test_another_module_is_an_error_that_says_which_there_are():
    config = PhiConfig(hidden_size=12, num_attention_heads=3, num_key_value_heads=3)

    class LlamaAttention(nn.Module):
        """Of the same name, but from somewhere else."""

    for module in (modeling_phi.PhiAttention(config, 0), build("llama"), LlamaAttention()):
        with pytest.raises(ValueError, match="by hand") as caught:
            from_transformers(module)
        assert all(name in str(caught.value) for name in FAMILIES)
        assert str(caught.value).endswith(type(module).__qualname__)


@pytest.mark.parametrize("where", ["module", "config"])
@pytest.mark.parametrize("case", ["gpt2", "llama", "bert, decoder"])
def test_a_decoder_told_to_look_both_ways_is_an_error(case, where):
    module = attention_modules(build(case))[0]
    inner = getattr(module, "self", module)
    if where == "module":
        inner.is_causal = False
    else:
        inner.config.is_causal = False
    if case == "bert, decoder" and where == "module":
        assert from_transformers(module).mask is None
        return
    with pytest.raises(ValueError, match="is_causal False"):
        from_transformers(module)


def test_parts_that_become_one_must_be_alike():
    module = attention_modules(build("llama, biases"))[0]
    module.k_proj.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"k_proj.weight: .* requires_grad False"):
        from_transformers(module)
    module.k_proj.weight.requires_grad_(True)
    module.v_proj.bias = None
    with pytest.raises(ValueError, match="one bias must be there"):
        from_transformers(module)


def test_a_projection_that_is_more_than_its_weight_is_an_error():
    class Adapted(nn.Linear):
        """Something is added to its output."""

    module = attention_modules(build("llama"))[0]
    module.v_proj = Adapted(18, 30)
    with pytest.raises(ValueError, match="v_proj must be a plain linear map.*\n.*Adapted"):
        from_transformers(module)
