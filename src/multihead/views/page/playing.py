"""A training run as a page: what it can ask for, and all of it in one file."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..files import plain
from .answers import HANDLERS, as_json, page, saved_as, static, zipped
from .bundle import bundled, read
from .bundle import page as whole_page
from .guard import Guard
from .runs import POOLS, Run

MOST = 24 * 2**20  # bytes of maps that a file carries


def make_run_app(run: Run, token: str) -> Guard:
    """The application of one run, behind its guard."""

    def json_route(path: str, answer: Callable[[], Any]) -> Route:
        async def respond(request: Request) -> Response:
            body = await to_thread.run_sync(lambda: as_json(answer()))
            return zipped(request, body, "application/json")

        return Route(path, respond)

    async def index(request: Request) -> Response:
        return page(request, "run.html")

    async def map_route(request: Request) -> Response:
        at, pool = request.path_params, request.query_params.get("pool", POOLS[0])
        found = await to_thread.run_sync(run.map, at["step"], at["layer"], at["head"], pool)
        return Response(found, media_type="application/octet-stream")

    async def export_route(request: Request) -> Response:
        body = await to_thread.run_sync(lambda: standalone_run(run))
        return Response(body, media_type="text/html", headers=saved_as("multihead-run.html"))

    routes = [
        Route("/", index),
        Route("/static/{name:path}", static),
        json_route("/run.json", run.told),
        json_route("/version.json", lambda: {"version": run.version()}),
        Route("/map/{step:int}/{layer:int}/{head:int}.bin", map_route),
        Route("/export.html", export_route),
    ]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False  # another address is another page, and there is none
    return Guard(app, token)


def standalone_run(run: Run) -> bytes:
    """A page that opens anywhere, with no network: all numbers, and maps of what steps fit."""
    told = run.told()
    steps, maps = [*told["maps"]], {}
    if steps:
        each = sum(layer.nbytes for _, layer in _layers_of(run, told, steps[-1]))
        steps = spread(steps, max(1, MOST // max(1, each)))
    for step in steps:
        for name, layer in _layers_of(run, told, step):
            maps[f"{step}/{name}"] = base64.b64encode(layer.tobytes()).decode()
    if len(steps) < len(told["maps"]):
        left = f"of {len(told['maps'])} steps with maps this file carries {len(steps)}"
        told["notes"] = [*told["notes"], left]
    told["maps"] = steps
    data = json.dumps(plain({"run": told, "maps": maps}), ensure_ascii=False, separators=(",", ":"))
    script = bundled("run.js", {"carried.js": read("run-carried.js")})
    return whole_page(script, data, f"{run.name} · multihead", style="run.css").encode(
        "utf-8", "replace"
    )


def _layers_of(run: Run, told: dict[str, Any], step: int):
    """The maps of a step by pool and layer; one that cannot be read is left out."""
    for pool in POOLS:
        for layer in range(len(told["layers"])):
            try:
                yield f"{pool}/{layer}", run.layer_map(step, layer, pool)
            except ValueError:
                continue


def spread(steps: list[int], most: int) -> list[int]:
    """At most so many, evenly, with the first and the last.

    >>> spread([0, 10, 20, 30, 40], 3)
    [0, 20, 40]
    >>> spread([0, 10, 20], 1)
    [20]
    """
    if len(steps) <= most:
        return steps
    if most == 1:
        return steps[-1:]
    return [steps[round(n * (len(steps) - 1) / (most - 1))] for n in range(most)]
