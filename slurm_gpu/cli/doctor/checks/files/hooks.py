"""Check that Slurm runs our prolog and epilog, and that no other hook drains nodes."""

from __future__ import annotations

import fnmatch
import glob
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.files.hook_file import (
    NAME_OF,
    PACKAGED,
    HookFile,
    has_package,
    hook_file,
    is_readable,
    source_of,
)
from slurm_gpu.cli.doctor.checks.files.trusted import others_may_write
from slurm_gpu.cli.doctor.checks.finding import (
    CheckResult,
    DoctorContext,
    Level,
    fail,
    may_read,
    ok,
    skipped,
    warn,
)
from slurm_gpu.cli.doctor.checks.slurm.drains import drains, nothing, traps
from slurm_gpu.policy.lua.peers import shared_file_system
from slurm_gpu.slurm.conf_file import read_conf, settings_named

KINDS = ("Prolog", "Epilog")

_CONF = Path("/etc/slurm")
# The start of the line that `place` adds at the end of a hook.
_SIGNATURE = "# Placed by slurm-gpu"


def configured(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Prolog and Epilog run our hooks and match only executable files (others drain nodes)."""
    conf = at.slurm_conf.parent  # relative names are in the directory that slurmctld sends (configless)
    for kind in KINDS:
        patterns = patterns_of(at.settings.raw, kind)
        unread = _unread(at, kind, patterns)
        yield from _passed_over(at, kind, patterns)
        # Slurm 24.11 and later run the hooks of all lines, so unread lines add hooks to those that run now.
        added = unread if _has_several(at, kind) and unread != _written(at, kind) else []
        reconfigure = "run scontrol reconfigure"
        if unread and at.nodes_here and not added:
            # After the next reconfiguration, Slurm would run these files, so report their problems now.
            files = list(_files(at, kind, [str(conf / pattern) for pattern in unread]))
            yield from (finding for finding in files if finding.level is not Level.OK)
            if {Level.WARN, Level.FAIL} & {finding.level for finding in files}:
                reconfigure += " after you have fixed all other findings of this check"
        if not patterns and unread:
            yield fail(
                f"{at.slurm_conf} has {kind}={','.join(unread)}, which Slurm has not read yet: jobs leave no "
                "GPU records",
                reconfigure,
            )
        elif not patterns:
            glob_here = f"{Path(at.settings.conf_path).parent}/{kind.lower()}.d/*"
            yield fail(
                f"slurm.conf has no {kind}: jobs leave no GPU records",
                f"{_preparing(at, kind, glob_here)} set {kind}={glob_here} in slurm.conf and run scontrol "
                "reconfigure",
            )
        elif not at.nodes_here:
            yield skipped(f"{kind}={','.join(patterns)} runs on nodes, and this host is not one")
        elif (differs := _not_here(at, kind, patterns)) is not None:
            yield differs
        else:
            yield from _files(at, kind, [str(conf / pattern) for pattern in (*patterns, *added)])
            if added:
                yield warn(
                    f"{at.slurm_conf} has {kind}={','.join(added)}, which Slurm has not read yet",
                    "run scontrol reconfigure after you have fixed all other findings of this check",
                )


def _preparing(at: DoctorContext, kind: str, pattern: str) -> str:
    """Return what to do on the nodes before slurm.conf names this pattern."""
    files = [hook_file(path) for path in matched(pattern)]
    if at.is_gpu_node and any(file.event == kind.lower() for file in files):
        return f"once each node has a hook that {pattern} matches, as this node does,"
    return (
        f"{placing(kind, [pattern])} on each GPU node, and {nothing(pattern)} on each node without GPUs; then"
    )


def _has_several(at: DoctorContext, kind: str) -> bool:
    """Return whether Slurm uses all lines of the hook (24.11 and later), not only the last."""
    return f"{kind}[0]" in at.settings.raw


def _unread(at: DoctorContext, kind: str, patterns: Sequence[str]) -> list[str]:
    """Return the patterns in slurm.conf that Slurm will use only after a reconfiguration."""
    written = _written(at, kind) or []
    if patterns and not _has_several(at, kind):
        written = written[-1:]
    return [pattern for pattern in written if pattern not in patterns]


def patterns_of(raw: Mapping[str, str], kind: str) -> list[str]:
    """Return the patterns of Prolog or Epilog.

    Later versions of Slurm print several values as Prolog[0], Prolog[1] and so on. Each value is one glob
    pattern, in which a comma has no special meaning.
    """
    pattern = re.compile(rf"{kind}(\[\d+\])?")
    return [value for name, value in raw.items() if pattern.fullmatch(name) and value not in ("", "(null)")]


def matched(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, sorted by name."""
    return sorted(Path(name) for name in glob.glob(pattern))  # noqa: PTH207 - an absolute pattern


def placed(at: DoctorContext, kind: str, *etc: Path) -> list[HookFile]:
    """Return slurm-gpu's hooks in prolog.d or epilog.d of these directories, where it is installed."""
    directories = dict.fromkeys((at.slurm_etc, *etc))
    files = [hook_file(path) for one in directories for path in matched(f"{one}/{kind.lower()}.d/*")]
    return [file for file in files if file.is_ours]


def _passed_over(at: DoctorContext, kind: str, used: Sequence[str]) -> Iterator[CheckResult]:
    """Yield a finding if slurm.conf sets `kind` several times and Slurm silently uses only the last value."""
    if _has_several(at, kind):
        return
    try:
        lines = settings_named(read_conf(at.slurm_conf), kind)
    except OSError:
        return  # slurm.conf is on another host
    lost = [line for line in lines if line.value and line.value.strip() not in used]
    if len(lines) > 1 and used and lost:
        yield fail(
            f"slurm.conf has {len(lines)} lines {kind}=, but Slurm {at.settings.version} uses only "
            f"{','.join(used)}: {lost[0].value} ({lost[0].place}) is not run",
            f"use one line {kind}=, put all {kind.lower()}s into one directory, and run scontrol reconfigure",
        )


def _written(at: DoctorContext, kind: str) -> list[str] | None:
    """Return the patterns of Prolog or Epilog in this host's slurm.conf; None if it cannot be read."""
    try:
        lines = settings_named(read_conf(at.slurm_conf), kind)
    except OSError:
        return None
    return [line.value.strip() for line in lines if line.value]


def _not_here(at: DoctorContext, kind: str, patterns: Sequence[str]) -> CheckResult | None:
    """Return a finding if slurmd, which reads this host's slurm.conf, uses values other than slurmctld's."""
    here = _written(at, kind)
    if here is None or set(here) & set(patterns):
        return None
    own = f"{kind}={','.join(here)}" if here else f"no {kind}"
    return fail(
        f"slurmctld has {kind}={','.join(patterns)}, but {at.slurm_conf} on this node has {own}, which "
        "slurmd uses",
        f"copy slurmctld's slurm.conf to {at.slurm_conf} if the files differ, then run scontrol reconfigure",
    )


def _files(at: DoctorContext, kind: str, patterns: Sequence[str]) -> Iterator[CheckResult]:
    """Yield findings about the files that the patterns match on this node."""
    ours: list[HookFile] = []
    found: list[CheckResult] = []
    unread = []
    n_files = 0
    for pattern in patterns:
        directory = Path(pattern).parent
        if directory.exists() and not may_read(directory):
            unread.append(directory)
            continue
        paths = matched(pattern)
        found += traps(
            kind, pattern, paths, _adding(at, kind, [pattern]) if at.is_gpu_node else nothing(pattern)
        )
        found += others_may_write(at, directory, "a file that is put there runs as root")
        for path in paths:
            found += others_may_write(at, path, "it runs as root for every job")
        n_files += len(paths)
        unread += [path for path in paths if path.is_file() and not is_readable(path)]
        mine = [file for file in map(hook_file, paths) if file.is_ours or file.event is not None]
        for file in mine:
            found += _order(kind, file, paths)
        ours += mine
    yield from found
    working = [file for file in ours if file.event == kind.lower()]
    swapped = [file for file in ours if file.event not in (None, kind.lower())]
    for file in swapped:
        yield fail(
            f"{file.path} runs as {kind}, but is slurm-gpu's {file.event}, so it reports the wrong event for "
            "each job",
            _replacing(kind, file.path),
        )
    idle = [file for file in ours if file.event is None and not file.is_stub and is_readable(file.path)]
    for file in idle if at.is_gpu_node and not working else ():
        yield fail(
            f"{file.path} has the name of slurm-gpu's {kind.lower()}, but does not run it: "
            "jobs leave no GPU records",
            f"run cp -p {shlex.quote(str(file.path))} {file.path.parent.parent} to keep it, then "
            f"{_replacing(kind, file.path)}",
        )
    if unread:
        yield skipped(f"only root may read {unread[0]}; run doctor as root")
    elif not at.is_gpu_node:
        yield from _without_gpus(at, kind, patterns, working, found)
    elif working:
        fails = any(True for file in working for _ in drains(kind, file.path))
        yield from (one for one in _ours(kind, working) if not (fails and one.level is Level.OK))
    elif swapped or idle:
        return
    elif ours:
        yield fail(
            f"{ours[0].path} is the stub that a removal of slurm-gpu left: jobs leave no GPU records",
            placing(kind, patterns),
        )
    elif n_files:
        yield fail(
            f"{kind}={','.join(patterns)} does not run our hook: jobs leave no GPU records",
            _adding(at, kind, patterns),
        )


def _without_gpus(
    at: DoctorContext,
    kind: str,
    patterns: Sequence[str],
    ours: Sequence[HookFile],
    found: Sequence[CheckResult],
) -> Iterator[CheckResult]:
    # If nodes share their hooks, nodes with GPUs need this hook. It stops writing if too many events wait.
    if ours and not running("slurm-gpud") and shared_file_system(ours[0].path) is None:
        yield warn(
            f"{ours[0].path} runs on this node without GPUs, but no slurm-gpud reads its events",
            "run dnf remove slurm-gpu-node, which leaves a hook that does nothing"
            if has_package()
            else f"run install -m 755 /usr/bin/true {ours[0].path}",
        )
    elif not found:
        yield ok(f"{kind}={','.join(patterns)} matches only executable files; this node has no GPUs")


def _text(kind: str) -> str:
    source = source_of(kind)
    return f"{kind.lower()}/10-slurm-gpu of slurm-gpu's source" if source is None else str(source)


def _replacing(kind: str, path: Path) -> str:
    return f"run install -m 755 {_text(kind)} {shlex.quote(str(path))}"


def _adding(at: DoctorContext, kind: str, patterns: Sequence[str]) -> str:
    """Return how to make these patterns run our hook, which may be in a directory that they do not name."""
    elsewhere = [file for file in placed(at, kind, at.slurm_conf.parent) if file.event == kind.lower()]
    if not elsewhere:
        return placing(kind, patterns)
    path = elsewhere[0].path
    return (
        f"{path} is our hook: if {patterns[0]} is a mistake, set {kind}={path.parent}/* in slurm.conf and "
        f"run scontrol reconfigure; otherwise {placing(kind, patterns)}"
    )


def placing(kind: str, patterns: Sequence[str]) -> str:
    """Return how to install our hook where one of these patterns of Prolog or Epilog matches it."""
    name = NAME_OF[kind]
    fitting = [path for path in map(Path, patterns) if fnmatch.fnmatchcase(name, path.name)]
    for path in fitting:
        if path.parent.name == f"{kind.lower()}.d" and has_package():
            conf = path.parent.parent
            return f"run {PACKAGED}/place install" + ("" if conf == _CONF else f" --conf {conf}")
    if fitting:
        hook = fitting[0].with_name(name)
        return f"run install -D -m 755 {_text(kind)} {hook}, and again after each upgrade"
    placed = f"{_CONF}/{kind.lower()}.d"
    by_hand = f"install -D -m 755 {_text(kind)} {placed}/{name}"
    how = f"{PACKAGED}/place install" if has_package() else by_hand
    return (
        f"run {how}; then copy {patterns[0]} into {placed}, set {kind}={placed}/* in slurm.conf, and run "
        "scontrol reconfigure"
    )


def _order(kind: str, ours: HookFile, paths: Sequence[Path]) -> Iterator[CheckResult]:
    """Yield a warning if another hook delays jobs: Slurm runs hooks in the reverse order of their names."""
    if kind == "Prolog":
        after = [path for path in paths if path.name < ours.path.name]
        when = "after our prolog"
    else:
        after = [path for path in paths if path.name > ours.path.name]
        when = "before our epilog"
    others = [path for path in after if path.is_file() and _is_others(hook_file(path))]
    if others:
        side = "after" if kind == "Prolog" else "before"
        yield warn(
            f"{others[0]} runs {when}, so its duration counts as job time: Slurm runs hooks in the "
            "reverse order of their names",
            f"rename it so that its name sorts {side} {ours.path.name}",
        )


def _is_others(file: HookFile) -> bool:
    return not file.is_ours and file.event is None


def _ours(kind: str, files: Sequence[HookFile]) -> Iterator[CheckResult]:
    if len(files) > 1:
        names = " and ".join(str(file.path) for file in files)
        yield warn(
            f"{names} are both our {kind.lower()}: each job is reported twice",
            f"run rm {shlex.quote(str(files[-1].path))}",
        )
    packaged = hook_file(PACKAGED / kind.lower()).text
    body, signature, _ = files[0].text.partition(_SIGNATURE)
    if packaged and signature and body != packaged:
        remedy = placing(kind, [str(files[0].path.with_name("*"))])
        yield warn(f"{files[0].path} differs from the {kind.lower()} of the installed package", remedy)
    else:
        yield ok(f"{kind} runs our hook, {files[0].path}")
