"""The accounts and users of the lab in Slurm."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from lab.errors import LabError
from lab.people import ACCOUNTS, PEOPLE
from lab.slurm_config import CLUSTER


def write(path: Path) -> None:
    """Write the cluster, accounts and users to a file that ``sacctmgr load`` commits in one transaction."""
    lines = [f"Cluster - '{CLUSTER}'", "Parent - 'root'"]
    lines += [f"Account - '{name}'" for name in ACCOUNTS]
    for account in ACCOUNTS:
        lines.append(f"Parent - '{account}'")
        for one in PEOPLE:
            if one.account == account:
                level = ":AdminLevel='Operator'" if one.operator else ""
                lines.append(f"User - '{one.name}':DefaultAccount='{account}'{level}")
    path.write_text("\n".join(lines) + "\n")


def ensure(path: Path, environment: Mapping[str, str]) -> None:
    """Load the file that ``write`` wrote into slurmdbd; entries that already exist cause no error."""
    loaded = _sacctmgr(environment, "-i", "load", str(path))
    users = _sacctmgr(environment, "-n", "-P", "show", "assoc", "format=account,user").stdout.split()
    if missing := {f"{one.account}|{one.name}" for one in PEOPLE} - set(users):
        refused = ", ".join(sorted(missing))
        raise LabError(f"slurmdbd did not accept {refused}:\n{loaded.stdout}{loaded.stderr}")


def _sacctmgr(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sacctmgr", *arguments],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
