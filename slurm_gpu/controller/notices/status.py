"""Write and read notices.json in the run directory: the current findings for `slurm-gpu notices`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_gpu.errors import OutsideError, outside
from slurm_gpu.files.atomic import write_whole

FILE_NAME = "notices.json"
_VERSION = 1
# Maximum age of a current status.
FRESH_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlookEntry:
    """One finding about one job, and its consequence."""

    job_id: int
    id: str
    user: str
    kind: str
    stage: int
    since_s: float
    coverage: float
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of notices at one moment."""

    as_of_s: float
    mode: str
    cancels: str | None
    """The mode of cancel_idle in the policy in force; None if the policy has no cancel_idle."""
    outlook: Sequence[OutlookEntry]


def write(path: Path, status: Status, owner_uid: int) -> None:
    """Write the file atomically, readable only by SlurmUser, because it names jobs of all users."""
    with outside(path):
        text = json.dumps({"version": _VERSION, **asdict(status)}) + "\n"
        write_whole(path, text, owner_uid=owner_uid)


def read(path: Path) -> Status | None:
    """Return the status, or None if the file is missing or damaged; raise OutsideError on other failures."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["version"] != _VERSION:
            return None
        cancels = plain["cancels"]
        return Status(
            as_of_s=float(plain["as_of_s"]),
            mode=str(plain["mode"]),
            cancels=None if cancels is None else str(cancels),
            outlook=tuple(_line(one) for one in plain["outlook"]),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutsideError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _line(plain: dict[str, object]) -> OutlookEntry:
    return OutlookEntry(
        job_id=int(str(plain["job_id"])),
        id=str(plain["id"]),
        user=str(plain["user"]),
        kind=str(plain["kind"]),
        stage=int(str(plain["stage"])),
        since_s=float(str(plain["since_s"])),
        coverage=float(str(plain["coverage"])),
        outcome=str(plain["outcome"]),
    )
