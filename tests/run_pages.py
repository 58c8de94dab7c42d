"""What a test reads off the page of a training run."""

import re

from pages import said
from small_runs import HEADS, STEPS

READY = ".big canvas[data-ready=true]"
PIXEL = """(canvas, [row, column]) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  return [...copy.getImageData(column, row, 1, 1).data]; }"""


def step_of(page) -> int:
    return int(page.locator(".step-of").inner_text().removeprefix("step ").replace(",", ""))


def stands(page, step: int) -> None:
    """Wait until a step is shown, in its words, on its slider, and in the address."""
    page.locator(".step-of", has_text=re.compile(rf"^step {step:,}$")).wait_for()
    assert page.get_by_role("slider").input_value() == str(STEPS.index(step))
    last = step == STEPS[-1]
    page.wait_for_url(re.compile("#(?!.*step=)" if last else rf"step={step}(&|$)"))


def values(page) -> list[str]:
    return page.locator(".rcell").all_inner_texts()


def expected(made, step: int) -> list[str]:
    return [two(made(step, n, head)) for n, heads in enumerate(HEADS) for head in range(heads)]


def two(value: float) -> str:
    """A number as a cell writes it, in two digits."""
    return said(value) if value == int(value) or value >= 10 else f"{value:.2f}"
