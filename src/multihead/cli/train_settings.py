"""What `multihead train` was asked for: a preset, changed by a file, then by the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..training import Settings


def settings_asked(
    data: str | None, text: Path | None, preset: str | None, config: Path | None,
    asked: dict[str, Any], out: Path | None, resume: Path | None,
) -> "tuple[Settings, Path]":  # fmt: skip
    """The settings of a run and its folder; of `--resume` those that it began with."""
    from ..training import Run, Settings
    from ..training import settings as known

    given = {name: value for name, value in asked.items() if value is not None}
    if resume is not None:
        others = [o for o in (data, text, preset, config, out) if o is not None]
        if others or given.keys() - {"device"}:
            raise ValueError("--resume goes on as the run began; leave the other settings out.")
        return Run(resume).settings().of(given), resume
    file = known.read_toml(config) if config is not None else {}
    in_file = file.pop("preset", None)
    name = in_file if preset is None else preset
    if config is not None and isinstance(file.get("data"), str):
        file["data"] = _beside(config, file["data"])
    source = _source(data, text, file)
    usual = "names-small" if source == "names" else "text-small"
    base = known.preset(usual if name is None else name)
    if name is not None and source != "names" and base.data == "names":
        base = base.of({"context": base.tokens})  # a text has no short documents
    settings: Settings = base.of({**file, "data": source, **given})
    if source != "names":
        settings = settings.of({"tokens": settings.context})
    elif settings.symbols != "characters":
        raise ValueError(
            f"symbols are those of a text; names are characters, and {settings.symbols} came; "
            "leave it out."
        )
    return settings, out or Path("runs") / ("names" if source == "names" else Path(source).stem)


def _beside(config: Path, data: str) -> str:
    """A text that a file names, as seen from that file: it means the same from everywhere."""
    if data in ("", "names"):
        return data
    return str(config.absolute().parent / Path(data).expanduser())


def _source(data: str | None, text: Path | None, file: dict[str, Any]) -> str:
    if data is not None and text is not None:
        raise ValueError(f"{data} and --text both came; give one of them.")
    source = str(text.absolute()) if text is not None else data or file.get("data")
    if not source:
        raise ValueError("what to train on is missing; give names, or --text FILE.")
    if text is None and data is not None and data != "names":
        raise ValueError(f"the data that comes with it is names, and {data!r} came; "
                         f"for a file of your own give --text {data}.")  # fmt: skip
    return source
