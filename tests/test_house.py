"""The rules of the house that no linter knows."""

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import multihead

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if p.exists()]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def modules_after(*imports: str) -> set[str]:
    """What sys.modules holds in a new Python after these imports."""
    code = f"import sys, {', '.join(imports)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_import_loads_torch_and_nothing_heavier():
    core = modules_after("torch", "numpy", "jaxtyping")
    ours = modules_after("torch", "numpy", "jaxtyping", "multihead")
    added = {module.partition(".")[0] for module in ours - core}
    # torch's compiler, which doubles the time of an import, shows here too: it loads sympy.
    assert added - sys.stdlib_module_names == {"multihead"}


def test_annotations_hold_at_run_time():
    """The shapes in the signatures, checked by jaxtyping and beartype on real calls."""
    script = ROOT / "tests" / "shapes.py"
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("every annotation held\n")


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_source_file_stays_under_300_lines(path: Path):
    assert len(path.read_text("utf-8").splitlines()) < 300


def python_blocks(page: str) -> list[str]:
    """The ```python blocks of a page, each moved down to its own line for tracebacks.

    >>> python_blocks("Hello\\n```python\\nx = 1\\n```\\n")
    ['\\n\\nx = 1\\n']
    """
    fence = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return ["\n" * page.count("\n", 0, m.start(1)) + m[1] for m in fence.finditer(page)]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_the_python_blocks_of_a_page_run(path: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a page writes does not land in the repository
    namespace = {"__name__": "__main__"}
    for block in python_blocks(path.read_text("utf-8")):
        exec(compile(block, path, "exec"), namespace)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_the_figures_of_a_page_are_those_of_the_benchmarks(path: Path, monkeypatch):
    """Every figure between markers is what benchmarks/report.py makes of benchmarks/results."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    fill = importlib.import_module("report").fill
    page = path.read_text("utf-8")
    assert fill(page) == page


def test_the_version_is_said_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert multihead.__version__ == project["version"] == importlib.metadata.version("multihead")
