"""Training: AdamW, warm-up and cosine, clipping; stopped at any moment, it goes on bit for bit.

    for each step:   batch → loss → gradients → all numbers finite? → clip → AdamW → after_step
                     → checkpoint, each so many

What is not finite is found before the weights move, and weights that a step threw out of range
before they are measured or written, so that every checkpoint is a good one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .gpt import GPT
from .names import IGNORED
from .parts import adamw_of, data_of, device_of, shape_of
from .run import Run
from .saving import (
    check_same_data,
    optimizer_tensors,
    read,
    restore_optimizer,
    tensors_of,
    told_of,
    write,
)
from .settings import Settings


@dataclasses.dataclass(frozen=True)
class Step:
    """What is told after each step."""

    step: int  # steps that are done, this one among them
    steps: int  # that there will be
    loss: float  # nats a token, of this batch before the step
    lr: float
    tokens_per_second: float
    held_out: float | None = None  # where it was time to measure it


class Trainer:
    """A model, its data and its optimiser, from their settings; in a folder, or nowhere.

    >>> trainer = Trainer(Settings(d_model=8, num_layers=1, rows=4, steps=3, warmup=1))
    >>> trainer.train(after_step=lambda done: print(done.step, round(done.lr, 5)))
    1 0.004
    2 0.004
    3 8e-05
    """

    def __init__(self, settings: Settings, folder: Path | None = None) -> None:
        self.settings = settings
        self.device = device_of(settings.device)
        self.data = data_of(settings)
        self.step = 0
        self.held_out: float | None = None  # the last that was measured
        self._recent: list[float] = []  # losses since the last line of the log
        self._random: dict[str, Tensor] = {}
        self._run = None if folder is None else Run(folder)
        with self._own_random(settings.seed):
            self.model = GPT(shape_of(settings, self.data)).to(self.device)
        parameters = sum(weight.numel() for weight in self.model.parameters())
        self.model.config.about = f"a GPT of {parameters:,} parameters, of {self.data.what}"
        self._optimizer = adamw_of(self.model, settings)
        # What is called, and so what a monitor is to look at.
        self.called: Any = torch.compile(self.model) if settings.compile else self.model

    def train(
        self,
        after_step: Callable[[Step], None] | None = None,
        *,
        at_start: Callable[[], None] | None = None,
        command: str = "",
    ) -> None:
        """All steps that are left, those of a checkpoint in the folder being done.

        `at_start` is called once it is known where the run goes on, before the first step;
        `after_step` before a checkpoint says that its step is done: killed in between, a run
        comes by there once more, and what was written of it is never missing.
        """
        with contextlib.nullcontext() if self._run is None else self._opened(self._run, command):
            if at_start is not None:
                at_start()
            self._train(after_step)

    @property
    def begins_again(self) -> bool:
        """Whether this very run was stopped before its first checkpoint: it says all anew."""
        return self._run is not None and self._run.had_begun and self.step == 0

    @contextlib.contextmanager
    def _opened(self, run: Run, command: str) -> Iterator[None]:
        with run.opened(self.settings, command):
            self._go_on()
            yield

    def _train(self, after_step: Callable[[Step], None] | None) -> None:
        speed = _Speed()
        self.model.train()
        with self._own_random():
            while self.step < self.settings.steps:
                lr = self.settings.lr_at(self.step)
                loss, tokens = self._one_step(lr)
                speed.add(tokens)
                self.step += 1
                held_out = self._measured(lr)
                done = Step(self.step, self.settings.steps, loss, lr, speed.now, held_out)
                self._log(done)
                self._recent = [] if self._is_time("log_every") else self._recent
                if after_step is not None:
                    speed.pause()
                    after_step(done)
                    speed.go_on()
                # Last: killed before this, the step is done again, and what it told as well.
                if self._run is not None and self._is_time("checkpoint_every"):
                    self._save()
        self.model.eval()

    def _one_step(self, lr: float) -> tuple[float, int]:
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        ids, targets = self.data.next()
        loss = self._loss(ids, targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        value = loss.item()
        if not math.isfinite(value) or not bool(norm.isfinite()):
            what = "a gradient" if math.isfinite(value) else "the loss"
            raise ValueError(self._not_finite(what, self.step + 1, lr))
        self._optimizer.step()
        self._recent.append(value)
        return value, int((targets != IGNORED).sum())

    def _loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        ids, targets = ids.to(self.device), targets.to(self.device)
        half = torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda")
        with half:
            logits = self.called(ids)
        flat = logits.float().flatten(0, 1)  # (batch · tokens, vocab)
        return cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction=reduction)

    @torch.no_grad()
    def measure(self, which: str = "held out") -> float:
        """The mean loss over all of a part that is not trained on, nats a token."""
        was_training = self.model.training
        self.model.eval()
        total, count = 0.0, 0
        for ids, targets in self.data.held_out(which):
            total += float(self._loss(ids, targets, "sum"))
            count += int((targets != IGNORED).sum())
        self.model.train(was_training)
        return total / count

    def next_loss(self) -> float:
        """The loss on the batch that would come next, with nothing learnt, no batch taken and no
        random number used up."""
        position = self.data.position()
        ids, targets = self.data.next()
        self.data.go_to(position)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            return self._loss(ids, targets).item()

    # ── what is kept

    def _measured(self, lr: float) -> float | None:
        """The held-out loss, if it is time; what would make a bad checkpoint ends the run here."""
        measures = self._is_time("held_out_every")
        if (measures or self._is_time("checkpoint_every")) and not all(
            bool(weight.isfinite().all()) for weight in self.model.parameters()
        ):
            raise ValueError(self._not_finite("a weight", self.step, lr))
        if not measures:
            return None
        held_out = self.measure()
        if not math.isfinite(held_out):
            raise ValueError(self._not_finite("the held-out loss", self.step, lr))
        self.held_out = held_out
        return held_out

    def _is_time(self, which: str) -> bool:
        every = getattr(self.settings, which)
        return self.step % every == 0 or self.step == self.settings.steps

    def _log(self, done: Step) -> None:
        if self._run is not None and (self._is_time("log_every") or done.held_out is not None):
            self._run.log({
                "step": done.step, "loss": sum(self._recent) / max(1, len(self._recent)),
                "held_out": done.held_out, "lr": done.lr,
                "tokens_per_second": round(done.tokens_per_second),
            })  # fmt: skip

    def _save(self) -> None:
        assert self._run is not None
        tensors = tensors_of(self.model) | optimizer_tensors(self.model, self._optimizer)
        tensors |= {f"random.{name}": state for name, state in _random_state().items()}
        write(self._run.checkpoint, tensors, told_of(self.model, self.data.alphabet) | {
            "step": self.step, "data": self.data.position(), "recent": self._recent,
            "held_out": self.held_out, "made": {"what": self.data.what},
            "digest": self.data.digest,
        })  # fmt: skip

    def _go_on(self) -> None:
        """From the checkpoint in the folder, if there is one."""
        assert self._run is not None
        if not self._run.checkpoint.exists():
            self._run.go_back_to(0)
            return
        tensors, told = read(self._run.checkpoint)
        weights = {name: tensors[name] for name in tensors_of(self.model) if name in tensors}
        try:
            check_same_data(self._run.checkpoint, told, self.data)
            self.model.load_state_dict({k.partition(".")[2]: v for k, v in weights.items()})
            restore_optimizer(self.model, self._optimizer, tensors)
            self.data.go_to(told["data"])
            self.step, self._recent = told["step"], told["recent"]
            self.held_out = told["held_out"]
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"{self._run.checkpoint} does not fit its run: {str(error).splitlines()[0]}; "
                "move the folder away and start anew."
            ) from None
        begin = "random."
        self._random = {k.removeprefix(begin): v for k, v in tensors.items() if k.startswith(begin)}
        self._run.go_back_to(self.step)

    def _not_finite(self, what: str, step: int, lr: float) -> str:
        kept = "nothing was written"
        if self._run is not None:
            last = step - 1 - (step - 1) % self.settings.checkpoint_every
            kept = f"the checkpoint of step {last} is intact" if last else "no checkpoint was made"
        return (
            f"{what} is no finite number at step {step}, lr {lr:.2g}; {kept}. Start anew "
            "in another folder with a smaller lr or another seed."
        )

    @contextlib.contextmanager
    def _own_random(self, seed: int | None = None) -> Iterator[None]:
        """Our own random numbers, which go on where they stopped; the caller's are as they were."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            if seed is not None:
                torch.manual_seed(seed)
            for name, state in self._random.items():
                if name == "cpu":
                    torch.set_rng_state(state)
                elif devices:
                    torch.cuda.set_rng_state(state, self.device)
            try:
                yield
            finally:
                self._random = _random_state()


class _Speed:
    """Tokens a second, without what others did between the steps."""

    def __init__(self) -> None:
        self.tokens, self.seconds, self._since = 0, 0.0, time.perf_counter()

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    def pause(self) -> None:
        self.seconds += time.perf_counter() - self._since

    def go_on(self) -> None:
        self._since = time.perf_counter()

    @property
    def now(self) -> float:
        return self.tokens / max(1e-9, self.seconds + time.perf_counter() - self._since)


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state
