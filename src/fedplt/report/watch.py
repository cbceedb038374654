"""A local page that lists runs and shows one live, with the charts of the report.

It only reads files, and listens on this machine unless another host is given. It checks the Host
header, so that other web pages cannot read it through the browser (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedplt.errors import DamagedError, FedpltError, RunError
from fedplt.federation import RoundRecord, RunFolder, read_metric
from fedplt.files import SCRATCH, open_ordinary
from fedplt.report.page import (
    content_of,
    environment,
    page_html,
    page_script,
    plotly_source,
    read_run,
    security_policy,
    style,
)
from fedplt.text import duration_text

MAX_DEPTH = 4
MAX_FOLDERS = 20_000
"""Limit of the search, in case the folder is wrong, such as a whole disk."""
TAIL = 1 << 20
"""The last round is searched in this many bytes at the end of the records."""


@dataclass(frozen=True)
class ListedRun:
    """One line of the list."""

    name: str
    method: str = ""
    seed: str = ""
    rounds: str = ""
    score: str = ""
    state: str = ""
    updated: float = 0.0
    """Time of the last write, in seconds since 1970."""


def find_runs(folder: Path) -> dict[str, Path]:
    """Run folders below a folder, by relative path; links are not followed."""
    found = {}
    for place, inner, files in islice(os.walk(folder, followlinks=False), MAX_FOLDERS):
        path = Path(place)
        below = path.relative_to(folder)
        is_run = "config.toml" in files and "plan.json" in files
        inner.sort()
        if is_run or len(below.parts) >= MAX_DEPTH:
            inner.clear()
        if is_run:
            found[below.as_posix()] = path
    return found


def listed_run(name: str, path: Path) -> ListedRun:
    """A run's line in the list; its state is the problem if it cannot be read."""
    records = path / "rounds.jsonl"
    updated = max((f.lstat().st_mtime for f in (records, path) if f.exists()), default=0.0)
    try:
        folder, last, score = RunFolder.open(path), last_record(records), ""
        config = folder.config()
        if last and last.score is not None:
            metric = read_metric(path, folder.run)
            both = [s for s in (last.score, last.average_score) if s is not None]
            score = ", average ".join(metric.text(each, 1) for each in both)
    except FedpltError as error:
        return ListedRun(name, state=str(error), updated=updated)
    ago = duration_text(max(0.0, time.time() - updated))
    return ListedRun(
        name,
        str(config.method["name"]),
        str(config.seed),
        f"{last.round if last else 0} of {config.rounds}",
        score,
        "finished" if (path / "result.json").is_file() else f"last written {ago} ago",
        updated,
    )


def last_record(path: Path) -> RoundRecord | None:
    """The last complete record of a run, read from the end of its file."""
    try:
        with os.fdopen(open_ordinary(path), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except (OSError, DamagedError):
        return None
    for line in reversed(lines):
        try:
            values = json.loads(line)
            values.pop("seal", None)  # only the page of the run checks it
            return RoundRecord.from_json(values)
        except (ValueError, TypeError, KeyError, AttributeError, FedpltError):
            continue  # empty, incomplete, or cut at its start
    return None


LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_CONNECTIONS = 64
REQUEST_SECONDS = 10.0
"""Deadline for a connection to send a whole request."""
ANSWER_SECONDS = 60.0
"""Deadline for a connection to read the answer."""
MAX_BYTES = 500_000_000
"""Larger records are not shown: a page that large would stop the browser."""
MAX_PAGES = 16
"""Number of rendered pages kept in memory."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def watch_app(folder: Path, names: Sequence[str] = ()) -> Starlette:
    """The application; ``names`` are further host names under which it may be reached."""
    pages = _Pages(folder)
    return Starlette(
        routes=[
            Route("/", pages.runs),
            Route("/run/{name:path}", pages.run),
            Route("/plotly.js", _plotly),
        ],
        middleware=[Middleware(_KnownHosts, names=[*LOOPBACK, *names])],
    )


class _KnownHosts:
    """Refuses requests for unknown host names (Starlette's middleware lacks IPv6)."""

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self.app, self.names = app, {name.strip("[]").lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _host_name(Headers(scope=scope).get("host", "")) in self.names:
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("Invalid host header", 400)(scope, receive, send)


def _host_name(header: str) -> str:
    """The name or address in a Host header, without the port.

    >>> [_host_name(text) for text in ("[::1]:8000", "localhost:8000", "Lab")]
    ['::1', 'localhost', 'lab']
    """
    if header.startswith("["):
        address, bracket, port = header[1:].partition("]")
        return address.lower() if bracket and port[:1] in ("", ":") else ""
    return header.partition(":")[0].lower()


class _Connection(H11Protocol):
    """One connection. Slow ones are closed, so that they do not block others."""

    def connection_made(self, transport: Any) -> None:
        others = [each for each in self.connections if isinstance(each, _Connection)]
        if len(others) >= MAX_CONNECTIONS:
            waiting = [each for each in others if not each.is_answering]
            longest = min(waiting or others, key=lambda each: each.since)
            self.connections.discard(longest)
            longest.transport.abort()
        super().connection_made(transport)
        self.since = self.loop.time()
        """When the connection was made, or its last answer was sent."""
        self._timer: asyncio.TimerHandle = self.loop.call_later(1.0, self._end_if_late)

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _end_if_late(self) -> None:
        seconds = ANSWER_SECONDS if self.is_answering else REQUEST_SECONDS
        if self.loop.time() - self.since > seconds:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(1.0, self._end_if_late)


def make_server(app: Starlette, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    """A small server with limits: few and short connections, short headers, no web sockets."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_level="error",  # not a line per bad request
            access_log=False,
            server_header=False,
            backlog=64,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=16_384,
        )
    )


class _Pages:
    """Answers for one folder of runs. Sync functions run in threads, one per request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self, request: Request) -> Response:
        """All runs, the latest first."""
        listed = [listed_run(name, path) for name, path in find_runs(self.folder).items()]
        listed.sort(key=lambda run: -run.updated)
        template = environment().get_template("runs.html")
        values = {"runs": listed, "folder": self.folder, "style": style(), "live": True}
        return _answer(template.render(values))

    def run(self, request: Request) -> Response:
        """One run; 304 if it has not changed since the browser's last request."""
        name = request.path_params["name"]
        path = find_runs(self.folder).get(name)  # only runs that were found are served
        if path is None:
            return _problem(f"There is no run {name!r} here.", 404)
        tag = _tag(path)
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={**HEADERS, "ETag": tag})
        try:
            return _answer(_run_page(name, path, tag), tag)
        except FedpltError as error:
            return _problem(f"{name}: {error}", 200)


@lru_cache(MAX_PAGES)
def _run_page(name: str, path: Path, tag: str) -> str:
    """The page of a run whose files have this tag."""
    size = (path / "rounds.jsonl").stat().st_size if (path / "rounds.jsonl").exists() else 0
    if size > MAX_BYTES:
        raise RunError(f"rounds.jsonl has {size / 1e6:.0f} MB: too much for a page.")
    run = read_run(path, check_models=False)  # browsers request a page every few seconds
    if not run.history.evaluated:
        raise RunError("no round has been evaluated yet. This page tries again in a moment.")
    return page_html(content_of(name, {name: [run]}), live=True)


def _tag(path: Path) -> str:
    """A digest that changes whenever one of the run's files is written."""
    # lstat does not follow links. Temporary files may vanish meanwhile.
    files = sorted(file for file in path.glob("*.json*") if not file.match(SCRATCH))
    stats = []
    for file in files:
        with suppress(OSError):
            stats.append((file.name, file.lstat().st_mtime_ns, file.lstat().st_size))
    return f'"{hashlib.sha256(repr(stats).encode()).hexdigest()[:32]}"'


def _answer(text: str, tag: str | None = None) -> Response:
    policy = security_policy(page_script(), sources="'self'", connect="'self'")
    headers = {**HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    return HTMLResponse(text, headers=headers | ({"ETag": tag} if tag else {}))


def _problem(text: str, status: int) -> Response:
    page = environment().get_template("problem.html").render(text=text, style=style())
    headers = {**HEADERS, "Content-Security-Policy": security_policy("")}
    return HTMLResponse(page, status_code=status, headers=headers)


def _plotly(request: Request) -> Response:
    headers = {**HEADERS, "Cache-Control": "max-age=86400"}
    return Response(plotly_source(), media_type="text/javascript", headers=headers)
