"""Triton's interpreter, but for what it does again at each call of a function inside of a kernel.

There it looks through the whole language for words to replace by its own, which takes a third of
all time, though they were replaced when the kernel began.
"""

import inspect

import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    replace, nothing = interpreter._patch_lang, getattr(interpreter, "_LangPatchScope", None)
    if nothing is None:  # another Triton
        return

    def once(function):
        words = [
            m for m in function.__globals__.values() if inspect.ismodule(m) and m in (tl, tl.core)
        ]
        if not words or any(tl.core.is_builtin(each.load) for each in words):
            return replace(function)
        return nothing()

    interpreter._patch_lang = once
