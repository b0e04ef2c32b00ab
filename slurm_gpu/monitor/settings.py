"""Read slurm-gpuweb.yaml: the address of slurm-gpuweb, and how users sign in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from slurm_gpu.config.decoder import Decoder, Items
from slurm_gpu.config.value_types import (
    ADDRESS,
    PAGE,
    Address,
    ValueType,
    duration,
    one_line,
    path,
    pattern,
    require,
)
from slurm_gpu.config.yaml_source import read_yaml
from slurm_gpu.http.networks import NETWORK, Network

DEFAULT_PATH = Path("/etc/slurm-gpu/slurm-gpuweb.yaml")
DEFAULT_LISTEN = Address("127.0.0.1", 6830)
DEFAULT_LIFETIME_S = 12 * 3600.0
DEFAULT_IDLE_S = 2 * 3600.0
_SESSION = duration(60.0, 31 * 86400.0, "2h")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)*", re.ASCII)


def _link(value: object) -> str:
    """Return a URL as given; raise ValueError if it is not http or https, or contains a password."""
    given = one_line(value)
    parts = urlsplit(given)
    require(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0, given)
    return require(not (parts.username or parts.password or re.search(r"\s", given)), given)


def _contact(value: object) -> str:
    """Return an email address or a URL as given; raise ValueError if it is neither."""
    given = one_line(value)
    return given if _EMAIL.fullmatch(given) else _link(given)


_CONTACT = ValueType("an email address or a URL", "gpu-help@example.org", _contact, {"type": "string"})
_DOCUMENTATION = ValueType("a URL", "https://docs.example.org/gpu", _link, {"type": "string"})


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """`session:` of slurm-gpuweb.yaml."""

    lifetime_s: Annotated[float, _SESSION, "Maximum duration of a session."] = DEFAULT_LIFETIME_S
    idle_s: Annotated[float, _SESSION, "Maximum time without requests."] = DEFAULT_IDLE_S
    key_file: Annotated[
        Path | None,
        path("/etc/slurm-gpu/slurm-gpuweb.key"),
        "32 random bytes, mode 0600, that sign sessions; without it, sessions end when slurm-gpuweb stops.",
    ] = None


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The contents of slurm-gpuweb.yaml."""

    listen: Annotated[Address, ADDRESS, "The address of slurm-gpuweb."] = DEFAULT_LISTEN
    url: Annotated[str | None, PAGE, "The address for users, if it differs from `listen`."] = None
    refresh_s: Annotated[float, duration(1.0, 60.0, "3s"), "Interval between reads from slurm-gpudbd."] = 3.0
    contact: Annotated[str | None, _CONTACT, "For help; linked on every page."] = None
    documentation: Annotated[str | None, _DOCUMENTATION, "Linked on every page."] = None
    trusted_proxies: Annotated[
        tuple[Annotated[Network, NETWORK], ...],
        Items(or_one=True),
        "Reverse proxies that sign users in; requires `user_header`.",
    ] = ()
    user_header: Annotated[
        str | None,
        pattern("X-Remote-User", "a header's name", "[A-Za-z0-9-]{1,64}"),
        "The header in which these proxies name the user.",
    ] = None
    session: Annotated[SessionSettings, "Sessions of users who sign in by a link."] = field(
        default_factory=SessionSettings
    )

    @property
    def base_url(self) -> str:
        """Return the URL with which links begin, without a trailing slash."""
        return f"http://{self.listen}" if self.url is None else self.url


def load_settings(path: Path | None) -> WebSettings:
    """Read and validate the file at `path`, by default DEFAULT_PATH, which may be missing.

    Raise InvalidFileError, which lists every mistake and its place.
    """
    if path is None and not DEFAULT_PATH.exists():
        return WebSettings()
    decoder = Decoder(read_yaml(DEFAULT_PATH if path is None else path))
    settings = decoder.read(WebSettings)
    for key, other in (("user_header", "trusted_proxies"), ("trusted_proxies", "user_header")):
        if decoder.has(key) and not decoder.has(other):
            decoder.fail((key,), f"{key} has no effect without {other}", key=True)
    decoder.finish()
    return settings
