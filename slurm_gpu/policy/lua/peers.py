"""Compare the copies of job_submit.lua on the hosts of slurmctld and on other hosts.

Each host has its own copy, unless the hosts share the directory of slurm.conf. Without the script, a backup
slurmctld does not start. All hosts of slurmctld share StateSaveLocation, so `policy apply` writes a report to
that directory. On any host that can read the reports, `slurm-gpu doctor`, `explain` and `quota` compare them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.errors import OutsideError, outside
from slurm_gpu.files.atomic import write_whole
from slurm_gpu.policy.lua.in_force import without_run_directory
from slurm_gpu.slurm.client import SlurmSettings

_VERSION = 1
_DIRECTORY = "slurm-gpu"
_INDEX = re.compile(r"SlurmctldHost(?:\[(\d+)\])?")
_SHARED = re.compile(r"nfs|lustre|gpfs|ceph|beegfs|glusterfs|afs|gfs2|ocfs2|cifs|smb|wekafs|pvfs|orangefs|9p")


@dataclass(frozen=True, slots=True)
class PeerScript:
    """The report on the script of a host, written when a policy was last applied on that host."""

    host: str
    digest: str
    at_s: int


def controllers(settings: SlurmSettings) -> list[str]:
    """Return the short names of the hosts on which slurmctld may run, the primary one first."""
    found = {
        int(match[1] or 0): value.partition("(")[0].partition(".")[0]
        for key, value in settings.raw.items()
        if (match := _INDEX.fullmatch(key)) and value not in ("", "(null)")
    }
    return [found[index] for index in sorted(found)]


def this_host() -> str:
    """Return the short name of this host."""
    return os.uname().nodename.partition(".")[0]


def is_backup(settings: SlurmSettings, host: str) -> bool:
    """Return whether slurmctld runs on `host` only while other hosts are down."""
    return host in controllers(settings)[1:]


def digest_of(script: Path) -> str | None:
    """Return the SHA-256 of a script without the paths that `--run-dir` sets; None if there is no script."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutsideError(f"{script}: {error.strerror}") from error
    return hashlib.sha256(without_run_directory(text).encode()).hexdigest()


def shared_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the network file system that contains `path`; None if the file system is local."""
    best, kind = Path("/"), ""
    real = path.resolve()
    for line in mounts.read_text(errors="replace").splitlines():
        _, where, this_kind, *_ = line.split(" ")
        point = Path(where.replace("\\040", " "))
        if real.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, this_kind
    return kind if _SHARED.search(kind) else None


def write_report(settings: SlurmSettings, host: str, script: Path, at_s: float) -> None:
    """Write the report on the script of `host`; raise OutsideError if StateSaveLocation is not writable."""
    directory = _directory(settings)
    file = directory / f"policy-{host}.json"
    report = {"version": _VERSION, "host": host, "digest": digest_of(script), "at_s": int(at_s)}
    with outside(file):
        if not directory.exists():
            directory.mkdir(mode=0o755)
            if os.geteuid() == 0:  # otherwise SlurmUser could not write to the directory later
                os.chown(directory, settings.slurm_user_uid, -1)
        write_whole(file, json.dumps(report) + "\n", mode=0o644, owner_uid=settings.slurm_user_uid)


def read_reports(settings: SlurmSettings) -> dict[str, PeerScript]:
    """Return the reports by host; raise OutsideError if StateSaveLocation cannot be read."""
    try:
        files = [file for file in _directory(settings).iterdir() if file.match("policy-*.json")]
        return {reports.host: reports for file in files for reports in _read(file)}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OutsideError(f"{error.filename}: {error.strerror}") from error


def differing_hosts(
    settings: SlurmSettings, host: str, script: Path
) -> Iterator[tuple[str, PeerScript | None]]:
    """Yield the other hosts whose report differs from the script of `host`, or is missing (None)."""
    own_digest, reports = digest_of(script), read_reports(settings)
    for other in controllers(settings):
        if other != host and (other not in reports or reports[other].digest != own_digest):
            yield other, reports.get(other)


def newer_elsewhere(settings: SlurmSettings, host: str, script: Path) -> PeerScript | None:
    """Return the newest report if another host got a different script after `host` got its own.

    Return None if no report can be read, for example because the host does not share StateSaveLocation.
    """
    try:
        newest = max(read_reports(settings).values(), key=lambda report: report.at_s, default=None)
        if newest is None or newest.host == host or newest.digest == digest_of(script):
            return None
        return newest if newest.at_s > since_s(settings, host, script) else None
    except OutsideError:
        return None


def since_s(settings: SlurmSettings, host: str, script: Path) -> int:
    """Return the time when `host` got its current script.

    Use the time in the report of `host` or, if the script was changed later, its modification time.
    """
    report = read_reports(settings).get(host)
    if report is not None and report.digest == digest_of(script):
        return report.at_s
    with outside(script):
        return int(script.stat().st_mtime)


def _directory(settings: SlurmSettings) -> Path:
    return Path(settings.raw.get("StateSaveLocation", "/var/spool/slurmctld")) / _DIRECTORY


def _read(file: Path) -> Iterator[PeerScript]:
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        if plain["version"] == _VERSION:
            yield PeerScript(host=str(plain["host"]), digest=str(plain["digest"]), at_s=int(plain["at_s"]))
    except (ValueError, KeyError, TypeError):
        return  # treat a report from a later version or an incomplete report as missing
