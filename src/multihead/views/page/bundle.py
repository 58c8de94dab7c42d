"""The page's own modules as one script, for a file that stands alone.

ES modules cannot be imported from a file that was opened from disk, so each module becomes a
function that fills an object with what it exports. The modules keep to three forms: imports and
exports by name, one a line; `export function|class|const`; and `export { a as b }` in what is
vendored.
"""

from __future__ import annotations

import functools
import html
import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
_DECLARED = re.compile(
    r"^export (async function\*?|function\*?|class|const|let) (\w+)", re.MULTILINE
)
_LISTED = re.compile(r"export\s*\{([^}]*)\};?")


def bundled(entry: str, replaced: dict[str, str] | None = None) -> str:
    """One script with everything that a module needs, in the order that it is needed."""
    replaced = replaced or {}
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        source = replaced.get(name) or read(name)
        for _, path in _IMPORT.findall(source):
            visit(resolve(name, path))
        order.append(name)

    visit(entry)
    parts = [_as_function(name, replaced.get(name) or read(name)) for name in order]
    return "(() => {\n'use strict';\nconst modules = {};\n" + "\n".join(parts) + "\n})();"


@functools.cache
def read(name: str) -> str:
    return (STATIC / name).read_text("utf-8")


def resolve(importer: str, path: str) -> str:
    """
    >>> resolve("main.js", "./vendor/preact.js"), resolve("main.js", "./home.js")
    ('vendor/preact.js', 'home.js')
    """
    return (Path(importer).parent / path).as_posix()


def _as_function(name: str, source: str) -> str:
    source = _IMPORT.sub(
        lambda found: (
            f"const {{{found[1].replace(' as ', ': ')}}} = modules[{resolve(name, found[2])!r}];"
        ),
        source,
    )
    exports = [declared for _, declared in _DECLARED.findall(source)]
    pairs = [f"{n}: {n}" for n in exports]
    for listed in _LISTED.findall(source):
        for item in listed.split(","):
            inner, _, outer = item.strip().partition(" as ")
            if inner:
                pairs.append(f"{outer or inner}: {inner}")
    source = _LISTED.sub("", _DECLARED.sub(r"\1 \2", source))
    body = f"{source}\nmodules[{name!r}] = {{{', '.join(pairs)}}};"
    return f"(() => {{\n{body}\n}})();"


def page(script: str, data: str = "", title: str = "multihead", style: str = "") -> str:
    """A whole page that asks nobody for anything; `style` names a sheet beside the usual one."""
    # A closing tag inside a script would end it, whatever it stands in; and `<!--<script` in
    # data would keep it from ending. In JSON a < stands in strings alone.
    script, data = script.replace("</", "<\\/"), data.replace("<", "\\u003c")
    title = html.escape(title)
    style = read("style.css") + (read(style) if style else "")
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head>
<body><div id="page"></div>
<script type="application/json" id="carried">{data}</script>
<script>{script}</script></body></html>
"""
