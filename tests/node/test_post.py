"""POST requests over real sockets, and a server that hangs."""

import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slurm_gpu.errors import MungeError
from slurm_gpu.munge import request_digest
from slurm_gpu.node.shipping import post as post_module
from slurm_gpu.node.shipping.post import HttpPost, Reply, ThreadSender, parse_reply


class Server(ThreadingHTTPServer):
    """A server that stores requests; it does not answer while `hang` is locked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.hang = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore disconnected clients, which are a part of the tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.hang:
            self.server.requests.append((self.client_address[0], self.path, dict(self.headers.items()), body))
            self.send_response(503)
            self.send_header("Retry-After", "7")
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"busy")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_request_carries_a_credential_over_its_own_body(server: Server) -> None:
    reply = HttpPost(server.url, "127.0.7.1", lambda payload: f"M:{payload.decode()}:")(b"body")
    assert reply == Reply(503, b"busy", "7")
    ((address, path, headers, body),) = server.requests
    assert (address, path, body) == ("127.0.7.1", "/v1/node", b"body")
    assert headers["Authorization"] == f"MUNGE M:{request_digest('POST', '/v1/node', b'body').decode()}:"
    assert headers["Content-Encoding"] == "gzip"


def test_no_server_and_no_munge_are_failures_with_a_reason(server: Server) -> None:
    def no_munge(_: bytes) -> str:
        raise MungeError("MUNGE: Socket communication error")

    assert "communication" in HttpPost(server.url, None, no_munge)(b"").failure
    nowhere = HttpPost("http://127.0.0.1:1", None, lambda _: "x")(b"")
    assert nowhere.status == 0
    assert "127.0.0.1:1" in nowhere.failure


def test_a_hung_server_does_not_block_the_caller(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_module, "TIMEOUT_S", 0.2)
    woken = threading.Event()
    sender = ThreadSender(HttpPost(server.url, None, lambda _: "x"), woken.set)
    with server.hang:
        sender.send(b"body")
        assert sender.reply() is None
        assert woken.wait(10)
        reply = sender.reply()
    assert reply is not None
    assert "timed out" in reply.failure
    assert sender.reply() is None


def test_an_exception_is_a_failure_and_sending_continues() -> None:
    woken = threading.Semaphore(0)
    replies = [Reply(200)]

    def post(_: bytes) -> Reply:
        return replies.pop()

    sender = ThreadSender(post, woken.release)
    for _ in range(2):
        sender.send(b"body")
        assert woken.acquire(timeout=10)
    failure = "IndexError: pop from empty list"
    assert [sender.reply() for _ in range(2)] == [Reply(200), Reply(0, failure=failure)]


def answered_on(path: Path) -> socketserver.UnixStreamServer:
    class Here(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b"".join(iter(self.rfile.readline, b"\r\n"))
            client = b"stranger" if b"Authorization" in head else b"friend"
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n" + client)

    server = socketserver.UnixStreamServer(str(path), Here)
    threading.Thread(target=server.handle_request, daemon=True).start()
    return server


def test_on_its_own_host_the_socket_is_used_without_a_credential(server: Server, tmp_path: Path) -> None:
    def no_munge(_: bytes) -> str:
        raise MungeError("no munged")

    with answered_on(tmp_path / "socket"):
        reply = HttpPost(server.url, None, no_munge, tmp_path / "socket")(b"body")
    assert reply == Reply(200, b"friend")


@pytest.mark.parametrize("left_behind", [False, True])
def test_without_a_listener_on_the_socket_the_address_is_used(
    server: Server, tmp_path: Path, left_behind: bool
) -> None:
    if left_behind:
        with socket.socket(socket.AF_UNIX) as once:
            once.bind(str(tmp_path / "socket"))
    reply = HttpPost(server.url, None, lambda _: "x", tmp_path / "socket")(b"body")
    assert reply.status == 503


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nfour",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n",
    ],
)
def test_an_incomplete_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not HTTP|truncated"):
        parse_reply(answer)


def test_the_client_does_not_import_openssl_or_the_mail_parser() -> None:
    command = (
        "import sys, slurm_gpu.node.shipping.post, slurm_gpu.munge as m; m.request_digest('POST', '/', b''); "
    )
    command += "print([m for m in ('ssl', '_hashlib', 'email', 'http.client') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
