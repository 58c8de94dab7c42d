"""The hand that looks: it answers a call, sweeps its tiles once, and keeps what made them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

from ..attention import answer
from ..attention.problem import Problem, autocasts, pose, without_autocast
from ..masks import dense
from ..observation import gather, look
from ..observation.fused import plan_of, swept
from ..observation.statistics import Statistic
from ..observation.statistics.heatmap import Heat
from ..observation.statistics.peak import PeakKey
from ..observation.statistics.received import Received, ReceivedMean
from ..observation.statistics.top import TopK
from ..observation.view import View, steady
from .call import Call
from .call import crosses as told_crosses
from .growing import Growing
from .rules import Rules
from .transformers import refuse_drafts
from .watch import Hand, Place

_AS_IT_IS = contextlib.nullcontext()


class Recorder(Hand):
    """Gathers layers; `new_text` is called when a pass begins that continues nothing."""

    def __init__(
        self,
        statistics: tuple[Statistic, ...],
        keep_qk: bool,
        new_text: Callable[[], None],
        kept: Callable[[Growing], None],
    ) -> None:
        self.statistics, self.keep_qk = statistics, keep_qk
        self._plan = plan_of(statistics)
        self.layers: dict[int, Growing] = {}
        self._new_text, self._kept, self._rules = new_text, kept, Rules()
        self._fresh = True  # no call of this pass has come yet
        self._rows = torch.arange(0)  # 0, 1, 2, … as many as the last call had

    def begin(self) -> None:
        refuse_drafts()
        self._fresh = True
        for layer in self.layers.values():
            layer.forget_values()

    def answer(self, place: Place, call: Call) -> Tensor:
        if isinstance(call.mask, dense) or isinstance(call.bias, Tensor):
            with exactly(call.query):
                call = self._rules.simplify(call)
        problem = pose(call.query, call.key, call.value, dropout=0.0, **call.asked)
        used, out, lse, told = look(problem, self._plan)
        with exactly(lse):
            firm = steady(problem)  # what is kept must give the weights again
            if firm is not problem:
                lse = answer(firm).lse
            calm, lse = calmed(firm), alone(lse)
            layer = self._layer(place, call, calm)
            related = layer.relate(calm)
            if len(self._rows) != lse.shape[2] or self._rows.device != lse.device:
                self._rows = torch.arange(lse.shape[2], device=lse.device)
            view = View(related.problem, lse, self._rows, len(self._rows))
            same = firm is problem and related.problem is calm
            if not same:  # its rows or keys are counted from elsewhere
                told = {}
            found: dict[str, Any] = {key: alone(value) for key, value in told.items()}
            if same and used == "fused":  # what takes the question takes it for sweeps too
                found |= swept(view, [s for s in self.statistics if s.key not in found])
            if rest := tuple(s for s in self.statistics if s.key not in found):
                found |= gather(view, rest)
            layer.add(related, lse, found)
            self._kept(layer)
        return out

    def _layer(self, place: Place, call: Call, problem: Problem) -> Growing:
        """Where to keep it: a layer that goes on, or the first of a new text."""
        crosses = told_crosses(place, call)
        known = self.layers.get(place.index)
        if self._fresh and known is not None and not known.goes_on(problem, crosses):
            self._new_text()
            self.layers, known = {}, None
        self._fresh = False
        if known is None:
            kinds = {s.key: _kind(s) for s in self.statistics}
            known = Growing(place, problem, kinds, self.keep_qk, crosses)
            self.layers[place.index] = known
        return known

    def projected(self, place: Place, weight: Tensor) -> None:
        if place.index in self.layers:
            with exactly(weight):
                self.layers[place.index].add_output_norms(alone(weight))


def calmed(problem: Problem) -> Problem:
    """The same question, which remembers nothing of where it came from."""
    names = ("query", "key", "value", "bias", "sinks")
    given = {n: t for n in names if isinstance(t := getattr(problem, n), Tensor)}
    if not torch._C._are_functorch_transforms_active():
        given = {n: t for n, t in given.items() if t.requires_grad}
    changes = {n: alone(t) for n, t in given.items()}
    return dataclasses.replace(problem, **changes) if changes else problem


def alone(tensor: Tensor) -> Tensor:
    """The tensor itself, outside of its graph and of torch.func's transforms: it outlives both."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.detach()


def exactly(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """No gradients or transforms, and float32 where it says so: autocast is the model's affair."""
    transforms = torch._C._are_functorch_transforms_active()
    if not transforms and not autocasts(tensor.device.type):
        return torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS
    outside = contextlib.ExitStack()
    outside.enter_context(torch.no_grad())
    outside.enter_context(without_autocast(tensor.device.type))
    if transforms:
        outside.enter_context(torch._C._DisableFuncTorch())
    return outside


def _kind(statistic: Statistic) -> str:
    match statistic:
        case PeakKey():
            return "place"
        case Received() | ReceivedMean():
            return "key"
        case Heat():
            return "map"
        case TopK():
            return "top"
    return "row"
