"""Training runs made by hand, as a monitor writes them: every number tells step, layer and head."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

STEPS = [0, 100, 200, 300, 400, 500, 600]
HEADS = (5, 3)  # of each layer: axes that are swapped cannot pass
CELLS = 8
WARNED = {300: [{"layer": "blocks.1", "head": 2, "what": "entropy fell to 0.02"}],
          500: ["the gradient was clipped", {"layer": 0, "head": 4, "what": "logits explode"}]}  # fmt: skip


def entropy(step: int, layer: int, head: int) -> float:
    return 0.9 - step / 1000 - 0.1 * layer - 0.01 * head


def top_score(step: int, layer: int, head: int) -> float:
    return 1.5 + step / 10 + 7.0 * layer + head


def loss(step: int) -> float:
    return 4.0 - step / 200


def cells(step: int, layer: int, pool: str) -> torch.Tensor:
    """(heads, cells, cells): the head's own diagonal, stronger from step to step."""
    made = torch.zeros(HEADS[layer], CELLS, CELLS)
    for head in range(HEADS[layer]):
        for row in range(head, CELLS):
            made[head, row, row - head] = (0.1 + step / 1000) * (0.5 if pool == "mean" else 1)
    return made.half()


def sample(step: int) -> dict:
    layers = [
        {"name": f"blocks.{n}", "heads": heads, "of tomorrow": {"ignored": True},
         "entropy": [entropy(step, n, h) for h in range(heads)],
         "max_score": [top_score(step, n, h) for h in range(heads)]}
        for n, heads in enumerate(HEADS)
    ]  # fmt: skip
    return {"step": step, "loss": loss(step), "layers": layers, "quantiles": {}, "worst": [],
            "warnings": WARNED.get(step, [])}  # fmt: skip


def write_sample(folder: Path, step: int, *, maps: bool = True) -> None:
    if maps:
        (folder / "maps").mkdir(parents=True, exist_ok=True)
        made = {
            f"{p}.{n}": cells(step, n, p) for n in range(len(HEADS)) for p in ("largest", "mean")
        }
        save_file(made, folder / "maps" / f"{step:08d}.safetensors")
    with (folder / "heads.jsonl").open("a") as file:
        file.write(json.dumps(sample(step)) + "\n")


def write_run(folder: Path, *, without_map: tuple[int, ...] = (200,), losses: bool = True) -> Path:
    """A whole run, in which a step may have no maps."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in STEPS:
        write_sample(folder, step, maps=step not in without_map)
    if losses:
        lines = [{"step": s, "train_loss": loss(s) + 0.1, "held_out_loss": loss(s) + 0.3, "lr": 1e-3}
                 for s in range(0, 601, 50)]  # fmt: skip
        (folder / "losses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
