"""Open listening sockets."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from slurm_gpu.config.value_types import Address
from slurm_gpu.errors import OutsideError
from slurm_gpu.files.owner import why_not_writable

# The kernel's own limit may be smaller.
_BACKLOG = 4096


def listen_tcp(address: Address) -> socket.socket:
    """Return a listening TCP socket; raise OutsideError if that fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OutsideError(f"cannot listen on {address}: {error.strerror or error}") from error


def listen_unix(path: Path) -> socket.socket:
    """Return a listening Unix socket for all users; replace an existing one that no process serves."""
    if _answers(path):
        raise OutsideError(f"another slurm-gpudbd is already listening on {path}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)  # the kernel identifies each peer
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        is_denied = isinstance(error, PermissionError)
        reason = why_not_writable(path.parent) if is_denied else error.strerror or error
        raise OutsideError(f"cannot listen on {path}: {reason}") from error
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) in (0, errno.EAGAIN)
