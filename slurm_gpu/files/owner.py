"""Describe the owners of files and directories in messages."""

from __future__ import annotations

import os
import pwd
import shlex
from pathlib import Path


def user_name(uid: int) -> str:
    """Return the name of a user, or the uid as text if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def why_not_writable(directory: Path) -> str:
    """Return the reason why a daemon of SlurmUser cannot write to its directory, and the remedy."""
    me = user_name(os.geteuid())
    try:
        owner = user_name(directory.stat().st_uid)
    except FileNotFoundError:
        fault = f"the directory {directory} does not exist"
    except OSError as error:
        fault = f"{error.filename}: {error.strerror} for {me}"
    else:
        fault = f"{me} may not write to {directory}, which belongs to {owner}"
    return (
        f"{fault}; SlurmUser must own it: run systemd-tmpfiles --create slurm-gpu.conf, or install -d "
        f"-o slurm -m 755 {shlex.quote(str(directory))}"
    )
