"""List the steps that remove slurm-gpu from a host without draining a node or refusing a job."""

from __future__ import annotations

import glob
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.outages import conf_of_commands, finding_slurm
from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import restart
from slurm_gpu.cli.doctor.checks.files.boot import timers
from slurm_gpu.cli.doctor.checks.files.hook_file import PACKAGED, HookFile, hook_file
from slurm_gpu.cli.doctor.checks.files.hooks import KINDS, matched, patterns_of, placed
from slurm_gpu.cli.doctor.checks.finding import DATABASE_FILE, WEB_FILE, DoctorContext, may_read
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.policy.journal import ApplyJournal
from slurm_gpu.policy.lua.install import SCRIPT_NAME, put_aside
from slurm_gpu.policy.lua.installed import read_chain
from slurm_gpu.policy.lua.peers import shared_file_system
from slurm_gpu.slurm.conf_file import ConfLine, read_conf, settings_named, written
from slurm_gpu.slurm.reservations import ReservationClient
from slurm_gpu.wire.answers.reservation import id_of

# The paths of units, other configuration of systemd, and links to commands according to install.md.
BY_HAND = (
    "/etc/systemd/system/slurm-gpu*",
    "/etc/tmpfiles.d/slurm-gpu*",
    "/etc/sysusers.d/slurm-gpu*",
    "/usr/bin/slurm-gpu",
    "/usr/sbin/slurm-gpu*",
)
_ENVIRONMENT = Path("/opt/slurm-gpu")
_WITHOUT_SLURM = (
    "Slurm's commands are not on the PATH, so this host is assumed to have no Slurm. If it has Slurm, run "
    "PATH=/opt/slurm/bin:/opt/slurm/sbin:$PATH slurm-gpu doctor uninstall"
)
_BY_HAND = "Remove slurm-gpu, which was not installed from packages on this host."
_REPLACED = "Replace the hooks with files that do nothing: Slurm drains nodes if a glob matches no file. "
_AGAIN = "Run this command again once the cause is fixed, or check this yourself."


@dataclass(frozen=True, slots=True)
class UninstallStep:
    """One step: what to do and why, and the lines to type or to write."""

    what: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Host:
    """The parts of slurm-gpu on this host, and the lines of its slurm.conf."""

    at: DoctorContext
    node: bool
    controller: bool
    slurm_conf: Path
    """The slurm.conf that was read; slurmctld may have sent it."""
    etc: Path
    """The directory of slurm.conf on hosts that have their own."""
    conf: Sequence[ConfLine] | None
    """None if slurm.conf cannot be read."""
    loaded: Sequence[str] = ()
    """The patterns of Prolog and Epilog that Slurm has read."""

    @property
    def script(self) -> Path:
        """Return the path of job_submit.lua."""
        return self.etc / SCRIPT_NAME

    def lines(self, name: str) -> list[ConfLine]:
        """Return the lines of slurm.conf that set this parameter."""
        return settings_named(self.conf or (), name)

    def matched(self, pattern: str) -> list[HookFile]:
        """Return the files that a value of Prolog or Epilog matches on this host."""
        return [hook_file(path) for path in matched(str(self.slurm_conf.parent / pattern))] if pattern else []

    def hooks(self) -> tuple[list[Path], list[Path]]:
        """Return our hooks that Slurm runs, or may run if slurm.conf is unknown, and our other hooks."""
        patterns = [*self.loaded, *(line.value for kind in KINDS for line in self.lines(kind))]
        run = [file.path for pattern in patterns for file in self.matched(pattern) if file.is_ours]
        found = [file.path for kind in KINDS for file in placed(self.at, kind, self.etc)]
        if self.conf is None:
            run += found
        # Two paths may refer to the same file, and Slurm may run the file through either path.
        real = {path.resolve(): path for path in reversed(run)}
        others = {path.resolve(): path for path in found if path.resolve() not in real}
        return [*reversed(real.values())], [*others.values()]


def uninstall_steps(at: DoctorContext) -> list[UninstallStep]:
    """Return all steps for this host in order; for a step that cannot be determined, return the reason."""
    host, found = _host(at)
    database, web = ((at.site.config_path.parent / name).exists() for name in (DATABASE_FILE, WEB_FILE))
    if host.controller:
        found += _or_reason("the limits of the policy in Slurm", _native_limits(host))
        found += _or_reason("placement:", _placement(at))
    found += _slurm_conf(host)
    parts = [
        ("slurm-gpu-node", "slurm-gpud", host.node),
        ("slurm-gpu-controller", "slurm-gpuctld", host.controller),
        ("slurm-gpu-db", "slurm-gpudbd", database),
        ("slurm-gpu-web", "slurm-gpuweb", web),
    ]
    packages = [package for package, _, is_here in parts if is_here]
    units = [unit for _, unit, is_here in parts if is_here]
    here = timers()  # systemctl disables nothing if one argument is not a unit
    units += here
    if any(timer.startswith("slurm-gpu-report-") for timer in here):
        packages.append("slurm-gpu-report")
    if stops := _stops(at, units):
        found.append(UninstallStep("Stop the daemons and timers of this host.", stops))
    if host.controller:
        found += _or_reason("the reservations that slurm-gpu created", _reservations(at))
    if at.has_packages():
        what = (
            "Remove the packages."
            if packages
            else "Remove the command: no other part of slurm-gpu is installed on this host."
        )
        if host.node or host.controller:
            what += (
                " Stubs that do nothing replace the hooks. Your own job_submit.lua is restored; without one, "
                "a stub that accepts every job replaces slurm-gpu's."
            )
            found += _shared(host)
        lines = (f"dnf remove {' '.join([*packages, 'slurm-gpu-client', 'slurm-gpu'])}",)
        found.append(UninstallStep(what, lines))
    else:
        run, _ = host.hooks()
        found.append(UninstallStep((_REPLACED if run else "") + _BY_HAND, tuple(_by_hand(host))))
    found += _leftovers(host, database=database, web=web)
    return found


def _host(at: DoctorContext) -> tuple[_Host, list[UninstallStep]]:
    """Return what is on this host, and a step for each part that cannot be determined."""
    notes: list[UninstallStep] = []
    loaded: list[str] = []
    try:
        node, controller, slurm_conf, etc = (
            at.is_gpu_node,
            at.is_controller,
            at.slurm_conf,
            Path(at.settings.conf_path).parent,
        )
        loaded = [pattern for kind in KINDS for pattern in patterns_of(at.settings.raw, kind)]
    except SlurmGpuError as error:
        node, controller = (at.has_unit(one) or bool(running(one)) for one in ("slurm-gpud", "slurm-gpuctld"))
        slurm_conf, etc = conf_of_commands(at), conf_of_commands(at).parent
        is_missing = finding_slurm(str(error)) is not None
        notes.append(
            UninstallStep(_WITHOUT_SLURM if is_missing else f"Slurm could not be checked: {error}. {_AGAIN}")
        )
        if is_missing and not slurm_conf.exists():
            return _Host(at, node, controller, slurm_conf, etc, None), notes  # this host has no Slurm
    conf = None
    try:
        conf = read_conf(slurm_conf)
    except OSError as error:
        notes.append(
            UninstallStep(
                f"slurm.conf could not be checked: {error.filename or slurm_conf}: {error.strerror}. Before "
                "you remove anything, remove the lines of Prolog, Epilog and JobSubmitPlugins from it that "
                "are only for slurm-gpu, and run scontrol reconfigure."
            )
        )
    return _Host(at, node, controller, slurm_conf, etc, conf, loaded), notes


def _or_reason(what: str, steps: Iterator[UninstallStep]) -> Iterator[UninstallStep]:
    """Yield the steps, or the reason why they cannot be determined; other steps do not depend on them."""
    try:
        yield from steps
    except (SlurmGpuError, OSError) as error:
        yield UninstallStep(f"It could not be checked whether to undo {what}: {error}. {_AGAIN}")


def _stops(at: DoctorContext, names: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that stop these units, and the processes of daemons without a unit."""
    units = [name for name in names if name.endswith(".timer") or at.has_unit(name)]
    processes = [one for name in names if name not in units for one in running(name)]
    ids = sorted({one.pid for one in processes})
    lines = [f"systemctl disable --now {' '.join(units)}"] if units else []
    return (*lines, f"kill {' '.join(map(str, ids))}") if ids else tuple(lines)


def _by_hand(host: _Host) -> Iterator[str]:
    """Yield the commands that remove slurm-gpu if it was installed from a checkout instead of packages."""
    run, others = host.hooks()
    for path in run:
        yield f"install -m 755 /usr/bin/true {shlex.quote(str(path))}"
    if host.controller and (own := _own_script(host)) is not None:
        yield shlex.join(("cp", "-p", str(own), str(host.script)))
    present = sorted(path for pattern in BY_HAND for path in glob.glob(pattern))  # noqa: PTH207
    if files := [*map(str, others), *present, *([str(host.at.run_dir)] if host.at.run_dir.exists() else [])]:
        yield f"rm -r {shlex.join(files)}"
    if present:
        yield "systemctl daemon-reload"
    if Path(sys.prefix) == _ENVIRONMENT:
        yield f"rm -r {_ENVIRONMENT}"
    else:
        yield f"{shlex.quote(sys.executable)} -m pip uninstall slurm-gpu"


def _native_limits(host: _Host) -> Iterator[UninstallStep]:
    at = host.at
    if not at.policy_state.exists():
        return
    if not may_read(at.policy_state):
        yield UninstallStep(
            "Only root and SlurmUser may see which of Slurm's own limits belong to the policy: run this as "
            "root."
        )
        return
    owned = ApplyJournal(at.policy_state).owned(at.settings.cluster)
    if owned:
        made = sorted({one.limit.item for one in owned if one.limit.name == "QOS"})
        chain = read_chain(host.script) or {}
        chained = ", ".join(f"{place}: {path}" for place, path in chain.items())
        lines = ["version: 1", *([f"chain: {{{chained}}}"] if chain else [])]
        yield UninstallStep(
            f"{len(owned)} of Slurm's own limits belong to the policy: apply a policy without rules to "
            "restore "
            "the limits that accounts and QOS had before.",
            (
                f"printf '%s\\n' {shlex.join(lines)} >/root/no-rules.yaml",
                "slurm-gpu policy apply /root/no-rules.yaml",
            ),
        )
        if made:
            yield UninstallStep(
                f"The QOS that accounts have for limits of the policy ({', '.join(made)}) remain, but "
                "without these limits: jobs may still use the QOS. Once squeue shows no job in them, "
                "delete the QOS that the policy created:",
                tuple(f"sacctmgr delete qos {name}" for name in made),
            )


def _placement(at: DoctorContext) -> Iterator[UninstallStep]:
    """Yield the steps that restore nodes and pending jobs, which remain changed when slurm-gpuctld exits."""
    if at.site.config.placement.mode == "enforce":
        yield UninstallStep(
            "Restore the Weight of nodes and the constraints of jobs that wait for a zone; without "
            "slurm-gpuctld such jobs could wait indefinitely. Change slurm-gpu.yaml, then restart:",
            (
                f"{at.site.config_path}: placement: mode: observe instead of enforce",
                restart(at, "slurm-gpuctld").removeprefix("run "),
            ),
        )


def _slurm_conf(host: _Host) -> Iterator[UninstallStep]:
    edits = [edit for kind in KINDS for edit in _hook_lines(host, kind)]
    plugins = list(_job_submit(host))
    if edits or plugins:
        where = "on each host that has a copy of it"
        if host.slurm_conf == host.at.conf_cache:
            where = "on the controller, which sent this node the copy named here"
        yield UninstallStep(f"In slurm.conf, {where}:", (*edits, *plugins))
        restarted = restart(host.at, "slurmctld").removeprefix("run ")
        again = (restarted, "(on each host of slurmctld)") if plugins else ()
        yield UninstallStep(
            "Make Slurm read the change before you remove anything.", (*again, "scontrol reconfigure")
        )


def _hook_lines(host: _Host, kind: str) -> Iterator[str]:
    for line in host.lines(kind):
        files = host.matched(line.value)
        if not host.node and not files:
            yield (
                f"{line.place}: {line} (run `slurm-gpu doctor uninstall` on a GPU node to see whether it may "
                "remain)"
            )
        # A glob that also matches other hooks remains as it is.
        elif files and all(file.is_ours for file in files):
            yield f"{line.place}: remove {line}"


def _job_submit(host: _Host) -> Iterator[str]:
    # The site's own script is restored, and runs as before.
    if not host.controller or read_chain(host.script) != {} or _own_script(host) is not None:
        return
    for line in host.lines("JobSubmitPlugins"):
        plugins = [part for part in line.value.split(",") if part]
        others = [part for part in plugins if part.rpartition("/")[2] != "lua"]
        if not others:
            yield f"{line.place}: remove {line}"
        elif len(others) < len(plugins):
            yield f"{line.place}: replace {line} by {written(line.key, ','.join(others))}"


def _reservations(at: DoctorContext) -> Iterator[UninstallStep]:
    """Yield steps for reservations, which no daemon manages without slurm-gpuctld."""
    if at.site.config.placement.reservations is None:
        return
    names = sorted(one.name for one in ReservationClient(at.site.run).all() if id_of(one.name) is not None)
    if names:
        yield UninstallStep(
            "Reservations remain in Slurm until they end. To delete a reservation that no job uses:",
            tuple(f"scontrol delete ReservationName={name}" for name in names),
        )


def _shared(host: _Host) -> Iterator[UninstallStep]:
    """Yield the steps for directories that packages do not change because other hosts may share them."""
    kind = shared_file_system(host.etc)
    commands = [("place", host.node), ("place-lua", host.controller)]
    lines = [f"{PACKAGED}/{command} remove --shared" for command, is_here in commands if is_here]
    if kind is not None and lines:
        yield UninstallStep(
            f"{host.etc} is on {kind}, which other hosts may share, so the packages do not change "
            "it. Run these only if you remove slurm-gpu from all of these hosts:",
            tuple(lines),
        )


def _own_script(host: _Host) -> Path | None:
    """Return the copy of the site's own script to restore; None if no copy is known or needed."""
    state = host.at.policy_state
    if not host.controller or not may_read(state) or read_chain(host.script) != {}:
        return None
    return put_aside(state)


def _leftovers(host: _Host, *, database: bool, web: bool) -> Iterator[UninstallStep]:
    run, others = host.hooks()
    stubs = [*run, *(others if host.at.has_packages() else [])]
    own = _own_script(host)
    if host.controller and read_chain(host.script) == {} and own is None:
        stubs.append(host.script)
    if stubs:
        yield UninstallStep(
            "Once no slurm.conf refers to the stubs and Slurm has read it, remove them:",
            (f"rm {shlex.join(map(str, stubs))}",),
        )
    where = ", in the database too" if database else ""
    drop = (f"(and drop the database that url in {DATABASE_FILE} names)",) if database else ()
    back = f" By then, {host.script} is your own script again, or your script is in {own}." if own else ""
    yield UninstallStep(
        f"Configuration and records remain{where}.{back} To delete them:",
        (f"rm -r /etc/slurm-gpu /var/lib/slurm-gpu{' /var/lib/slurm-gpu-web' if web else ''}", *drop),
    )
