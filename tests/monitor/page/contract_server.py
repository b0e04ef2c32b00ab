"""A server with slurm-gpuweb's API for a fake cluster, to test the page without a backend."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.page.files import page_files
from tests.monitor.page.example_clusters import World

_STILL = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><rect width="9" height="9"/></svg>'

_PATIENCE_S = 20.0


class Pretended:
    """The state of a server for a world with its own clock.

    If `status` is set, all API requests get it as their status, as if the viewer were not signed in.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.status: int | None = None
        self.links = FooterLinks()
        self.now_s = world.as_of_s + 2
        self.asked: list[str] = []
        self.signed_out: list[str | None] = []
        """The X-Slurm-Gpu header of each request."""
        self.changed = threading.Condition()
        self.listening = 0
        self.port = 0
        self.stopped = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def change(self, how: Callable[[World], None] = lambda world: None) -> None:
        """Create a new state, and announce it."""
        with self.changed:
            how(self.world)
            self.world.version += 1
            self.changed.notify_all()

    def wait_for_listener(self) -> None:
        """Wait for a listener, because earlier changes are not announced."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.listening > 0, _PATIENCE_S), (
                "no client listens to events"
            )

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


@contextlib.contextmanager
def pretended(world: World) -> Iterator[Pretended]:
    """Serve the world on a free port of this host."""
    state = Pretended(world)

    class Handler(_Handler):
        served = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.stop()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Pretended
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log no requests."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Use the world's clock for the Date header, from which browsers take the time."""
        return super().date_time_string(self.served.now_s if timestamp is None else timestamp)

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        self.served.asked.append(self.path)
        if (file := page_files(self.served.links).get(asked.path)) is not None:
            self._send(200, file.packed, {**file.headers, "Content-Encoding": "gzip"})
        elif asked.path == "/squares.svg":
            self._send(200, _STILL, {"Content-Type": "image/svg+xml"})
        elif asked.path == "/signin":
            self._send(200, b"Sign in", {"Content-Type": "text/plain"})
        elif self.served.status is not None and asked.path.startswith("/api/"):
            self._json({"error": "sign in first"}, self.served.status)
        elif asked.path == "/api/v1/events":
            self._events()
        elif asked.path.startswith("/api/v1/"):
            self._api(asked.path.removeprefix("/api/v1/"), parse_qs(asked.query))
        else:
            self._send(404, b"", {})

    def do_POST(self) -> None:
        if self.path == "/signout":
            self.served.signed_out.append(self.headers.get("X-Slurm-Gpu"))
        self._send(204 if self.path == "/signout" else 404, b"", {})

    def _api(self, path: str, query: dict[str, list[str]]) -> None:
        world = self.served.world
        with self.served.changed:
            if path == "frame":
                frame = world.frames.get(query.get("metric", ["util"])[0])
                if frame is None:
                    self._json({"error": "no such metric"}, 400)
                else:
                    headers = {"Content-Type": "application/octet-stream"}
                    if query.get("metric") == ["state"] and world.slurm_s is not None:
                        headers["X-As-Of-S"] = f"{world.slurm_s:.3f}"
                    self._send(200, bytes(frame), headers)
                return
            since = query.get("since", [None])[0]
            job = path.removeprefix("jobs/").split("/")[0] if path.startswith("jobs/") else None
            answer: Any
            if job is not None:
                if path.endswith("/queued"):
                    answer = {"job": world.queued.get(job)}
                else:
                    kept = {"timeline": world.timelines, "diagnosis": world.diagnoses}.get(
                        path.rpartition("/")[2], world.runs
                    )
                    answer = kept.get(job)
                if answer is None:
                    self._json({"error": "no such job, or not yours"}, 404)
                    return
            else:
                answer = {
                    "layout": lambda: world.layout,
                    "jobs": lambda: world.jobs_since(None if since is None else int(since)),
                    "attention": lambda: {
                        "alerts": world.alerts,
                        "as_of_s": world.as_of_s,
                        "complete_from_s": world.complete_from_s,
                    },
                    "free": world.free,
                    "queue": world.queue,
                    "reservations": lambda: {"reservations": world.reservations},
                    "me": lambda: world.me,
                    "usage": lambda: world.usage(int(query.get("days", ["1"])[0])),
                    "runs": lambda: world.ended.get(query.get("cursor", [""])[0]),
                }[path]()
            self._json(answer, 200)

    def _json(self, value: Any, status: int) -> None:
        body = json.dumps(value, separators=(",", ":")).encode()
        self._send(status, body, {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        if self.headers.get("If-None-Match") == etag and status == 200:
            status, body = 304, b""
        elif len(body) > 400 and "Content-Encoding" not in headers and status == 200:
            body, headers = gzip.compress(body, 1), {**headers, "Content-Encoding": "gzip"}
        as_of = {"X-As-Of-S": f"{self.served.world.as_of_s:.3f}", "X-Timezone": self.served.world.timezone}
        all_headers = {"ETag": etag, "Cache-Control": "no-cache", **as_of, **headers}
        self.send_response(status)
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.send_header("X-Layout", self.served.world.layout["id"])
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        served, sent_version = self.served, 0
        with served.changed:
            served.listening += 1
            served.changed.notify_all()
        with contextlib.suppress(OSError):
            while not served.stopped:
                with served.changed:
                    while not served.stopped and served.world.version == sent_version:
                        served.changed.wait()
                    sent_version = served.world.version
                    state = {"version": sent_version, "layout": served.world.layout["id"]}
                self.wfile.write(f"event: state\ndata: {json.dumps(state)}\n\n".encode())
                self.wfile.flush()
