"""notices.yaml: whether, of what and how users are told (docs/notices.md). Without it nobody is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_gpu.alerts.alert import Concern
from slurm_gpu.config.checker import YamlCheck, did_you_mean, shown
from slurm_gpu.config.yaml_source import Location, YamlSource, read_yaml
from slurm_gpu.notices.finding import CONCERNS, USUAL_CONCERNS

FILE_NAME = "notices.yaml"
"""It lies beside slurm-gpu.yaml, on the hosts of slurmctld."""
OBSERVE, SEND = "observe", "send"

LEAST_AFTER_S, MOST_AFTER_S = 300.0, 7 * 86400.0
"""Nothing is judged sooner than slurm_gpu.alerts has watched."""
MOST_A_DAY = 100

_TOP = (
    "mode",
    "concerns",
    "after",
    "per_user_a_day",
    "exempt_users",
    "contact",
    "mail",
    "webhook",
    "templates",
)
_MAIL = ("host", "port", "from", "to", "starttls")
_WEBHOOK = ("url", "secret_file")
_ADDRESS = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?"
)
_USER = "{user}"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Where mail is handed over; the server there delivers it."""

    sender: str
    to: str
    """An address with `{user}` in it."""
    host: str = "localhost"
    port: int = 25
    starttls: bool = False

    def address_of(self, user: str) -> str:
        """Of a user, whose name has been looked at (`can_be_told`)."""
        return self.to.replace(_USER, user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where a notice is posted as JSON."""

    url: str
    secret_file: Path | None = None
    """Of a text that is sent as a bearer token; SlurmUser alone reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole of notices.yaml, checked."""

    mode: str = OBSERVE
    concerns: frozenset[Concern] = USUAL_CONCERNS
    after_s: float = 1800.0
    """A concern that has lasted so long is told; an error of a GPU at once."""
    per_user_a_day: int = 5
    """Notices in any 24 hours, at most."""
    exempt_users: frozenset[str] = frozenset()
    contact: str | None = None
    mail: Mail | None = None
    webhook: Webhook | None = None
    templates: Path | None = None
    """A directory of the site's own texts."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Ways by which a notice goes out."""
        named = {"mail": self.mail, "webhook": self.webhook}
        return tuple(name for name, settings in named.items() if settings is not None)

    @property
    def sends(self) -> bool:
        """Whether anything goes out at all."""
        return self.mode == SEND


def load_settings(path: Path) -> Settings | None:
    """Read and check notices.yaml; None where there is none. Raises InvalidFileError with every mistake."""
    return check_settings(read_yaml(path)) if path.exists() else None


def check_settings(source: YamlSource) -> Settings:
    """Turn a parsed notices.yaml into Settings; raises InvalidFileError with every mistake in it."""
    return _Check(source).settings()


class _Check(YamlCheck):
    def settings(self) -> Settings:
        top = self.mapping((), {} if self.source.value is None else self.source.value, _TOP)
        values: dict[str, Any] = {}
        if "mode" in top:
            values["mode"] = self._choice(("mode",), top["mode"], (OBSERVE, SEND))
        if "concerns" in top:
            names = self._names(("concerns",), top["concerns"], "[held_idle, xid]")
            found = [self._choice(("concerns", at), name, CONCERNS) for at, name in enumerate(names)]
            values["concerns"] = frozenset(map(Concern, found))
        if "after" in top:
            values["after_s"] = self._after(top["after"])
        if "per_user_a_day" in top:
            values["per_user_a_day"] = self._whole(("per_user_a_day",), top["per_user_a_day"], MOST_A_DAY)
        if "exempt_users" in top:
            values["exempt_users"] = frozenset(
                self._names(("exempt_users",), top["exempt_users"], "[root, monitor]")
            )
        if "contact" in top:
            values["contact"] = self._text(("contact",), top["contact"], "gpu-help@example.edu")
        if "mail" in top:
            values["mail"] = self._mail(top["mail"])
        if "webhook" in top:
            values["webhook"] = self._webhook(top["webhook"])
        if "templates" in top:
            values["templates"] = self._path(("templates",), top["templates"], "/etc/slurm-gpu/notices")
        if values.get("mode") == SEND and not {"mail", "webhook"} & top.keys():
            self.fail(("mode",), "mode: send needs mail: or webhook:, by which notices go out")
        self.finish()
        return Settings(**values)

    def _mail(self, value: Any) -> Mail | None:
        table = self.mapping(("mail",), value, _MAIL)
        sender = self._needed("mail", table, "from", "gpu-help@example.edu")
        to = self._needed("mail", table, "to", "'{user}@example.edu'")
        if sender and not _ADDRESS.fullmatch(sender):
            self.fail(
                ("mail", "from"), f"from: {shown(sender)} must be an address, such as gpu-help@example.edu"
            )
        if to and (to.count(_USER) != 1 or not _ADDRESS.fullmatch(to.replace(_USER, "user"))):
            self.fail(
                ("mail", "to"),
                f"to: {shown(to)} must be an address with {_USER} in it, such as '{_USER}@example.edu'",
            )
        starttls = table.get("starttls", False)
        if not isinstance(starttls, bool):
            self.fail(("mail", "starttls"), f"starttls: {shown(starttls)} must be true or false")
        host = table.get("host", "localhost")
        if not isinstance(host, str) or not host or _CONTROL.search(host) or " " in host:
            self.fail(
                ("mail", "host"), f"host: {shown(host)} must be a mail server's name, such as localhost"
            )
        port = self._whole(("mail", "port"), table.get("port", 25), 65535)
        return Mail(sender=sender, to=to, host=str(host), port=port, starttls=starttls is True)

    def _webhook(self, value: Any) -> Webhook | None:
        table = self.mapping(("webhook",), value, _WEBHOOK)
        url = self._needed("webhook", table, "url", "https://chat.example.edu/hooks/gpu")
        if url and not is_private(url):
            self.fail(
                ("webhook", "url"),
                f"url: {shown(url)} must begin with https:// (http:// reaches this host alone), without user "
                "and password, and have no letters but ASCII's",
            )
        secret = None
        if "secret_file" in table:
            example = "/etc/slurm-gpu/webhook.secret"
            secret = self._path(("webhook", "secret_file"), table["secret_file"], example)
        return Webhook(url=url, secret_file=secret)

    def _needed(self, section: str, table: dict[Any, Any], key: str, example: str) -> str:
        if key not in table:
            self.fail((section,), f"{section} lacks {key}; write one such as {key}: {example}")
            return ""
        return self._text((section, key), table[key], example)

    def _text(self, location: Location, value: Any, example: str) -> str:
        if isinstance(value, str) and value.strip() and not _CONTROL.search(value):
            return value.strip()
        self.fail(location, f"{location[-1]}: {shown(value)} must be a text in one line, such as {example}")
        return ""

    def _path(self, location: Location, value: Any, example: str) -> Path | None:
        if isinstance(value, str) and value.startswith("/") and not _CONTROL.search(value):
            return Path(value)
        self.fail(location, f"{location[-1]}: {shown(value)} must be a whole path, such as {example}")
        return None

    def _names(self, location: Location, value: Any, example: str) -> tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        self.fail(location, f"{location[-1]}: {shown(value)} must be a list of names, such as {example}")
        return ()

    def _choice(self, location: Location, value: Any, allowed: tuple[str, ...]) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        hint = did_you_mean(value, allowed)
        self.fail(location, f"{location[0]}: {shown(value)} is not possible; {hint}")
        return allowed[0]

    def _whole(self, location: Location, value: Any, most: int) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        self.fail(location, f"{location[-1]}: {shown(value)} must be a whole number from 1 to {most}")
        return 1

    def _after(self, value: Any) -> float:
        seconds = self.seconds(("after",), value)
        if seconds is not None and LEAST_AFTER_S <= seconds <= MOST_AFTER_S:
            return seconds
        self.fail(("after",), f"after: {shown(value)} must be a time with its unit, from 5m to 7d")
        return LEAST_AFTER_S


def is_private(url: str) -> bool:
    """Whether nobody reads what is sent there on the way."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError, TypeError):
        return False
    if not host or port == 0 or parts.username is not None or _CONTROL.search(url) or " " in url:
        return False
    if not url.isascii():  # a path that cannot be asked for
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
