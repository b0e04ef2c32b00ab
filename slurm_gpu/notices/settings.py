"""Read notices.yaml, an optional file that defines how users are notified of alerts (docs/notices.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from slurm_gpu.alerts.alert import AlertKind
from slurm_gpu.config.decoder import Decoder, Key
from slurm_gpu.config.value_types import (
    CONTROL,
    NAME,
    ValueType,
    choice,
    duration,
    path,
    pattern,
    require,
    text,
    whole_number,
)
from slurm_gpu.config.yaml_source import YamlSource, read_yaml
from slurm_gpu.notices.finding import ALERT_KINDS, DEFAULT_ALERT_KINDS

# The file is next to slurm-gpu.yaml on the hosts of slurmctld.
FILE_NAME = "notices.yaml"
OBSERVE, SEND = "observe", "send"
_ADDRESS = pattern(
    "gpu-help@example.edu",
    "an address",
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?",
)
_USER = "{user}"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _parse_recipient(value: Any) -> str:
    _ADDRESS.parse(require(value.count(_USER) == 1, value).replace(_USER, "user"))
    return str(value)


_RECIPIENT = ValueType(
    f"an address with {_USER} in it", f"'{_USER}@example.edu'", _parse_recipient, {"type": "string"}
)
_WEBHOOK = ValueType(
    "an address that begins with https:// (http:// only for this host), in ASCII, without user and password",
    "https://chat.example.edu/hooks/gpu",
    lambda value: require(is_private(value), value),
    {"type": "string"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """The server that delivers mail."""

    sender: Annotated[str, _ADDRESS, Key("from"), "The sender's address."]
    to: Annotated[str, _RECIPIENT, "The recipient's address; `{user}` is the owner of the job."]
    host: Annotated[
        str, pattern("localhost", "a mail server's name", r"[^\x00-\x20\x7f]+"), "The server."
    ] = "localhost"
    port: Annotated[int, whole_number(1, 65535), "Its port."] = 25
    starttls: Annotated[bool, "Whether to require STARTTLS."] = False

    def address_of(self, user: str) -> str:
        """Return the address of a user whose name has been checked (`channels_for`)."""
        return self.to.replace(_USER, user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A URL to which notices are posted as JSON."""

    url: Annotated[str, _WEBHOOK, "URL of the webhook."]
    secret_file: Annotated[
        Path | None,
        path("/etc/slurm-gpu/webhook.secret"),
        "A bearer-token file that only SlurmUser can read.",
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The content of notices.yaml."""

    mode: Annotated[str, choice((OBSERVE, SEND)), "Whether to show or send notices."] = OBSERVE
    alerts: Annotated[
        frozenset[Annotated[AlertKind, choice(ALERT_KINDS)]], "Alerts that cause notices to users."
    ] = DEFAULT_ALERT_KINDS
    # An alert appears only after slurm_gpu.alerts has watched the job for a window.
    after_s: Annotated[
        float,
        duration(300.0, 7 * 86400.0, "30m"),
        "Minimum duration of an alert before its notice; GPU errors are sent at once.",
    ] = 1800.0
    max_per_user_per_day: Annotated[int, whole_number(1, 100), "Maximum number of notices in 24 hours."] = 5
    exempt_users: Annotated[frozenset[Annotated[str, NAME]], "Users who receive no notices."] = frozenset()
    contact: Annotated[
        str | None, text("gpu-help@example.edu"), "Contact for questions, shown in each notice."
    ] = None
    mail: Annotated[Mail | None, "Send notices by mail."] = None
    webhook: Annotated[Webhook | None, "Post notices as JSON."] = None
    templates: Annotated[
        Path | None, path("/etc/slurm-gpu/notices"), "A directory with the site's own texts."
    ] = None

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the channels by which notices are sent."""
        named = {"mail": self.mail, "webhook": self.webhook}
        return tuple(name for name, settings in named.items() if settings is not None)

    @property
    def sends(self) -> bool:
        """Return whether notices are sent at all."""
        return self.mode == SEND


def load_settings(path: Path) -> Settings | None:
    """Read and check notices.yaml; return None if it is missing; raise InvalidFileError with all errors."""
    return check_settings(read_yaml(path)) if path.exists() else None


def check_settings(source: YamlSource) -> Settings:
    """Convert a parsed notices.yaml; raise InvalidFileError with all errors."""
    decoder = Decoder(source)
    settings = decoder.read(Settings)
    if settings.sends and not (decoder.has("mail") or decoder.has("webhook")):
        decoder.fail(("mode",), "mode: send requires mail: or webhook:")
    decoder.finish()
    return settings


def is_private(url: str) -> bool:
    """Return whether the transport to this URL is encrypted or local."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError, TypeError):
        return False
    if not host or port == 0 or parts.username is not None or CONTROL.search(url) or " " in url:
        return False
    if not url.isascii():  # http.client requests only ASCII paths
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
