"""Files of a saved recording, found and read as a stranger would."""

from pathlib import Path

from safetensors import safe_open


def file_of(folder: Path, layer: int = 0, text: int = 0) -> Path:
    (found,) = folder.glob(f"text{text}-layer{layer}-*.safetensors")
    return found


def contents(path: Path) -> tuple[dict, dict]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
