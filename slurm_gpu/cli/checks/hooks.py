"""Whether Slurm runs our prolog and epilog, and nothing beside them that drains nodes."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.cli.checks.drains import nothing, traps
from slurm_gpu.cli.checks.finding import Finding, Surroundings, fail, may_read, ok, skipped, warn
from slurm_gpu.cli.checks.processes import daemons
from slurm_gpu.cli.checks.trusted import others_may_write
from slurm_gpu.policy.peers import shared_file_system
from slurm_gpu.slurm.conffile import read_conf, settings_named

KINDS = ("Prolog", "Epilog")
PACKAGED = Path("/usr/libexec/slurm-gpu/hooks")
"""Where the package keeps their texts, and the command that puts them where Slurm runs them."""

_CONF = Path("/etc/slurm")
_NAME_OF = {"Prolog": "10-slurm-gpu", "Epilog": "90-slurm-gpu"}
"""What `place` calls them: of the prologs ours is the last to run, of the epilogs the first."""
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
        return self.path.name in _NAME_OF.values() or _HEAD.match(self.text) is not None

    @property
    def is_stub(self) -> bool:
        """Whether it is what a removal left."""
        match = _HEAD.match(self.text)
        return match is not None and match["stub"] is not None


def configured(at: Surroundings) -> Iterator[Finding]:
    """Prolog and Epilog run ours; every file that they name can be run, else Slurm drains nodes."""
    conf = at.slurm_conf.parent  # where slurmctld sends what has no absolute path (configless)
    for kind in KINDS:
        patterns = patterns_of(at.settings.raw, kind)
        yield from _passed_over(at, kind, patterns)
        if not patterns:
            glob_here = f"{Path(at.settings.conf_path).parent}/{kind.lower()}.d/*"
            yield fail(
                f"slurm.conf has no {kind}: jobs leave no GPU records",
                f"{placing(kind, [glob_here])} on each GPU node, and on each node without GPUs "
                f"{nothing(glob_here)}; then {kind}={glob_here} in slurm.conf; scontrol reconfigure",
            )
        elif not at.nodes_here:
            yield skipped(f"{kind}={','.join(patterns)} lies on nodes, and this host is none")
        else:
            yield from _files(at, kind, [str(conf / pattern) for pattern in patterns])


def patterns_of(raw: Mapping[str, str], kind: str) -> list[str]:
    """Return the patterns of Prolog or Epilog; later versions print several as Prolog[0], Prolog[1] …

    Slurm takes a value as one glob pattern: a comma is part of it.
    """
    pattern = re.compile(rf"{kind}(\[\d+\])?")
    return [value for name, value in raw.items() if pattern.fullmatch(name) and value not in ("", "(null)")]


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
        lines = settings_named(read_conf(at.slurm_conf), kind)
    except OSError:
        return  # slurm.conf is another host's
    lost = [line for line in lines if line.value and line.value.strip() not in heeded]
    if len(lines) > 1 and heeded and lost:
        yield fail(
            f"slurm.conf has {len(lines)} lines {kind}=, and Slurm {at.settings.version} heeds "
            f"{','.join(heeded)} alone: {lost[0].value} ({lost[0].place}) is not run",
            f"one line {kind}=, and all {kind.lower()}s in one directory; scontrol reconfigure",
        )


def _files(at: Surroundings, kind: str, patterns: Sequence[str]) -> Iterator[Finding]:
    """What the patterns match on this node, which has GPUs or not."""
    ours: list[HookFile] = []
    found: list[Finding] = []
    unread = []
    n_files = 0
    for pattern in patterns:
        directory = Path(pattern).parent
        if directory.exists() and not may_read(directory):
            unread.append(directory)
            continue
        paths = matched(pattern)
        found += traps(kind, pattern, paths, placing(kind, [pattern]) if at.is_gpu_node else nothing(pattern))
        found += others_may_write(at, directory, "a file that is put there runs as root")
        for path in paths:
            found += others_may_write(at, path, "it runs as root for every job")
        n_files += len(paths)
        mine = [file for file in map(hook_file, paths) if file.is_ours]
        for file in mine:
            found += _order(kind, file, paths)
        ours += mine
    yield from found
    working = [file for file in ours if not file.is_stub]
    if unread:
        yield skipped(f"{unread[0]} is root's; run doctor as root")
    elif not at.is_gpu_node:
        yield from _without_gpus(at, kind, patterns, working, found)
    elif working:
        yield from _ours(kind, working)
    elif ours:
        yield fail(
            f"{ours[0].path} is the stub that a removal of slurm-gpu left: jobs leave no GPU records",
            placing(kind, patterns),
        )
    elif n_files:
        yield fail(
            f"{kind}={','.join(patterns)} does not run our hook: jobs leave no GPU records",
            placing(kind, patterns),
        )


def _without_gpus(
    at: Surroundings, kind: str, patterns: Sequence[str], ours: Sequence[HookFile], found: Sequence[Finding]
) -> Iterator[Finding]:
    # Where nodes share their hooks, those with GPUs need it; it stops writing when too much waits.
    if ours and not daemons(at.proc, "slurm-gpud") and shared_file_system(ours[0].path) is None:
        yield warn(
            f"{ours[0].path} runs on this node without GPUs, and no slurm-gpud takes in what it writes",
            "dnf remove slurm-gpu-node, which leaves a hook that does nothing"
            if PACKAGED.is_dir()
            else f"install -m 755 /usr/bin/true {ours[0].path}",
        )
    elif not found:
        yield ok(f"{kind}={','.join(patterns)} matches what can be run; this node has no GPUs")


def placing(kind: str, patterns: Sequence[str]) -> str:
    """How to put our hook where one of these patterns of Prolog or Epilog finds it."""
    name = _NAME_OF[kind]
    fitting = [path for path in map(Path, patterns) if fnmatch.fnmatchcase(name, path.name)]
    for path in fitting:
        if path.parent.name == f"{kind.lower()}.d":
            conf = path.parent.parent
            return f"{PACKAGED}/place install" + ("" if conf == _CONF else f" --conf {conf}")
    if fitting:
        hook = fitting[0].with_name(name)
        return f"install -D -m 755 {PACKAGED}/{kind.lower()} {hook}, now and after each upgrade"
    return (
        f"{PACKAGED}/place install; then {kind}={_CONF}/{kind.lower()}.d/* in slurm.conf, "
        f"with a copy of {patterns[0]} in that directory; scontrol reconfigure"
    )


def _order(kind: str, ours: HookFile, paths: Sequence[Path]) -> Iterator[Finding]:
    """Files run in reverse order of their names."""
    if kind == "Prolog":
        after = [path for path in paths if path.name < ours.path.name]
        says = "after our prolog, and the job is charged with its minutes"
    else:
        after = [path for path in paths if path.name > ours.path.name]
        says = "before our epilog, and the job is charged with its minutes"
    others = [path for path in after if path.is_file() and not hook_file(path).is_ours]
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
        remedy = placing(kind, [str(files[0].path.with_name("*"))])
        yield warn(f"{files[0].path} is not the {kind.lower()} of the package installed here", remedy)
    else:
        yield ok(f"{kind} runs our hook, {files[0].path}")
