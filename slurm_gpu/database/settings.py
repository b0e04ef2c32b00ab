"""slurm-gpudbd.yaml: where the database is. It may hold a password, so only its owner may read it."""

from __future__ import annotations

import stat
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_gpu.config.yaml_source import YamlSource, read_yaml
from slurm_gpu.database.http.networks import EXPECTED, Network, read_network
from slurm_gpu.database.http.web_reader import WebReader
from slurm_gpu.errors import InputError, UsageError

DEFAULT_PATH = Path("/etc/slurm-gpu/slurm-gpudbd.yaml")
DEFAULT_DATABASE = Path("/var/lib/slurm-gpu/slurm-gpu.db")
DEFAULT_URL = f"sqlite:///{DEFAULT_DATABASE}"
_EVERYWHERE = "0.0.0.0"
_LISTEN_EXAMPLE = "0.0.0.0:6829"
_KEYS = ("url", "listen", "workers", "web_user", "web_hosts", "per_user")
DEFAULT_WEB_USER = "slurm-gpu-web"
DEFAULT_WEB = WebReader(DEFAULT_WEB_USER)
MAX_WORKERS = 8
MAX_PER_USER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen for TCP connections."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PerUser:
    """What one user may read: requests served at once, and rows a second in the long run."""

    requests: int = 2
    rows_per_s: int = 2000


DEFAULT_PER_USER = PerUser()


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """The whole of slurm-gpudbd.yaml; without `listen`, all interfaces at the port that nodes are told.

    `workers` are processes that store what nodes ship, of which the first also imports; 0: one does it all.
    `web` is by what slurm-gpuweb is recognised. `per_user` bounds what one user reads.
    """

    url: str = DEFAULT_URL
    listen: Address | None = None
    workers: int = 0
    web: WebReader = DEFAULT_WEB
    per_user: PerUser = DEFAULT_PER_USER


def default_is_meant() -> bool:
    """Whether this is slurm-gpudbd's host without doubt: it has the default file, or the default database.

    Raises UsageError where the caller may not look.
    """
    try:
        return DEFAULT_PATH.exists() or DEFAULT_DATABASE.exists()
    except PermissionError as error:
        raise UsageError(
            f"only root, or who runs slurm-gpudbd, may look into {Path(error.filename).parent}, where the "
            "database is: run this as one of them"
        ) from None


def load_settings(path: Path | None) -> DaemonSettings:
    """Read and check the file; without `path` the default one, which may be missing.

    Raises InputError naming the place; also when others may read a password in it.
    """
    if path is None and not DEFAULT_PATH.exists():
        return DaemonSettings()
    path = DEFAULT_PATH if path is None else path
    source = read_yaml(path)
    values = source.value if source.value is not None else {}
    if not isinstance(values, dict):
        raise source.error((), f"must hold `key: value` lines such as url: {DEFAULT_URL}")
    for key in values:
        if key not in _KEYS:
            raise source.error(
                (str(key),), f"{key!r} is not a setting; allowed: {', '.join(_KEYS)}", key=True
            )
    settings = DaemonSettings(
        url=_text(source, "url", values.get("url", DEFAULT_URL), DEFAULT_URL),
        listen=_listen(source, values["listen"]) if "listen" in values else None,
        workers=_workers(source, values.get("workers", 0)),
        web=WebReader(
            _web_user(source, values.get("web_user", DEFAULT_WEB_USER)),
            _web_hosts(source, values.get("web_hosts", [])),
        ),
        per_user=_per_user(source, values.get("per_user", {})),
    )
    if _has_password(settings.url) and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise InputError(
            str(path), 0, 0, f"holds a password, but others may read it (mode {mode:04o}); chmod 0600 {path}"
        )
    return settings


def parse_address(text: str) -> Address:
    """HOST:PORT, [IPv6]:PORT or :PORT; raises UsageError."""
    try:
        parts = urlsplit(f"//{text}")
        if parts.port is not None and not (parts.path or parts.query or parts.fragment or parts.username):
            return Address(parts.hostname or _EVERYWHERE, parts.port)
    except ValueError:
        pass
    raise UsageError(f"{text!r} must be HOST:PORT, such as {_LISTEN_EXAMPLE}")


def default_address(url: str) -> Address:
    """All interfaces, at the port of `database:` in slurm-gpu.yaml."""
    port = urlsplit(url).port
    return Address(_EVERYWHERE, 80 if port is None else port)


def _listen(source: YamlSource, value: Any) -> Address:
    try:
        return parse_address(_text(source, "listen", value, _LISTEN_EXAMPLE))
    except UsageError as error:
        raise source.error(("listen",), f"listen: {error}") from None


def _workers(source: YamlSource, value: Any) -> int:
    if type(value) is int and 0 <= value <= MAX_WORKERS:
        return value
    raise source.error(("workers",), f"workers: {value!r} must be a number from 0 to {MAX_WORKERS}")


def _per_user(source: YamlSource, value: Any) -> PerUser:
    allowed = [field.name for field in fields(PerUser)]
    if not isinstance(value, dict):
        raise source.error(
            ("per_user",), f"per_user: {value!r} must be such as {{requests: 2, rows_per_s: 2000}}"
        )
    for key, bound in value.items():
        at = ("per_user", str(key))
        if key not in allowed:
            raise source.error(
                at, f"per_user: {key!r} is not a setting; allowed: {', '.join(allowed)}", key=True
            )
        if type(bound) is not int or not 1 <= bound <= MAX_PER_USER:
            raise source.error(at, f"{key}: {bound!r} must be a whole number from 1 to {MAX_PER_USER}")
    return PerUser(**value)


def _web_user(source: YamlSource, value: Any) -> str | int | None:
    if value is None:
        return None
    if type(value) is int and 0 < value < 1 << 32:
        return value
    if value in (0, "root"):
        raise source.error(
            ("web_user",), f"web_user: {value} may do everything here: slurm-gpuweb needs a user of its own"
        )
    if isinstance(value, str) and value:
        return value
    raise source.error(
        ("web_user",),
        f"web_user: {value!r} must be a user's name on this host, such as {DEFAULT_WEB_USER}, or a uid",
    )


def _web_hosts(source: YamlSource, value: Any) -> tuple[Network, ...]:
    found: list[Network] = []
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        if (network := read_network(item)) is None:
            at = ("web_hosts", index) if isinstance(value, list) else ("web_hosts",)
            raise source.error(at, f"web_hosts: {item!r} {EXPECTED}")
        found.append(network)
    return tuple(found)


def _text(source: YamlSource, key: str, value: Any, example: str) -> str:
    if isinstance(value, str) and value:
        return value
    raise source.error((key,), f"{key}: {value!r} must be a text such as {example}")


def _has_password(url: str) -> bool:
    # The driver also takes a password among the options.
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return parts.password is not None or "passw" in parts.query
