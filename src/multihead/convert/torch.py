"""`nn.MultiheadAttention` in and out."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..layer import MultiHeadAttention
from ..masks import Mask, dense
from .weights import Piece, give, load, take

TorchMask = Bool[Tensor, "..."] | Float[Tensor, "..."]


def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """The layer that does what an `nn.MultiheadAttention` does, with a copy of its weights.

        in_proj_weight [Q; K; V]                       ↦  qkv
        q_proj_weight, k_proj_weight, v_proj_weight    ↦  q, kv [K; V]; d_context = kdim = vdim

    What differs is how to call it:

    - It is batch first. For a module that is not, transpose on the way in and out.
    - Keys and values come from one place: `attn(x)`, or `attn(query, context)`.
    - It returns the output alone, not a pair.
    - In a mask, True means *may attend*; there it means *ignore*. Write `mask=~ignore`, or let
      `masks_from_torch` translate. For `is_causal=True` write `mask=mh.causal()`.
    - A query that may see nothing gets 0; there NaN.

    A module with kdim ≠ vdim is refused: its keys and values come from two places, and here both
    are read from one context. So are add_bias_kv and add_zero_attn, which add keys of their own.

    >>> theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    >>> ours, x = from_torch(theirs), torch.randn(2, 5, 12)
    >>> torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-6)
    True
    """
    _check(module)
    d_model, packed = module.embed_dim, module.in_proj_weight is not None
    layer = MultiHeadAttention(
        d_model, module.num_heads, d_context=None if packed else module.kdim,
        dropout=module.dropout, device="meta",
    )  # fmt: skip
    bias = take(module, "in_proj_bias")
    if packed:
        give(layer.qkv, "weight", take(module, "in_proj_weight"))
        give(layer.qkv, "bias", bias)
    else:
        give(layer.q, "weight", take(module, "q_proj_weight"))
        give(layer.kv, "weight", take(module, "k_proj_weight"), take(module, "v_proj_weight"))
        give(layer.q, "bias", bias and bias.cut(lambda rows: rows[:d_model]))
        give(layer.kv, "bias", bias and bias.cut(lambda rows: rows[d_model:]))
    load(layer.out, module, "out_proj")
    return layer.train(module.training)


def to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """The layer as an `nn.MultiheadAttention`, batch first, with a copy of its weights.

        qkv [Q; K; V]   ↦  in_proj_weight; a key head that g query heads read stands there g times
        q, kv [K; V]    ↦  q_, k_ and v_proj_weight, or in_proj_weight where d_context = d_model
        head_gate       ↦  a factor on the columns of out_proj.weight

    A layer with one of the two biases gets the other as zeros that are not trained. All that
    stands in the way is listed in one error. A mask goes into each call, where True = ignore.

    >>> layer = MultiHeadAttention(12, 6, num_kv_heads=2)
    >>> theirs, x = to_torch(layer), torch.randn(2, 5, 12)
    >>> torch.allclose(theirs(x, x, x)[0], layer(x), atol=1e-6)
    True
    """
    _check_expressible(layer)
    size = layer.d_context or layer.d_model
    weights, biases, out = _pieces(layer, "weight"), _pieces(layer, "bias"), _out_weight(layer)
    out_bias = take(layer.out, "bias")
    biased = biases[0] is not None or out_bias is not None
    module = nn.MultiheadAttention(
        layer.d_model, layer.num_heads, dropout=layer.dropout, bias=biased, kdim=size, vdim=size,
        batch_first=True, device="meta",
    )  # fmt: skip
    if size == layer.d_model:
        give(module, "in_proj_weight", *weights)
    else:
        for name, piece in zip("qkv", weights, strict=True):
            give(module, f"{name}_proj_weight", piece)
    give(module.out_proj, "weight", out)
    if biased:
        zeros = Piece("zeros", out.rows.new_zeros(layer.d_model), trained=False)
        give(module, "in_proj_bias", *(biases if biases[0] is not None else [zeros] * 3))
        give(module.out_proj, "bias", zeros if out_bias is None else out_bias)
    return module.train(layer.training)


def masks_from_torch(
    attn_mask: TorchMask | None = None,
    key_padding_mask: TorchMask | None = None,
    *,
    num_heads: int | None = None,
) -> tuple[Mask | None, Float[Tensor, "..."] | None]:
    """The masks of a call to `nn.MultiheadAttention` as a mask and a bias: `mask=`, `bias=`.

        boolean, True = ignore      ↦  mask, True = may attend
        floats, added to scores     ↦  bias

    `num_heads` is needed for an attn_mask of (batch · num_heads, queries, keys) alone.

    >>> ahead = torch.ones(3, 3, dtype=torch.bool).triu(1)
    >>> mask, bias = masks_from_torch(ahead, torch.tensor([[False, False, True]]))
    >>> print(mask.draw(3, 3), bias)
    ■ · ·
    ■ ■ ·
    ■ ■ · None
    """
    _check_masks(attn_mask, key_padding_mask, num_heads)
    if attn_mask is not None and attn_mask.ndim == 3:
        if num_heads is None or attn_mask.shape[0] % num_heads:
            raise ValueError(
                "an attn_mask of 3 axes is (batch · num_heads, queries, keys); "
                "give num_heads, as the module has it.\n"
                f"  attn_mask {tuple(attn_mask.shape)}  num_heads {num_heads}"
            )
        attn_mask = attn_mask.unflatten(0, (-1, num_heads))  # (batch, heads, queries, keys)
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask[..., None, None, :]  # (batch, 1, 1, keys)
    mask, bias = None, None
    for name, given in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if given is None:
            continue
        if given.dtype == torch.bool:
            mask = dense(~given) if mask is None else mask & dense(~given)
        elif given.is_floating_point():
            bias = given if bias is None else bias + given
        else:
            raise ValueError(
                f"{name} must be boolean (True = ignore) or floating-point (added to the scores), "
                f"but {given.dtype} came; convert it with .bool()."
            )
    return mask, bias


# ---- what cannot be carried ---------------------------------------------------------------------


def _check(module: nn.MultiheadAttention) -> None:
    if type(module) is not nn.MultiheadAttention:
        kind = type(module)
        raise ValueError(
            "from_torch takes an nn.MultiheadAttention itself, for a subclass may do something "
            "else; copy the weights into one, or see from_transformers.\n"
            f"  module: {kind.__module__}.{kind.__qualname__}"
        )
    two_places = f"kdim={module.kdim}, vdim={module.vdim}: keys and values from two places"
    _refuse(
        "MultiHeadAttention attends to the tokens of one context and to no others, and this "
        "module does more; train it without, or keep it as it is:",
        (module.bias_k is not None, "add_bias_kv=True: one more key and value, learnt"),
        (module.add_zero_attn, "add_zero_attn=True: one more key and value, all zeros"),
        (module.kdim != module.vdim, two_places),
    )


def _check_masks(attn_mask: object, key_padding_mask: object, num_heads: object) -> None:
    for name, given, axes, shapes in (
        ("attn_mask", attn_mask, (2, 3), "(queries, keys) or (batch · num_heads, queries, keys)"),
        ("key_padding_mask", key_padding_mask, (1, 2), "(keys) or (batch, keys)"),
    ):
        if given is None or (isinstance(given, Tensor) and given.ndim in axes):
            continue
        came = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(
            f"{name} must be a tensor of {shapes}, as the module takes it; make it one, or leave "
            f"it out.\n  {name} {came}"
        )
    if num_heads is not None and not (type(num_heads) is int and num_heads > 0):
        raise ValueError(
            "num_heads must be a whole number of 1 or more; give it as the module has it, or leave "
            f"it out.\n  num_heads {num_heads!r}"
        )


def _check_expressible(layer: MultiHeadAttention) -> None:
    if not isinstance(layer, MultiHeadAttention):
        kind = type(layer)
        raise ValueError(
            "to_torch takes a multihead.MultiHeadAttention; build one, or convert one with "
            f"from_torch or from_transformers.\n  layer: {kind.__module__}.{kind.__qualname__}"
        )
    d_model, heads, head_dim = layer.d_model, layer.num_heads, layer.head_dim
    product = f"num_heads · head_dim is {heads} · {head_dim}, where d_model is {d_model}"
    _refuse(
        "nn.MultiheadAttention cannot express all of this layer; keep the layer, or build one "
        "without:",
        (heads * head_dim != d_model, product),
        (layer.v_head_dim != head_dim, f"v_head_dim={layer.v_head_dim}, not head_dim {head_dim}"),
        (layer.d_out != d_model, f"d_out={layer.d_out}, not d_model {d_model}"),
        (layer.scale not in (None, head_dim**-0.5), f"scale={layer.scale}, not 1/√head_dim"),
        (layer.mask is not None, f"mask={layer.mask}: give attn_mask, True = ignore, in each call"),
        (layer.alibi is not None, f"alibi={layer.alibi}: give attn_mask, floats, in each call"),
        (layer.rope is not None, f"rope={layer.rope}"),
        (layer.q_norm is not None, "qk_norm=True"),
        (layer.softcap is not None, f"softcap={layer.softcap}"),
        (layer.sinks is not None, "sinks=True"),
    )


def _refuse(rule: str, *stops: tuple[bool, str]) -> None:
    """Raise one error that lists all that stands in the way, if anything does."""
    here = [stop for holds, stop in stops if holds]
    if here:
        raise ValueError(rule + "\n  " + "\n  ".join(here))


# ---- the layer in pieces ------------------------------------------------------------------------


def _pieces(layer: MultiHeadAttention, part: str) -> list[Piece | None]:
    """Weight or bias of queries, keys and values, each with num_heads · head_dim rows."""
    rows, kv_rows = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim

    def each_query_head(shared: Tensor) -> Tensor:
        heads = shared.unflatten(0, (layer.num_kv_heads, layer.head_dim))
        return heads.repeat_interleave(layer.num_heads // layer.num_kv_heads, 0).flatten(0, 1)

    if layer.d_context is None:
        whole = take(layer.qkv, part)
        query = whole and whole.cut(lambda t: t[:rows])
        pair = whole and whole.cut(lambda t: t[rows:])
    else:
        query, pair = take(layer.q, part), take(layer.kv, part)
    key = pair and pair.cut(lambda t: each_query_head(t[:kv_rows]))
    value = pair and pair.cut(lambda t: each_query_head(t[kv_rows:]))
    return [query, key, value]


def _out_weight(layer: MultiHeadAttention) -> Piece:
    weight = layer.out.weight
    rows = weight.detach()
    if layer.head_gate is not None:
        gate = layer.head_gate.detach().to(rows)
        rows = rows * gate.repeat_interleave(layer.v_head_dim)  # head h writes by its own columns
    return Piece("out.weight", rows, weight.requires_grad)
