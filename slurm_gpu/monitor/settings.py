"""slurm-gpuweb.yaml: where slurm-gpuweb listens, and how people reach it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_gpu.config.checker import YamlCheck
from slurm_gpu.config.site import page_address
from slurm_gpu.config.yaml_source import Location, read_yaml
from slurm_gpu.database.http.networks import EXPECTED, Network, read_network
from slurm_gpu.monitor.signin.sessions import DEFAULT_IDLE_S, DEFAULT_LIFETIME_S

DEFAULT_PATH = Path("/etc/slurm-gpu/slurm-gpuweb.yaml")
DEFAULT_PORT = 6830
_LEAST_S, _MOST_S = 1.0, 60.0
_LEAST_SESSION_S, _MOST_SESSION_S = 60.0, 31 * 86400.0
_KEYS = ("listen", "url", "refresh", "trusted_proxies", "user_header", "session")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen for TCP connections."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_LISTEN = Address("127.0.0.1", DEFAULT_PORT)


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The whole of slurm-gpuweb.yaml; `url` is None where nobody said how it is reached."""

    listen: Address = DEFAULT_LISTEN
    url: str | None = None
    refresh_s: float = 3.0
    """So often slurm-gpudbd is asked."""
    trusted_proxies: tuple[Network, ...] = ()
    user_header: str | None = None
    """In which these say who signed in; None: nobody's word counts."""
    session_lifetime_s: float = DEFAULT_LIFETIME_S
    session_idle_s: float = DEFAULT_IDLE_S
    session_key_file: Path | None = None
    """None: sessions end with slurm-gpuweb."""

    @property
    def base_url(self) -> str:
        """What links begin with, without a slash at the end."""
        return f"http://{self.listen}" if self.url is None else self.url


def load_settings(path: Path | None) -> WebSettings:
    """Read and check the file; without `path` the default one, which may be missing.

    Raises InvalidFileError with every mistake and its place.
    """
    if path is None and not DEFAULT_PATH.exists():
        return WebSettings()
    return _Check(read_yaml(DEFAULT_PATH if path is None else path)).settings()


def parse_address(text: Any) -> Address | None:
    """HOST:PORT, [IPv6]:PORT or :PORT; None for what is none of these."""
    try:
        parts = urlsplit(f"//{text}")
        if parts.port and not (parts.path or parts.query or parts.fragment or parts.username):
            return Address(parts.hostname or _EVERYWHERE, parts.port)
    except (ValueError, TypeError):
        pass
    return None


class _Check(YamlCheck):
    def settings(self) -> WebSettings:
        top = self.mapping((), {} if self.source.value is None else self.source.value, _KEYS)
        values: dict[str, Any] = {}
        if "listen" in top:
            values["listen"] = self.listen(top["listen"])
        if "url" in top:
            values["url"] = self.url(top["url"])
        if "refresh" in top:
            values["refresh_s"] = self.refresh(top["refresh"])
        if "trusted_proxies" in top:
            values["trusted_proxies"] = self.networks(top["trusted_proxies"])
        if "user_header" in top:
            values["user_header"] = self.header(top["user_header"])
        for key, other in (("user_header", "trusted_proxies"), ("trusted_proxies", "user_header")):
            if key in top and other not in top:
                self.fail((key,), f"{key} says nothing without {other}", key=True)
        if "session" in top:
            values |= self.session(top["session"])
        self.finish()
        return WebSettings(**values)

    def listen(self, value: Any) -> Address:
        address = parse_address(value)
        if address is None:
            self.fail(("listen",), f"listen: {value!r} must be HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
        return address or DEFAULT_LISTEN

    def url(self, value: Any) -> str | None:
        if (url := page_address(value)) is None:
            self.fail(
                ("url",), f"url: {value!r} must be the address of the page, such as https://gpu.example.org"
            )
        return url

    def networks(self, value: Any) -> tuple[Network, ...]:
        found: list[Network] = []
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if (network := read_network(item)) is None:
                at = ("trusted_proxies", index) if isinstance(value, list) else ("trusted_proxies",)
                self.fail(at, f"trusted_proxies: {item!r} {EXPECTED}")
            else:
                found.append(network)
        return tuple(found)

    def header(self, value: Any) -> str | None:
        if isinstance(value, str) and _HEADER.fullmatch(value):
            return value
        self.fail(("user_header",), f"user_header: {value!r} must be a header's name, such as X-Remote-User")
        return None

    def session(self, value: Any) -> dict[str, Any]:
        table = self.mapping(("session",), value, ("lifetime", "idle", "key_file"))
        found: dict[str, Any] = {}
        for key in ("lifetime", "idle"):
            if key in table:
                found[f"session_{key}_s"] = self.duration(
                    ("session", key),
                    table[key],
                    _LEAST_SESSION_S,
                    _MOST_SESSION_S,
                    "from 1m to 31d, such as 2h",
                )
        if "key_file" in table:
            path = table["key_file"]
            if isinstance(path, str) and Path(path).is_absolute():
                found["session_key_file"] = Path(path)
            else:
                self.fail(
                    ("session", "key_file"), f"key_file: {path!r} must be the path of a file, from / on"
                )
        return found

    def refresh(self, value: Any) -> float:
        return self.duration(("refresh",), value, _LEAST_S, _MOST_S, "from 1s to 60s, such as 3s")

    def duration(self, at: Location, value: Any, least_s: float, most_s: float, example: str) -> float:
        seconds = self.seconds(at, value)
        if seconds is not None and least_s <= seconds <= most_s:
            return seconds
        self.fail(at, f"{at[-1]}: {value!r} must be a duration {example}")
        return least_s
