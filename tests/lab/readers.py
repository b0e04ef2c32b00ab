"""A program that queries slurm-gpudbd as its own user, in many threads or at a steady rate.

`flood` sends the next request as soon as it has any answer; `probe` measures how long each answer takes.
Only the standard library is used, because users who run this program may not read the project's environment.
"""

from __future__ import annotations

import ctypes
import hashlib
import http.client
import json
import os
import socket
import sys
import threading
import time
from collections import Counter

PROBE_EVERY_S = 0.05


class _Connection(http.client.HTTPConnection):
    """HTTP over slurm-gpudbd's socket, or over TCP to host:port with a MUNGE credential for each request."""

    def __init__(self, place: str) -> None:
        super().__init__("slurm-gpudbd" if place.startswith("/") else place, timeout=60)
        self._path = place if place.startswith("/") else None

    def connect(self) -> None:
        """Connect to the socket."""
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def signed(self, method: str, target: str, body: str | None) -> dict[str, str]:
        """Return the headers that authenticate a request."""
        if self._path is not None:
            return {}
        text = "\n".join((method, target, body or ""))
        return {"Authorization": f"MUNGE {_credential(hashlib.sha256(text.encode()).hexdigest().encode())}"}


def _credential(payload: bytes) -> str:
    munge = ctypes.CDLL("libmunge.so.2")
    munge.munge_ctx_create.restype = ctypes.c_void_p
    context, credential = ctypes.c_void_p(munge.munge_ctx_create()), ctypes.c_char_p()
    if "MUNGE_SOCKET" in os.environ:
        munge.munge_ctx_set(context, 8, os.environ["MUNGE_SOCKET"].encode())
    munge.munge_encode(ctypes.byref(credential), context, payload, len(payload))
    munge.munge_ctx_destroy(context)
    return (credential.value or b"").decode()


def ask(
    connection: _Connection, target: str, method: str = "GET", body: str | None = None
) -> tuple[int, bytes]:
    """Return status and body of an answer."""
    try:
        connection.request(method, target, body, connection.signed(method, target, body))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0, b""


def flood(
    path: str, seconds: float, n_threads: int, method: str, targets: list[str], body: str | None
) -> None:
    """Print the number of answers of each status."""
    until, found, lock = time.monotonic() + seconds, Counter[str](), threading.Lock()

    def read() -> None:
        connection, number = _Connection(path), 0
        while time.monotonic() < until:
            status, _ = ask(connection, targets[number % len(targets)], method, body)
            number += 1
            with lock:
                found[str(status)] += 1

    threads = [threading.Thread(target=read) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found))


def probe(path: str, seconds: float, target: str, method: str = "GET", body: str | None = None) -> None:
    """Print the seconds that each answer took, and the number of requests without an answer."""
    until, took, failed = time.monotonic() + seconds, [], 0
    while time.monotonic() < until:
        connection, began = _Connection(path), time.monotonic()
        status, _ = ask(connection, target, method, body)
        took.append(time.monotonic() - began)
        failed += status != 200
        connection.close()
        time.sleep(PROBE_EVERY_S)
    print(json.dumps({"took": took, "failed": failed}))


if __name__ == "__main__":
    what, place, lasts = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if what == "flood":
        threads, method, body, *targets = sys.argv[4:]
        flood(place, lasts, int(threads), method, targets, body or None)
    else:
        probe(place, lasts, *sys.argv[4:])
