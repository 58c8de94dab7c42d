"""Interception: every attention call of a model, in whatever words, goes by here.

    model ── F.scaled_dot_product_attention ─┐
          ── F.multi_head_attention_forward ─┤→ Call → hands, in order → out, in the caller's words
          ── attend ─────────────────────────┤
          ── transformers' interface ────────┘

A *hand* is what record, ablate, cut and head_importance lay on a call: it may change the question,
answer it, or change the answer. Several can lie on one model at once, and share one watch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..attention import attend
from ..observation import observe
from .call import Call, of_attend, of_multihead, of_observe, of_sdpa
from .encoder import as_fast_paths_give
from .names import Path, identity, in_backward, in_checkpoint
from .projection import PRODUCTS, projection_in
from .quiet import Aside
from .refusals import refuse_mapped, refuse_traced
from .scripted import refuse_functions, refuse_modules
from .transformers import borrowed
from .unseen import Unseen

_READERS = {
    F.scaled_dot_product_attention: of_sdpa,
    F.multi_head_attention_forward: of_multihead,
    attend: of_attend,
    observe: of_observe,
}


class Place:
    """One place of a model where attention is called: its number, by first call, and name."""

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name


class Hand:
    """What can be done to a call; each method may be left as it is."""

    recomputes = True  # whether a forward that is run again for its gradient does no harm
    beside = False  # whether it only looks on, while the model's own function answers

    def begin(self) -> None:
        """A forward pass of the model begins."""

    def question(self, place: Place, call: Call) -> Call:
        return call

    def answer(self, place: Place, call: Call) -> Tensor | None:
        """The output, if this hand works it out."""
        return None

    def output(self, place: Place, call: Call, out: Tensor) -> Tensor:
        return out

    def projected(self, place: Place, weight: Tensor) -> None:
        """The output projection of the layer's last call, (heads · value_dim, model)."""


class Watch:
    """The hands on one model, and the way a call takes through them."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.hands = model, []
        self.mode = _Mode(self)
        self.aside = Aside(self.mode, self._may_pass)
        self.path = Path(model, self._begin, self._runs_again, self.aside)
        self.places: dict[tuple[str, int], Place] = {}  # by path, and the how-manieth call there
        self.unseen = Unseen(self.path.every.values())
        self.calls = 0
        self._looked = False  # for scripted functions
        self._count: dict[str, int] = {}
        self.busy = False  # with a call: what it does to answer it is no call of the model
        self._asking: tuple[Place, Tensor] | None = None  # whose output projection is awaited

    def _begin(self) -> None:
        if self.calls:  # a second pass begins: better late than at the end of them all
            self.refuse_functions()
        self._count = {}
        for hand in self.hands:
            hand.begin()

    def _runs_again(self) -> None:
        """A forward is run once more for its gradient (activation checkpointing)."""
        if not self._may_run_again:
            raise ValueError(
                "a forward that is run again in backward (activation checkpointing) cannot be cut, "
                "ablated or given a floor: the second run would be another; switch checkpointing "
                "off."
            )

    @property
    def _may_run_again(self) -> bool:
        return all(hand.recomputes for hand in self.hands)

    def _may_pass(self, args: Any) -> bool:
        """Whether a module that hides no attention may go by unseen with what it is given."""
        return self._asking is None and self.unseen.is_far(args)

    def _place(self) -> Place | None:
        name = self.path.name
        if name is None:
            return None
        again = self._count.get(name, 0)
        self._count[name] = again + 1
        full = name if again == 0 else f"{name}#{again}"
        return self.places.setdefault((name, again), Place(len(self.places), full))

    def handle(self, call: Call) -> Any:
        """A call by a model's own words → the answer in the same."""
        if self.busy:  # a hand asks the model's own function
            return call.plain() if call.plain else call.answered(call.attend())
        # Our mode goes out of the way: what is done to answer a call need not come by it, a hundred
        # times. Only where it lies on top: somebody else's, laid over it, is none of our business.
        top = torch.overrides._get_current_function_mode()
        ours = isinstance(top, _Mode)  # or that of another model that is watched
        self.busy = True
        if ours:
            torch._C._pop_torch_function_stack()
        try:
            return self._handle(call)
        finally:
            self.busy = False
            if ours:
                torch._C._push_on_torch_function_stack(top)

    def _handle(self, call: Call) -> Any:
        refuse_traced(call.query)
        refuse_mapped(call.query, call.key, call.value)
        # Backward may come when no hand lies here any more: what changes must be refused before.
        if in_backward() or (not self._may_run_again and in_checkpoint()):
            self._runs_again()
        place = None if in_backward() else self._place()
        if place is None:
            return call.plain() if call.plain else call.answered(call.attend())
        self.calls += 1
        asked = call
        for hand in self.hands:
            call = hand.question(place, call)
        # Dropout, and weights that were asked for, are the model's own affair while nothing is cut.
        untouched = call is asked and all(type(h).output is Hand.output for h in self.hands)
        if untouched and call.plain and all(hand.beside for hand in self.hands):
            with torch.no_grad():
                for hand in self.hands:
                    hand.answer(place, call)
            return call.plain()
        own = call.plain if untouched and (call.only_plain or self.leaves_no_trace()) else None
        stops = own is not None and torch.is_grad_enabled()
        with torch.no_grad() if stops else contextlib.nullcontext():
            outs = [hand.answer(place, call) for hand in self.hands]
            found = next((out for out in reversed(outs) if out is not None), None)
            out = found if found is not None and (own or not call.dropout) else call.attend()
        if own is None and untouched and call.plain and not _is_finite(out):
            own = call.plain  # beyond what a float can hold, each function has its own answer
        if call.projection is not None:
            self._found(place, call.projection)
        else:
            self._asking = (place, out) if not call.dropout else None
        if own is not None:
            return own()
        for hand in self.hands:
            out = hand.output(place, call, out)
        return call.answered(out)

    def refuse_functions(self) -> None:
        """Raise where attention runs outside of Python.

        Looked for while a GPU is at work: after the first pass, or where the with statement ends.
        """
        if not self._looked:
            refuse_functions(self.path.every.items())
            self._looked = True  # not before: who catches what is raised is told again at the end

    def leaves_no_trace(self) -> bool:
        """Whether what is done here must stay out of the graph: who looks on alone changes nothing.

        Or a checkpoint is at work, which wants the very same function at its second run: it counts
        what is saved for backward, so that whoever looks must leave nothing there.
        """
        only_look = all(
            (type(hand).question, type(hand).output) == (Hand.question, Hand.output)
            for hand in self.hands
        )
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)  # type: ignore[attr-defined]
        return only_look and (hooks is not None or all(hand.beside for hand in self.hands))

    def look_for_projection(self, func: Any, args: tuple) -> None:
        """Whether a product of the model is the output projection that is awaited."""
        assert self._asking is not None
        place, out = self._asking
        weight = projection_in(func, args, out)
        if weight is not None:
            self._found(place, weight)

    def _found(self, place: Place, weight: Tensor) -> None:
        self._asking = None
        for hand in self.hands:
            hand.projected(place, weight.detach())


def _is_finite(out: Tensor) -> bool:
    """On a GPU it is taken to be: an answer would have to be waited for, at every call."""
    return out.is_cuda or bool(out.detach().isfinite().all())


class _Mode(TorchFunctionMode):
    """Sees the functions of torch that the model calls, however they were imported."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        watch = self.watch
        if watch.busy:
            return func(*args, **kwargs)
        modules = watch.path.modules
        if func in _READERS and (modules or in_backward()):
            builds = torch.is_grad_enabled() and not watch.leaves_no_trace()
            with torch.set_grad_enabled(builds):
                call = _READERS[func](args, kwargs)
            return watch.handle(call)
        if watch._asking is not None and func in PRODUCTS and not kwargs:
            watch.look_for_projection(func, args)
        out = func(*args, **kwargs)
        if modules and not watch.unseen.passes(func, args, out):
            watch.unseen.saw(func, args, kwargs, out, watch.path.names[identity(modules[-1])])
        return out


_WATCHES: dict[int, Watch] = {}  # by model: hands laid on one model share a watch


@contextlib.contextmanager
def watching(model: nn.Module, hand: Hand) -> Iterator[Watch]:
    """Lay a hand on every attention call of a model until the end of the with statement."""
    shared = _WATCHES.get(id(model))
    if shared is not None:
        shared.hands.append(hand)
        try:
            yield shared
        finally:
            shared.hands.remove(hand)
        shared.refuse_functions()
        shared.path.refuse_other_threads()
        return
    check_model(model)
    watch = Watch(model)
    _refuse_parts(watch.path)
    watch.hands.append(hand)

    _WATCHES[id(model)] = watch
    try:
        with (
            borrowed(watch.path.every.values(), watch.path.owns, watch.handle),
            as_fast_paths_give(watch.path.every.values()),
            watch.path,
            watch.mode,
            watch.aside,
        ):
            yield watch
    finally:
        del _WATCHES[id(model)]
    watch.refuse_functions()
    watch.path.refuse_other_threads()


def check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a model is an nn.Module, but a {type(model).__name__} came; give the model itself."
        )


def _refuse_parts(path: Path) -> None:
    refuse_modules(path.every.items())
    for watch in _WATCHES.values():
        if watch.path.owns(path.model) or path.owns(watch.model):
            raise ValueError(
                f"a part of {type(path.model).__name__}, or a model around it, is watched already; "
                "give the same model both times."
            )
