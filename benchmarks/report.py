"""Put the results of all benchmarks into the pages that show them, between their markers.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from measure import RESULTS
from tables import cpu, gpu, training

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / name
    for name in ("docs/performance.md", "docs/induction.md", "docs/training.md", "README.md")
]

TABLES = {
    "attend": ("attend", cpu.attend),
    "looking": ("looking", cpu.looking),
    "observe": ("observe", cpu.observe),
    "observe_all": ("observe", lambda body: cpu.observe_ratios(body, "ours")),
    "observe_eighth": ("observe", lambda body: cpu.observe_ratios(body, "eighth")),
    "observe_memory": ("observe", cpu.observe_memory),
    "observe_bar": ("observe", cpu.observe_bar),
    "record": ("record", cpu.record),
    "record_bar": ("record", cpu.record_bar),
    "page": ("page", cpu.page),
    "train": ("train", training.train),
    "monitor": ("monitor", training.monitor),
    "gpu": ("gpu", gpu.gpu),
    "gpu_bar": ("gpu", gpu.gpu_bar),
    "gpu_stretch": ("gpu", gpu.gpu_stretch),
    "gpu_attend": ("gpu", gpu.gpu_attend),
    "gpu_span": ("gpu", gpu.gpu_span),
    "gpu_beside": ("gpu", gpu.gpu_beside),
    "gpu_entropy": ("gpu", gpu.gpu_entropy),
    "gpu_decode": ("gpu", gpu.gpu_decode),
    "gpu_odd": ("gpu", gpu.gpu_odd),
    "gpu_few": ("gpu", gpu.gpu_few),
    "gpu_sweeps": ("gpu", gpu.gpu_sweeps),
    "gpu_record": ("gpu", gpu.gpu_record),
    "induction": ("induction", training.induction),
    "layer": ("layer", cpu.layer),
    "layer_bar": ("layer", cpu.layer_bar),
    "names_loss": ("names", training.names_loss),
    "names_samples": ("names", training.names_samples),
    "names_heads": ("names", training.names_heads),
    "names_cuts": ("names", training.names_cuts),
    "one_head": ("heads", training.one_head),
    "one_head_gain": ("heads", training.one_head_gain),
    "one_head_time": ("heads", training.one_head_time),
    "window": ("attend", cpu.window),
    "causal": ("attend", cpu.causal),
    "memory": ("attend", cpu.memory),
}


def fill(text: str) -> str:
    """A page with what stands between its markers made anew from the results there are."""
    for marker, (result, table) in TABLES.items():
        between = re.compile(f"(<!-- {marker} -->)(.*?)(<!-- /{marker} -->)", re.DOTALL)
        results = RESULTS / f"{result}.json"
        if (found := between.search(text)) and results.exists():
            gap = "\n" if "\n" in found[2] else ""
            made = gap + table(json.loads(results.read_text())) + gap
            text = between.sub(lambda match, made=made: match[1] + made + match[3], text)
    return text


def main() -> None:
    for page in PAGES:
        page.write_text(fill(page.read_text("utf-8")), "utf-8")
        print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
