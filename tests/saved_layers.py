"""Files of a saved recording, found and read as a stranger would."""

from pathlib import Path

from safetensors import safe_open


def file_of(folder: Path, layer: int = 0, text: int = 0) -> Path:
    (found,) = folder.glob(f"text{text}-layer{layer}-*.safetensors")
    return found


def contents(path: Path) -> tuple[dict, dict]:
    """Its tensors and its words, without their sums: what is changed and put back is believed."""
    with safe_open(path, "pt") as file:
        said = {name: text for name, text in file.metadata().items() if name not in ("sums", "sum")}
        return {name: file.get_tensor(name) for name in file.keys()}, said  # noqa: SIM118
