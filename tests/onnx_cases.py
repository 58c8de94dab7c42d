"""The node cases of the ONNX standard, as tensors."""

import importlib.util
from typing import NamedTuple
from unittest import mock

import numpy as np
import onnx.backend.test.case.node as onnx_node
import torch
from onnx.helper import get_attribute_value
from torch import Tensor


class Case(NamedTuple):
    """A case as ONNX tells it: its tensors and settings by name, and the outputs it expects."""

    inputs: dict[str, Tensor]
    settings: dict[str, int | float]
    outputs: dict[str, Tensor]


def collect(module: str, operator: str) -> dict[str, Case]:
    """Every case of one operator, by name.

    A fresh copy of ONNX's module runs against our own `expect`: `collect_testcases` imports each
    module once in a process, and would find nothing for a second operator.
    """
    cases = {}

    def expect(node, inputs, outputs, name, **_):
        assert node.op_type == operator
        settings = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
        cases[name] = Case(_named(node.input, inputs), settings, _named(node.output, outputs))

    spec = importlib.util.find_spec(f"{onnx_node.__name__}.{module}")
    with mock.patch.object(onnx_node, "expect", expect):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return cases


def _named(names, arrays) -> dict[str, Tensor]:
    """Tensors by name; ONNX calls one that is left out "" and gives no array for it."""
    return dict(zip(filter(None, names), map(_tensor, arrays), strict=True))


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype.name == "bfloat16":  # numpy knows it only as a guest; float32 holds it exactly
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array)
