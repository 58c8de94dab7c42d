"""Copying: does a head write what it reads? (Elhage et al. 2021, "A Mathematical Framework")

The circuit from a token read to a token written is W_E W_V W_O W_U, of rank head_dim. Its positive
eigenvalues are tokens that raise their own logit. The score is Σ λ / Σ |λ|, from −1 to 1; random
weights give about 0. |λ| is the complex modulus: eigenvalues that turn, λ and its conjugate, count
in full below the line and with their real part above it. The norms between are left out, as in the
paper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_VALUE, _OUT = ("v_proj", "value", "value_proj"), ("o_proj", "out_proj", "out", "dense")


@torch.no_grad()
def copying(model: nn.Module) -> list[dict[str, Any]]:
    """One dict a head whose value and output weights are at hand: layer, head, copying.

    For models of transformers with separate value projections (LLaMA, Mistral, Qwen, Gemma, OPT);
    others give an empty list.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a model is an nn.Module, but a {type(model).__name__} came; give the model itself."
        )
    read = getattr(model, "get_input_embeddings", lambda: None)()
    write = getattr(model, "get_output_embeddings", lambda: None)()
    if read is None or write is None:
        return []
    # (W_U W_E) once: everything else is of head_dim.
    middle = (write.weight.float().T @ read.weight.float()).T  # (model, model): W_Eᵀ W_U
    rows, index = [], 0
    for _, module in model.named_modules():
        value, out = _child(module, _VALUE), _child(module, _OUT)
        if value is None or out is None:
            continue
        dim = getattr(module, "head_dim", None)
        if dim is None or out.shape[1] % dim or value.shape[0] % dim:
            continue
        heads, group = out.shape[1] // dim, out.shape[1] // value.shape[0]
        for head in range(heads):
            kv = head // group
            into = value[kv * dim : (kv + 1) * dim].float()  # (dim, model)
            back = out[:, head * dim : (head + 1) * dim].float()  # (model, dim)
            eigenvalues = torch.linalg.eigvals(into @ middle @ back)
            # They come in conjugate pairs, so that their sum is real.
            score = float(eigenvalues.sum().real / eigenvalues.abs().sum().clamp(min=1e-30))
            rows.append({"layer": index, "head": head, "copying": score})
        index += 1
    return rows


def _child(module: nn.Module, names: tuple[str, ...]) -> Tensor | None:
    for name in names:
        child = getattr(module, name, None)
        if isinstance(child, nn.Linear):
            return child.weight
    return None
