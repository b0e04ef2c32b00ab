"""Slurm's own accounts and users of the lab."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from lab.errors import LabError
from lab.people import ACCOUNTS, PEOPLE
from lab.slurm_config import CLUSTER

_NOTHING_NEW = "Nothing new added"
_EXISTS = "already exists"


def ensure(environment: Mapping[str, str]) -> None:
    """Make the cluster, its accounts and users known to slurmdbd; fine if they are."""
    commands = [["add", "cluster", CLUSTER]]
    commands += [["add", "account", name] for name in ACCOUNTS]
    for one in PEOPLE:
        level = ["adminlevel=operator"] if one.operator else []
        commands.append(["add", "user", one.name, f"account={one.account}", *level])
    for command in commands:
        result = subprocess.run(
            ["sacctmgr", "-i", *command], env=dict(environment), capture_output=True, text=True, check=False
        )
        text = result.stdout + result.stderr
        if result.returncode != 0 and _NOTHING_NEW not in text and _EXISTS not in text:
            raise LabError(f"sacctmgr {' '.join(command)}: {text.strip()}")
