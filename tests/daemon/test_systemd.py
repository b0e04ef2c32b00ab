"""Notifications reach systemd over a real datagram socket."""

import contextlib
import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.daemon.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path if request.param == "path" else "\0" + path)
        listener.setblocking(False)
        yield listener


def environment(systemd: socket.socket, **more: str) -> dict[str, str]:
    name = systemd.getsockname()
    address = "@" + name[1:].decode() if isinstance(name, bytes) else name
    return {"NOTIFY_SOCKET": address, **more}


def received(systemd: socket.socket) -> list[str]:
    lines = []
    while True:
        try:
            lines.append(systemd.recv(4096).decode())
        except BlockingIOError:
            return lines


def test_systemd_receives_ready_status_and_stopping(systemd: socket.socket) -> None:
    notifier = Notifier(environment(systemd))
    notifier.ready()
    for second in range(25):
        assert notifier.turned(100.0 + second, f"{second // 12} jobs") == math.inf
    notifier.stopping()
    assert received(systemd) == ["READY=1", "STATUS=0 jobs", "STATUS=1 jobs", "STATUS=2 jobs", "STOPPING=1"]


def test_the_watchdog_is_notified_at_half_its_interval_by_a_running_loop(systemd: socket.socket) -> None:
    notifier = Notifier(environment(systemd, WATCHDOG_USEC="60000000", WATCHDOG_PID=str(os.getpid())))
    now_s = due_s = 100.0
    for _ in range(4):
        now_s = due_s
        due_s = notifier.turned(now_s, "")
        assert due_s == now_s + 30
        assert notifier.turned(now_s + 29.9, "") == due_s
    assert received(systemd).count("WATCHDOG=1") == 4
    assert received(systemd) == []  # a loop that is stalled sends no messages


def test_a_watchdog_of_another_process_is_not_ours(systemd: socket.socket) -> None:
    notifier = Notifier(environment(systemd, WATCHDOG_USEC="60000000", WATCHDOG_PID="1"))
    assert notifier.turned(100.0, "") == math.inf
    assert "WATCHDOG=1" not in received(systemd)


def test_children_do_not_inherit_the_address() -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    Notifier(environ)
    assert environ == {"PATH": "/bin"}


def test_without_systemd_or_with_one_that_is_gone_nothing_happens() -> None:
    for environ in ({}, {"NOTIFY_SOCKET": "/nowhere/notify"}, {"WATCHDOG_USEC": "soon"}):
        notifier = Notifier(dict(environ))
        notifier.ready()
        assert notifier.turned(1.0, "status") == math.inf
        notifier.stopping()


def full(systemd: socket.socket) -> None:
    """Fill the socket of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                others.sendto(b"others", systemd.getsockname())


def test_messages_that_did_not_fit_are_sent_again_within_a_second(systemd: socket.socket) -> None:
    notifier = Notifier(environment(systemd, WATCHDOG_USEC="60000000"))
    full(systemd)
    notifier.ready()
    assert notifier.turned(100.0, "2 jobs") == 101.0
    assert set(received(systemd)) == {"others"}
    assert notifier.turned(101.0, "2 jobs") == 131.0
    assert received(systemd) == ["READY=1", "WATCHDOG=1", "STATUS=2 jobs"]
    assert notifier.turned(102.0, "2 jobs") == 131.0
    assert received(systemd) == []


def test_without_a_watchdog_too_systemd_learns_that_all_is_ready(systemd: socket.socket) -> None:
    notifier = Notifier(environment(systemd))
    full(systemd)
    notifier.ready()
    assert notifier.turned(100.0, "") == 101.0
    received(systemd)
    assert notifier.turned(101.0, "") == math.inf
    assert received(systemd) == ["READY=1"]
