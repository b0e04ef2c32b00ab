"""A real mail server and web server on this host with configurable behaviour."""

from __future__ import annotations

import email
import email.policy
import http.server
import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any


class _Conversation(socketserver.StreamRequestHandler):
    """Implement the part of SMTP (RFC 5321) that one message needs."""

    server: MailServer

    def handle(self) -> None:
        self._write_line("220 lab ready")
        sender, to = "", []
        while line := self.rfile.readline():
            command = line.decode("ascii", "replace").strip()
            verb = command.upper().partition(" ")[0]
            if verb in ("EHLO", "HELO"):
                self._write_line("250 lab")
            elif verb == "MAIL":
                sender, to = command.partition(":")[2], []
                self._write_line("250 ok")
            elif verb == "RCPT":
                to.append(command.partition(":")[2].strip("<>"))
                self._write_line(self.server.on_recipient)
            elif verb == "DATA":
                self._write_line("354 go on")
                octets = self._message()
                if self.server.on_message is None:
                    return  # the connection is lost before the reply
                if self.server.on_message.startswith("250"):
                    parsed = email.message_from_bytes(octets, policy=email.policy.SMTP)
                    assert isinstance(parsed, EmailMessage)
                    self.server.got.append((sender, tuple(to), parsed))
                self._write_line(self.server.on_message)
            else:
                self._write_line("221 bye" if verb == "QUIT" else "502 not here")
                if verb == "QUIT":
                    return

    def _message(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b".") else line)
        return b"".join(lines)

    def _write_line(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


class MailServer(socketserver.ThreadingTCPServer):
    """A mail server that stores accepted messages in `got`: sender, recipients, message."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.got: list[tuple[str, tuple[str, ...], EmailMessage]] = []
        self.on_recipient = "250 ok"
        self.on_message: str | None = "250 taken"
        """The reply to a message; None closes the connection without a reply."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def of(self, user: str) -> list[EmailMessage]:
        """Return the messages to a user."""
        return [message for _, to, message in self.got if to[0].startswith(f"{user}@")]


class _Posts(http.server.BaseHTTPRequestHandler):
    server: WebServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, dict(self.headers), json.loads(body)))
        if self.server.status is None:
            return
        self.send_response(self.server.status)
        if 300 <= self.server.status < 400:
            self.send_header("Location", f"http://127.0.0.1:{self.server.port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class WebServer(http.server.ThreadingHTTPServer):
    """A web server that stores the path, headers and JSON of requests in `asked`."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Posts)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.status: int | None = 200
        """The status of responses; None closes the connection without a response."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, *_: object) -> None:
        """Print no error if a client rejects the certificate."""


@contextmanager
def serving(server: MailServer | WebServer) -> Iterator[None]:
    """Serve requests inside the context."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
