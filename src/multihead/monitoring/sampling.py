"""A monitor at work: it looks at one forward in so many, and leaves those between alone."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..observation.statistics import Statistic
from ..recording import check_seen
from ..recording.names import in_backward, in_checkpoint
from ..recording.watch import Watch, watching
from .history import HeadWarning, History
from .lent import Call, LentForward
from .looking import Looker
from .receivers import Receiver
from .summary import Record, summarise

Loss = float | Tensor | np.ndarray | np.number | None


class Monitor:
    """What `mh.monitor` gives: call `step` once a training step, behind the optimiser's.

    Where a step is due, the model's next forward that gradients will flow through is looked at.
    Between samples the model is as it was: no hook, no mode, nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int,
        statistics: tuple[Statistic, ...],
        rows: int | None,
        receivers: Sequence[Receiver],
        step: int,
    ) -> None:
        self.model, self.every, self.statistics, self.rows = model, every, statistics, rows
        self.receivers, self._step = receivers, step
        self.history = History()
        for record in max((receiver.past() for receiver in receivers), key=len, default=[]):
            self.history.take(record)
        self._lent: LentForward | None = None  # while a forward is awaited
        self._looking = False
        self._sample: tuple[Looker, Watch] | None = None
        self._saw = self._closed = False  # whether any sample was ever had
        self._prepare()

    def step(self, loss: Loss = None) -> Record | None:
        """A training step is done; its record, where it was one of those that are looked at."""
        record = self._finish(loss) if self._due else None
        self._step += 1
        self._prepare()
        return record

    def close(self) -> None:
        """Look no more."""
        self._rest()
        self._closed = True

    @property
    def _due(self) -> bool:
        return self._step % self.every == 0 and not self._closed

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        if self._due:
            self._lent = LentForward(self.model, self._look)

    def _rest(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.give_back()

    def _look(self, plain: Call, looked: Call, args: tuple, kwargs: dict[str, Any]) -> Any:
        # A run for gradients is no new one, and an evaluation in between is no training.
        trains = torch.is_grad_enabled() or in_checkpoint()
        if self._looking or in_backward() or not trains:
            return plain(*args, **kwargs)
        draws = any(receiver.draws for receiver in self.receivers)
        looker = Looker(self.statistics, self.rows, self._step, draws)
        self._looking = True
        try:
            with watching(self.model, looker) as watch:
                if watch.path.name is None and looked is plain:
                    watch.path.enter(self.model)  # whose own call is under way already
                out = looked(*args, **kwargs)
        finally:
            self._looking = False
        self._sample = (looker, watch)
        self._rest()
        return out

    def _finish(self, loss: Loss) -> Record | None:
        self._rest()
        sample, self._sample = self._sample, None
        looker, watch = sample or (None, None)
        if looker is None or watch is None or not watch.calls:
            self._miss(watch)
            return None
        if not self._saw:
            check_seen(watch, self.model)
        self._saw = True
        seen = [
            one._replace(values=one.values.cpu(), rows=one.rows.cpu())
            for _, one in sorted(looker.layers.items())
        ]
        names = [statistic.key for statistic in self.statistics]
        record = summarise(self._step, _number(loss), names, seen)
        record["warnings"] = self.history.take(record)
        for warning in record["warnings"]:
            warnings.warn(warning["text"], HeadWarning, stacklevel=3)
        for receiver in self.receivers:
            receiver.take(record, seen)
        return record

    def _miss(self, watch: Watch | None) -> None:
        """A step was due and nothing came: at the first that is a mistake, later it may happen."""
        if self._saw:
            return
        name = type(self.model).__name__
        if watch is not None:
            check_seen(watch, self.model)
        raise ValueError(
            f"step {self._step} was to be looked at, but {name} was not called with gradients in "
            "it; give mh.monitor the model that is called (of a compiled one, what torch.compile "
            "gave), and call step() once after each of its training steps."
        )


def _number(loss: Loss) -> float | None:
    if loss is None:
        return None
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return float(loss.detach())
    if isinstance(loss, numbers.Real) and not isinstance(loss, bool):  # numpy's among them
        return float(loss)
    if isinstance(loss, np.ndarray) and loss.size == 1 and loss.dtype.kind in "fiu":
        return float(loss.item())
    if isinstance(loss, Tensor | np.ndarray):
        came = f"{'a tensor' if isinstance(loss, Tensor) else 'an array'} {tuple(loss.shape)}"
    else:
        came = repr(loss)
    raise ValueError(f"step(loss) takes one number, but {came} came; give the mean, say.")
