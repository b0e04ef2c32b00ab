"""Read slurm-gpudbd.yaml, which may contain a database password and must be readable only by its owner."""

from __future__ import annotations

import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from slurm_gpu.config.decoder import Items, decode
from slurm_gpu.config.value_types import (
    ADDRESS_OR_ANY_PORT,
    EVERYWHERE,
    Address,
    InvalidValueError,
    ValueType,
    require,
    text,
    whole_number,
)
from slurm_gpu.config.yaml_source import read_yaml
from slurm_gpu.errors import InputError, UsageError
from slurm_gpu.http.networks import NETWORK, Network
from slurm_gpu.http.web_reader import DEFAULT_WEB_USER, WebReader

DEFAULT_PATH = Path("/etc/slurm-gpu/slurm-gpudbd.yaml")
DEFAULT_DATABASE = Path("/var/lib/slurm-gpu/slurm-gpu.db")
DEFAULT_URL = f"sqlite:///{DEFAULT_DATABASE}"
_EXAMPLE_URL = DEFAULT_URL
_MOST_PER_USER = 1_000_000_000


class OpenToOthersError(InputError):
    """Raised if other users may read a file with a password; `fault` is the message without the remedy."""

    def __init__(self, path: Path, mode: int) -> None:
        what = f"contains a password, but is readable by other users (mode {mode:04o})"
        self.fault = f"{path}: {what}"
        super().__init__(str(path), 0, 0, f"{what}; chmod 0600 {shlex.quote(str(path))}")


def _parse_web_user(value: Any) -> str | int | None:
    if value in (0, "root"):
        raise InvalidValueError("has all rights here: slurm-gpuweb needs its own user")
    if isinstance(value, str | int):
        is_user = bool(value) if isinstance(value, str) else type(value) is int and 0 < value < 1 << 32
        return require(is_user, value)
    require(value is None, value)
    return None


_WEB_USER = ValueType("a user of this host, a uid, or null", DEFAULT_WEB_USER, _parse_web_user)


@dataclass(frozen=True, slots=True)
class PerUser:
    """Limits of one user: requests served at the same time, and the long-term rate in rows per second."""

    requests: Annotated[int, whole_number(1, _MOST_PER_USER), "Requests served at the same time."] = 2
    rows_per_s: Annotated[int, whole_number(1, _MOST_PER_USER), "Rows per second on average."] = 2000


DEFAULT_PER_USER = PerUser()


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """The settings in slurm-gpudbd.yaml."""

    url: Annotated[str, text(_EXAMPLE_URL), "The database, as an SQLAlchemy URL."] = DEFAULT_URL
    listen: Annotated[
        Address | None,
        ADDRESS_OR_ANY_PORT,
        "Default: all interfaces, at the port of `database:` in slurm-gpu.yaml.",
    ] = None
    workers: Annotated[
        int,
        whole_number(0, 8),
        "Additional processes that receive shipments.",
    ] = 0
    web_user: Annotated[str | int | None, _WEB_USER, "The user of slurm-gpuweb."] = DEFAULT_WEB_USER
    web_hosts: Annotated[
        tuple[Annotated[Network, NETWORK], ...],
        Items(or_one=True),
        "Other hosts that run slurm-gpuweb.",
    ] = ()
    per_user: Annotated[PerUser, "Limits on the requests of one user."] = DEFAULT_PER_USER

    @property
    def web(self) -> WebReader:
        """Return the user and hosts by which slurm-gpuweb is recognised."""
        return WebReader(self.web_user, self.web_hosts)


def default_is_meant() -> bool:
    """Return whether the default configuration file or database of slurm-gpudbd exists on this host.

    Raise UsageError if the caller may not check this.
    """
    try:
        return DEFAULT_PATH.exists() or DEFAULT_DATABASE.exists()
    except PermissionError as error:
        raise only_for_owner(Path(error.filename).parent) from None


def only_for_owner(path: Path) -> UsageError:
    """Return the error of a command that reads a file of the database which the caller may not read."""
    return UsageError(f"only root and SlurmUser may read {path}: run this command as root or SlurmUser")


def load_settings(path: Path | None) -> DaemonSettings:
    """Read and check the file at `path` or, if `path` is None, the default file if it exists.

    Raise InvalidFileError with all errors if the file is invalid, and OpenToOthersError if other users may
    read its password.
    """
    if path is None and not DEFAULT_PATH.exists():
        return DaemonSettings()
    path = DEFAULT_PATH if path is None else path
    settings = decode(read_yaml(path), DaemonSettings)
    if _has_password(settings.url) and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise OpenToOthersError(path, mode)
    return settings


def default_address(url: str) -> Address:
    """Return the address of all interfaces, with the port of slurm-gpudbd's address `url`."""
    port = urlsplit(url).port
    return Address(EVERYWHERE, 80 if port is None else port)


def _has_password(url: str) -> bool:
    # The driver also accepts a password in the query of the URL.
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return parts.password is not None or "passw" in parts.query
