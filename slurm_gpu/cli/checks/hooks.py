"""Whether Slurm runs our prolog and epilog, and nothing beside them that drains nodes."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.cli.checks.finding import Finding, Surroundings, fail, ok, skipped, warn
from slurm_gpu.slurm.conffile import ConfLine, read_conf, settings_named

KINDS = ("Prolog", "Epilog")
PACKAGED = Path("/usr/libexec/slurm-gpu/hooks")
"""Where the package keeps their texts, and the command that puts them where Slurm runs them."""

_PLACE = f"{PACKAGED}/place install"
_NAMES = frozenset({"10-slurm-gpu", "90-slurm-gpu"})
_HEAD = re.compile(r"#!.*\n# Slurm (?:prolog|epilog): (?:tell slurm-gpud |(?P<stub>slurm-gpu was removed ))")
_SIGNATURE = "# Placed by slurm-gpu"
"""How the line begins that `place` adds, the last of the file."""
_READ_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class HookFile:
    """A file that Prolog or Epilog of slurm.conf matches."""

    path: Path
    text: str
    """How it begins; "" where it cannot be read."""

    @property
    def is_ours(self) -> bool:
        """Whether it is slurm-gpu's, by its very name or by its text; also where only a stub of it is left.

        A site's own hook may be called 50-slurm-gpu-health, and one called 10-slurm-gpu may run ours.
        """
        return self.path.name in _NAMES or _HEAD.match(self.text) is not None

    @property
    def is_stub(self) -> bool:
        """Whether it is what a removal left."""
        match = _HEAD.match(self.text)
        return match is not None and match["stub"] is not None


def configured(at: Surroundings) -> Iterator[Finding]:
    """Prolog and Epilog run ours; every file that they name can be run, else Slurm drains nodes."""
    for kind in KINDS:
        patterns, directory = patterns_of(at.settings.raw, kind), f"/etc/slurm/{kind.lower()}.d"
        yield from _passed_over(at, kind, patterns)
        if not patterns:
            yield fail(
                f"slurm.conf has no {kind}: jobs leave no GPU records",
                f"{_PLACE} on each GPU node; then {kind}={directory}/* in slurm.conf; scontrol reconfigure",
            )
        elif not at.is_gpu_node:
            yield skipped(f"{kind}={','.join(patterns)} lies on GPU nodes, and this host is none")
        else:
            yield from _files(kind, patterns)


def patterns_of(raw: Mapping[str, str], kind: str) -> list[str]:
    """What Prolog or Epilog names; later versions print several values as Prolog[0], Prolog[1] …"""
    pattern = re.compile(rf"{kind}(\[\d+\])?")
    found = [value for name, value in raw.items() if pattern.fullmatch(name) and value != "(null)"]
    return [part for value in found for part in value.split(",") if part]


def matched(pattern: str) -> list[Path]:
    """What slurmd finds there, in the order of names."""
    return sorted(Path(name) for name in glob.glob(pattern))  # noqa: PTH207 - an absolute pattern


def hook_file(path: Path) -> HookFile:
    """A file with how it begins."""
    try:
        with path.open("rb") as file:
            return HookFile(path, file.read(_READ_BYTES).decode("utf-8", "replace"))
    except OSError:
        return HookFile(path, "")


def _passed_over(at: Surroundings, kind: str, heeded: Sequence[str]) -> Iterator[Finding]:
    """Slurm 22.05 takes the last of several lines, and says nothing."""
    try:
        lines = settings_named(read_conf(Path(at.settings.conf_path)), kind)
    except OSError:
        return  # slurm.conf is another host's
    lost = [line for line in lines if _parts(line) and not set(_parts(line)) & set(heeded)]
    if len(lines) > 1 and heeded and lost:
        yield fail(
            f"slurm.conf has {len(lines)} lines {kind}=, and Slurm {at.settings.version} heeds "
            f"{','.join(heeded)} alone: {lost[0].value} ({lost[0].place}) is not run",
            f"one line {kind}=, and all {kind.lower()}s in one directory; scontrol reconfigure",
        )


def _parts(line: ConfLine) -> list[str]:
    return [part for part in line.value.split(",") if part]


def _files(kind: str, patterns: Sequence[str]) -> Iterator[Finding]:
    ours: list[HookFile] = []
    for pattern in patterns:
        paths = matched(pattern)
        if not paths:
            yield fail(
                f"{kind}={pattern} matches nothing: Slurm drains the node of the next job",
                f"{_PLACE}, or take {kind} out of slurm.conf and type scontrol reconfigure",
            )
        for path in paths:
            yield from _drains(kind, path)
        mine = [file for file in map(hook_file, paths) if file.is_ours]
        for file in mine:
            yield from _order(kind, file, paths)
        ours += mine
    working = [file for file in ours if not file.is_stub]
    if working:
        yield from _ours(kind, working)
    elif ours:
        yield fail(
            f"{ours[0].path} is the stub that a removal of slurm-gpu left: jobs leave no GPU records", _PLACE
        )
    else:
        yield fail(f"{kind}={','.join(patterns)} does not run our hook: jobs leave no GPU records", _PLACE)


def _drains(kind: str, path: Path) -> Iterator[Finding]:
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = 0  # a symbolic link that leads nowhere
    if not stat.S_ISREG(mode):
        yield fail(f"{path} is matched by {kind} and is no file: Slurm drains nodes", f"move {path} away")
    elif not os.access(path, os.X_OK):
        yield fail(
            f"{path} is matched by {kind} and cannot be executed: Slurm drains nodes",
            f"chmod +x {path}, or move it away",
        )
    elif mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield fail(
            f"{path} runs as root for every job, and others than its owner may write it",
            f"chmod go-w {path}; read it before",
        )


def _order(kind: str, ours: HookFile, paths: Sequence[Path]) -> Iterator[Finding]:
    """Files run in reverse order of their names."""
    if kind == "Prolog":
        after = [path for path in paths if path.name < ours.path.name]
        says = "after our prolog, and the job is charged with its minutes"
    else:
        after = [path for path in paths if path.name > ours.path.name]
        says = "before our epilog, and the job is charged with its minutes"
    others = [path for path in after if not hook_file(path).is_ours]
    if others:
        side = "behind" if kind == "Prolog" else "before"
        yield warn(
            f"{others[0]} runs {says}: Slurm goes by names, from the last to the first",
            f"rename it, so that its name comes {side} {ours.path.name}",
        )


def _ours(kind: str, files: Sequence[HookFile]) -> Iterator[Finding]:
    if len(files) > 1:
        names = " and ".join(str(file.path) for file in files)
        yield warn(f"{names} are both our {kind.lower()}: each job is told twice", f"rm {files[-1].path}")
    packaged = hook_file(PACKAGED / kind.lower()).text
    body, signature, _ = files[0].text.partition(_SIGNATURE)
    if packaged and signature and body != packaged:
        yield warn(f"{files[0].path} is not the {kind.lower()} of the package installed here", _PLACE)
    else:
        yield ok(f"{kind} runs our hook, {files[0].path}")
