"""slurm-gpuweb.yaml: where slurm-gpuweb listens, and how people reach it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_gpu.units import parse_duration
from slurm_gpu.yamlcheck import YamlCheck
from slurm_gpu.yamlsource import read_yaml

DEFAULT_PATH = Path("/etc/slurm-gpu/slurm-gpuweb.yaml")
DEFAULT_PORT = 6830
_LEAST_S, _MOST_S = 1.0, 60.0
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
        known = sorted({field.name for field in fields(WebSettings)} - {"refresh_s"} | {"refresh"})
        top = self.mapping((), {} if self.source.value is None else self.source.value, known)
        values: dict[str, Any] = {}
        if "listen" in top:
            values["listen"] = self.listen(top["listen"])
        if "url" in top:
            values["url"] = self.url(top["url"])
        if "refresh" in top:
            values["refresh_s"] = self.refresh(top["refresh"])
        self.finish()
        return WebSettings(**values)

    def listen(self, value: Any) -> Address:
        address = parse_address(value)
        if address is None:
            self.fail(("listen",), f"listen: {value!r} must be HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
        return address or DEFAULT_LISTEN

    def url(self, value: Any) -> str | None:
        try:
            parts = urlsplit(value)
            if (
                parts.scheme in ("http", "https")
                and parts.hostname
                and parts.port != 0
                and not (parts.query or parts.fragment or parts.username)
            ):
                return str(value).rstrip("/")
        except (ValueError, AttributeError, TypeError):
            pass
        self.fail(
            ("url",), f"url: {value!r} must be the address of the page, such as https://gpu.example.org"
        )
        return None

    def refresh(self, value: Any) -> float:
        try:
            seconds = parse_duration(value)
            if _LEAST_S <= seconds <= _MOST_S:
                return seconds
        except (ValueError, AttributeError, TypeError):
            pass
        self.fail(("refresh",), f"refresh: {value!r} must be a duration from 1s to 60s, such as 3s")
        return _LEAST_S
