"""Server-sent events over a real socket announce exactly the new states, to every client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slurm_gpu.config.value_types import Address
from slurm_gpu.http.connection_limits import Senders
from slurm_gpu.http.sockets import listen_tcp
from slurm_gpu.monitor import events
from slurm_gpu.monitor.http.server import LIMITS, make_server
from tests.monitor.small_cluster import Here


class Stream:
    """A client of the events."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.status = b""

    @classmethod
    async def open(cls, port: int) -> Stream:
        stream = cls(*await asyncio.open_connection("127.0.0.1", port))
        stream._writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        stream.status = (await stream._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        return stream

    async def line(self, begin: bytes) -> bytes:
        """Return the rest of the next line with a given prefix."""
        while True:
            line = await asyncio.wait_for(self._reader.readuntil(b"\n"), 10)
            if line.startswith(begin):
                return line[len(begin) :].strip()

    async def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.line(b"data: "))
        return found

    async def end(self) -> None:
        """Read the last chunk of the answer."""
        await asyncio.wait_for(self._reader.readuntil(b"\r\n0\r\n\r\n"), 10)

    async def leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def served(here: Here) -> AsyncIterator[int]:
    listener = listen_tcp(Address("127.0.0.1", 0))
    server = make_server(here.app, here.board.stop)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def n_open(here: Here) -> int:
    (route,) = [route for route in here.app.routes if getattr(route, "path", "") == "/api/v1/events"]
    stream: events.Events = route.app  # type: ignore[attr-defined]
    return stream._open.total()


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


def test_every_client_receives_each_state_that_came(here: Here):
    async def story() -> None:
        async with served(here) as port:
            streams = [await Stream.open(port) for _ in range(20)]
            assert {(await stream.event())["version"] for stream in streams} == {1}
            state = here.poll()
            received = [await stream.event() for stream in streams]
            as_of_s = round(state.as_of_s(), 3)
            assert all(
                one == {"version": 2, "layout": state.layout.id, "as_of_s": as_of_s} for one in received
            )
            for stream in streams:
                await stream.leave()

    asyncio.run(story())


def test_closed_streams_are_removed(here: Here):
    async def story() -> None:
        async with served(here) as port:
            streams = [await Stream.open(port) for _ in range(10)]
            for stream in streams:
                await stream.event()
            assert n_open(here) == 10
            for stream in streams[:7]:
                await stream.leave()
            await until(lambda: n_open(here) == 3)
            for stream in streams[7:]:
                await stream.leave()

    asyncio.run(story())


def test_streams_end_when_the_daemon_does(here: Here):
    async def story() -> None:
        async with served(here) as port:
            stream = await Stream.open(port)
            await stream.event()
            here.board.stop()
            await stream.end()
            await stream.leave()

    asyncio.run(story())


def test_a_silent_stream_is_kept_open_with_comments(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "COMMENT_EVERY_S", 0.02)

    async def story() -> None:
        async with served(here) as port:
            stream = await Stream.open(port)
            await stream.event()
            assert await stream.line(b":") == b""
            await stream.leave()

    asyncio.run(story())


def test_a_user_may_not_take_all_streams(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "STREAMS_OF_A_USER", 2)

    async def story() -> None:
        async with served(here) as port:
            streams = [await Stream.open(port) for _ in range(3)]
            assert [b" 200 " in stream.status for stream in streams] == [True, True, False]
            assert b" 503 " in streams[2].status
            for stream in streams:
                await stream.leave()

    asyncio.run(story())


@pytest.mark.parametrize("line", [b"GET /openapi.json", b"POST /signout", b"GET /api/v1/events"])
def test_slow_senders_of_a_body_are_disconnected(here: Here, monkeypatch: pytest.MonkeyPatch, line: bytes):
    monkeypatch.setattr(LIMITS, "body_within_s", 0.3)

    async def story() -> None:
        async with served(here) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(line + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(10):
                    while not reader.at_eof():
                        writer.write(b".")
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(65536), 0.05)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await until(lambda: n_open(here) == 0)

    asyncio.run(story())


def test_a_stream_outlives_the_time_for_a_request(here: Here, monkeypatch: pytest.MonkeyPatch):
    for name in ("body_within_s", "request_within_s"):
        monkeypatch.setattr(LIMITS, name, 0.05)

    async def story() -> None:
        async with served(here) as port:
            stream = await Stream.open(port)
            first = await stream.event()
            await asyncio.sleep(0.2)
            here.poll()
            assert (await stream.event())["version"] > first["version"]
            await stream.leave()

    asyncio.run(story())


def test_only_the_head_of_a_stream_opens_none(here: Here):
    async def story() -> None:
        async with served(here) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            ask = b"HEAD /api/v1/events HTTP/1.1\r\nHost: x\r\n"
            writer.write(ask + b"\r\n" + ask + b"Connection: close\r\n\r\n")
            said = await asyncio.wait_for(reader.read(), 10)
            assert said.count(b"HTTP/1.1 200") == 2
            assert n_open(here) == 0
            writer.close()

    asyncio.run(story())


def test_no_address_can_take_all_connections():
    senders = Senders(LIMITS)

    def most(address: str, free: int) -> int:
        n = 0
        while senders.come(address, free - n):
            n += 1
        senders.go(address)
        return n

    free = 4000
    for number in range(5):
        free -= most(f"192.0.2.{number}", free)
    assert free > 500
    assert most("192.0.2.77", 10) == LIMITS.always_of_sender
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):  # a reverse proxy of this host
        assert all(senders.come(address, free) for _ in range(3000))
    for number in range(5):
        while senders._open[f"192.0.2.{number}"]:
            senders.go(f"192.0.2.{number}")
    assert senders.come("192.0.2.0", 4000)


def test_an_address_that_has_too_many_is_cut_off_and_comes_back(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LIMITS, "is_unlimited", lambda _: False)
    monkeypatch.setattr(LIMITS, "share_of_sender", 4000)

    async def story() -> None:
        async with served(here) as port:
            streams = [await Stream.open(port) for _ in range(LIMITS.always_of_sender)]
            one_more = Stream(*await asyncio.open_connection("127.0.0.1", port))
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(one_more._reader.read(), 10) == b""
            await one_more.leave()
            for stream in streams:
                await stream.leave()
            await until(lambda: n_open(here) == 0)
            again = await Stream.open(port)
            assert b"200" in again.status
            await again.leave()

    asyncio.run(story())


def test_clients_without_a_complete_request_are_disconnected(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LIMITS, "request_within_s", 0.05)

    async def story() -> None:
        async with served(here) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/v1/la")
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    asyncio.run(story())


async def _until_cut_off(port: int, *pieces: bytes) -> bytes:
    """Send each piece after the answer to the previous one; yield all answers until a disconnect."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    for number, piece in enumerate(pieces):
        if number:
            received += await asyncio.wait_for(reader.readuntil(b"}"), 10)
        writer.write(piece)
    with contextlib.suppress(ConnectionError):
        received += await asyncio.wait_for(reader.read(), 5)
    writer.transport.abort()
    return received


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /api HTTP/1.1\r\n\r\n" * 10_000,  # each would wait for its answer, in memory
        b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000,  # a head that has no end
    ],
)
def test_no_client_fills_memory_by_what_is_no_single_request(here: Here, sent: bytes):
    async def story() -> None:
        async with served(here) as port:
            assert (await _until_cut_off(port, sent)).count(b"HTTP/1.1 ") <= 20

    asyncio.run(story())


def test_empty_lines_keep_no_connection(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LIMITS, "request_within_s", 0.5)

    async def story() -> None:
        async with served(here) as port:
            received = await _until_cut_off(port, b"GET /api HTTP/1.1\r\n\r\n", b"\r\n")
            assert received.count(b"HTTP/1.1 404") == 1

    asyncio.run(story())


def test_the_rest_of_an_answered_request_keeps_no_connection(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LIMITS, "body_within_s", 0.5)

    async def story() -> None:
        async with served(here) as port:
            head = b"GET /api HTTP/1.1\r\nContent-Length: 1\r\n\r\n"
            assert (await _until_cut_off(port, head, b"x")).count(b"HTTP/1.1 404") == 1

    asyncio.run(story())


def test_the_end_of_an_answer_waits_for_no_confirmation_of_its_beginning(here: Here):
    async def story() -> None:
        server = make_server(here.app, here.board.stop)
        listener = listen_tcp(Address("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listener]))
        stream = await Stream.open(listener.getsockname()[1])
        (connection,) = server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await stream.leave()
        server.should_exit = True
        await serving

    asyncio.run(story())
