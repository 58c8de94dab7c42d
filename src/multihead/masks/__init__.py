"""Who may look at whom.

A mask is a small frozen value. It answers two questions and never builds anything n × n:

- `allows(query, key, offset)`: for these query and key indices, who may look at whom;
- `blocks(query_edges, key_edges, offset)`: is each block of queries × keys EMPTY, PARTIAL or FULL?

Query `i` stands at position `i + offset` among the keys, so that one mask serves a whole sequence,
a chunk of it and a single decoding step. Masks compose with `&`, `|` and `~`, compare by value and
print as one writes them:

>>> here_or_first = causal() & window(3) | prefix(1)
>>> here_or_first
causal() & window(3) | prefix(1)
>>> print(here_or_first.draw(queries=4))
■ · ■ ■ ■ · · ·
■ · · ■ ■ ■ · ·
■ · · · ■ ■ ■ ·
■ · · · · ■ ■ ■
>>> read(*write(here_or_first)) == here_or_first
True
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

from torch import Tensor

from .by_data import dense, documents, padding
from .by_place import causal, offset, prefix, window
from .by_token import after_same_token, same_token
from .mask import EMPTY, FULL, PARTIAL, Mask, both, either, outside

__all__ = ["EMPTY", "FULL", "PARTIAL", "Mask", "known", "read", "write"]

# A new mask is one more line here: this is what `read` knows and what the shared tests try.
MASKS: dict[str, type[Mask]] = {
    "causal": causal,
    "window": window,
    "prefix": prefix,
    "offset": offset,
    "padding": padding,
    "documents": documents,
    "dense": dense,
    "same_token": same_token,
    "after_same_token": after_same_token,
}
__all__ += [*MASKS]


def write(mask: Mask) -> tuple[str, list[Tensor]]:
    """The mask as a line of text and the tensors it carries, for files and for compiled graphs.

    >>> write(causal() & padding([3, 5]))
    ('causal() & padding(t0)', [tensor([3, 5])])
    """
    tensors: list[Tensor] = []

    def number(data: Tensor) -> str:
        tensors.append(data)
        return f"t{len(tensors) - 1}"

    return mask.spell(number), tensors


def known(mask: Mask) -> bool:
    """Whether every mask in this one stands in the table, so that it can be written and read."""
    if isinstance(mask, both | either | outside):
        return all(known(part) for part in mask.parts() if isinstance(part, Mask))
    return MASKS.get(type(mask).__name__) is type(mask)


def read(text: str, tensors: Sequence[Tensor] = ()) -> Mask:
    """The mask that `write` wrote, or that a person did; no other code can run.

    >>> read("causal() & ~window(4)")
    causal() & ~window(4)
    """
    try:
        return _build(_parse(text), text, tensors)
    except RecursionError as error:
        raise ValueError("the mask is nested too deeply to be read; write it simpler.") from error


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise _unreadable(text) from error


def _build(node: ast.expr, text: str, tensors: Sequence[Tensor]) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _build(left, text, tensors) & _build(right, text, tensors)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _build(left, text, tensors) | _build(right, text, tensors)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return ~_build(inner, text, tensors)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in MASKS:
            given = [_argument(argument, text, tensors) for argument in arguments]
            try:
                return MASKS[name](*given)
            except TypeError as error:  # too many or too few
                raise _unreadable(text) from error
    raise _unreadable(text)


def _argument(node: ast.expr, text: str, tensors: Sequence[Tensor]) -> object:
    if isinstance(node, ast.Name) and node.id[:1] == "t" and node.id[1:].isdecimal():
        if (index := int(node.id[1:])) < len(tensors):
            return tensors[index]
        raise ValueError(f"the mask {text!r} names {node.id}, but {len(tensors)} tensors came.")
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise _unreadable(text) from error


def _unreadable(text: str) -> ValueError:
    return ValueError(
        f"cannot read the mask {text!r}; expected masks joined by & | ~, such as "
        f"'causal() & window(256)'.\n  masks: {', '.join(MASKS)}"
    )
