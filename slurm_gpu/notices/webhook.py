"""Post notices as JSON to a URL of the site, such as a chat, a ticket system or a script."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import stat
from pathlib import Path
from urllib.parse import urlsplit

from slurm_gpu.notices.sending import TIMEOUT_S, Message, NotSentError, UnknownFateError
from slurm_gpu.notices.settings import Webhook

_BUSY = frozenset({408, 425, 429})
_LONGEST_SECRET = 4096


class WebhookChannel:
    """Opens one connection per notice, and follows no redirects: the secret is only for this address."""

    def __init__(
        self, settings: Webhook, timeout_s: float = TIMEOUT_S, context: ssl.SSLContext | None = None
    ) -> None:
        self._settings, self._timeout_s = settings, timeout_s
        self._context = context

    def send(self, message: Message) -> None:
        """Post a message; raise NotSentError or UnknownFateError."""
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "slurm-gpu",
            "Idempotency-Key": message.id,
        }
        if self._settings.secret_file is not None:
            headers["Authorization"] = f"Bearer {read_secret(self._settings.secret_file)}"
        parts = urlsplit(self._settings.url)
        path = parts.path or "/"
        connection = self._connected()
        try:
            try:
                target = f"{path}?{parts.query}" if parts.query else path
                connection.request("POST", target, body_of(message), headers)
                answer = connection.getresponse()
                answer.close()
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise UnknownFateError(f"{self._where} did not answer after the request: {error}") from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise self._refused(answer.status, answer.reason)

    def try_out(self) -> None:
        """Check the address and the certificate without posting a notice; raise NotSentError on failure."""
        self._connected().close()

    def _connected(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._settings.url)
        connection = self._connection(parts.scheme, parts.hostname or "", parts.port)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise NotSentError(f"{self._where}: {error}") from error
        return connection

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "https":
            context = ssl.create_default_context() if self._context is None else self._context
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _refused(self, status: int, reason: str) -> NotSentError:
        if 300 <= status < 400:
            why = f"{self._where} answered {status}: redirects are not followed; set url: to the new address"
            return NotSentError(why, for_good=True)
        is_busy = status in _BUSY or status >= 500
        return NotSentError(f"{self._where} answered {status} {reason}", for_good=not is_busy)

    @property
    def _where(self) -> str:
        """Return the webhook's scheme and host, without path and query, which may contain a secret."""
        parts = urlsplit(self._settings.url)
        return f"webhook {parts.scheme}://{parts.netloc}"


def body_of(message: Message) -> bytes:
    """Return the JSON body; docs/notices.md defines it."""
    plain = {
        "id": message.id,
        "at_s": int(message.at_s),
        "cluster": message.cluster,
        "user": message.user,
        "kind": message.kind,
        "jobs": list(message.jobs),
        "subject": message.text.subject,
        "text": message.text.body,
    }
    return json.dumps(plain).encode()


def read_secret(path: Path) -> str:
    """Read a secret from a file that other users cannot read; raise NotSentError on failure."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o027:
                raise NotSentError(f"{path} must be a file that other users cannot read: chmod 0600 {path}")
            secret = file.read(_LONGEST_SECRET).decode("ascii").strip()
    except OSError as error:
        raise NotSentError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise NotSentError(f"{path} must contain one ASCII word") from None
    if not secret or not secret.isprintable() or " " in secret:
        raise NotSentError(f"{path} must contain one ASCII word")
    return secret
