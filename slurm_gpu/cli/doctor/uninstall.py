"""List the steps that remove slurm-gpu from a host without draining a node or refusing a job."""

from __future__ import annotations

import glob
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.outages import finding_slurm
from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import restart
from slurm_gpu.cli.doctor.checks.files.boot import timers
from slurm_gpu.cli.doctor.checks.files.hook_file import PACKAGED, HookFile, hook_file
from slurm_gpu.cli.doctor.checks.files.hooks import KINDS, matched
from slurm_gpu.cli.doctor.checks.finding import DATABASE_FILE, WEB_FILE, DoctorContext, may_read
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.policy.journal import ApplyJournal
from slurm_gpu.policy.lua.install import SCRIPT_NAME, put_aside
from slurm_gpu.policy.lua.installed import read_chain
from slurm_gpu.policy.lua.peers import shared_file_system
from slurm_gpu.slurm.conf_file import ConfLine, read_conf, settings_named, written
from slurm_gpu.slurm.reservations import ReservationClient
from slurm_gpu.wire.answers.reservation import id_of

# Where install.md puts units, other configuration of systemd, and links to the commands.
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
_BY_HAND = (
    "Replace the hooks with files that do nothing, as Slurm drains nodes if a glob matches no file. Then "
    "remove slurm-gpu, which was not installed from packages on this host."
)


@dataclass(frozen=True, slots=True)
class UninstallStep:
    """One step: what to do and why, and the lines to type or to write."""

    what: str
    lines: tuple[str, ...] = ()


def uninstall_steps(at: DoctorContext) -> list[UninstallStep]:
    """Return all steps for this host in their order; raise OutsideError if slurm.conf cannot be read."""
    database, web = ((at.site.config_path.parent / name).exists() for name in (DATABASE_FILE, WEB_FILE))
    found: list[UninstallStep] = []
    try:
        node, controller, conf = at.is_gpu_node, at.is_controller, _conf(at)
    except SlurmError as error:
        if finding_slurm(str(error)) is None:
            raise
        node, controller, conf = False, False, []  # slurm-gpuweb's host needs no Slurm
        found.append(UninstallStep(_WITHOUT_SLURM))
    if controller:
        found += _native_limits(at)
        found += _placement(at)
    if conf:
        found += _slurm_conf(at, conf)
    parts = [
        ("slurm-gpu-node", "slurm-gpud", node),
        ("slurm-gpu-controller", "slurm-gpuctld", controller),
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
    if controller:
        found += _reservations(at)
    if not at.has_packages():
        found.append(UninstallStep(_BY_HAND, tuple(_by_hand(at, conf, controller=controller))))
        found += _leftovers(at, conf, controller=controller, database=database, web=web)
        return found
    what = (
        "Remove the packages."
        if packages
        else "Remove the command: no other part of slurm-gpu is installed on this host."
    )
    if node or controller:
        what += (
            " Stubs that do nothing replace the hooks. Your own job_submit.lua is restored; without one, "
            "a stub that accepts every job replaces slurm-gpu's."
        )
        found += _shared(at)
    found.append(
        UninstallStep(what, (f"dnf remove {' '.join([*packages, 'slurm-gpu-client', 'slurm-gpu'])}",))
    )
    found += _leftovers(at, conf, controller=controller, database=database, web=web)
    return found


def _stops(at: DoctorContext, names: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that stop these units, and the processes of daemons without a unit."""
    units = [name for name in names if name.endswith(".timer") or at.has_unit(name)]
    processes = [one for name in names if name not in units for one in running(name)]
    ids = sorted({one.pid for one in processes})
    lines = [f"systemctl disable --now {' '.join(units)}"] if units else []
    return (*lines, f"kill {' '.join(map(str, ids))}") if ids else tuple(lines)


def _by_hand(at: DoctorContext, conf: Sequence[ConfLine], *, controller: bool) -> Iterator[str]:
    """Yield the commands that remove slurm-gpu if it was installed from a checkout instead of packages."""
    files = [file for kind in KINDS for line in settings_named(conf, kind) for file in _matched(at, line)]
    for path in dict.fromkeys(str(file.path) for file in files if file.is_ours):
        yield f"install -m 755 /usr/bin/true {shlex.quote(path)}"
    if controller and (own := _own_script(at)) is not None:
        yield shlex.join(("cp", "-p", str(own), str(_script(at))))
    if present := sorted(path for pattern in BY_HAND for path in glob.glob(pattern)):  # noqa: PTH207
        yield f"rm -r {shlex.join(present)}"
        yield "systemctl daemon-reload"
    if Path(sys.prefix) == _ENVIRONMENT:
        yield f"rm -r {_ENVIRONMENT}"
    else:
        yield f"{shlex.quote(sys.executable)} -m pip uninstall slurm-gpu"


def _conf(at: DoctorContext) -> list[ConfLine]:
    try:
        return read_conf(at.slurm_conf)
    except OSError as error:
        raise OutsideError(
            f"neither {at.settings.conf_path} nor {at.conf_cache} can be read "
            f"({error.filename or at.slurm_conf}: {error.strerror}): run this on a host with slurm.conf"
        ) from error


def _native_limits(at: DoctorContext) -> Iterator[UninstallStep]:
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
        chain = read_chain(_script(at)) or {}
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
                "without these limits, as jobs may still use the QOS. Once squeue shows no job in them, "
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


def _slurm_conf(at: DoctorContext, conf: Sequence[ConfLine]) -> Iterator[UninstallStep]:
    edits = [edit for kind in KINDS for edit in _hook_lines(at, kind, conf)]
    plugins = list(_job_submit(at, conf))
    if edits or plugins:
        where = "on each host that has a copy of it"
        if at.slurm_conf == at.conf_cache:
            where = "on the controller, which sent this node the copy named here"
        yield UninstallStep(f"In slurm.conf, {where}:", (*edits, *plugins))
        again = (
            (restart(at, "slurmctld").removeprefix("run "), "(on each host of slurmctld)") if plugins else ()
        )
        yield UninstallStep(
            "Let Slurm read the change before you remove anything.", (*again, "scontrol reconfigure")
        )


def _hook_lines(at: DoctorContext, kind: str, conf: Sequence[ConfLine]) -> Iterator[str]:
    for line in settings_named(conf, kind):
        files = _matched(at, line)
        if not at.is_gpu_node and not files:
            yield (
                f"{line.place}: {line} (run `slurm-gpu doctor uninstall` on a GPU node to see whether it may "
                "remain)"
            )
        # A glob that also matches other hooks remains as it is.
        elif files and all(file.is_ours for file in files):
            yield f"{line.place}: remove {line}"


def _matched(at: DoctorContext, line: ConfLine) -> list[HookFile]:
    """Return the files that a line of Prolog or Epilog runs on this host."""
    pattern = str(at.slurm_conf.parent / line.value)
    return [hook_file(path) for path in matched(pattern)] if line.value else []


def _job_submit(at: DoctorContext, conf: Sequence[ConfLine]) -> Iterator[str]:
    # A script of the site's own returns to its place, and runs as before.
    if not at.is_controller or read_chain(_script(at)) != {} or _own_script(at) is not None:
        return
    for line in settings_named(conf, "JobSubmitPlugins"):
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


def _shared(at: DoctorContext) -> Iterator[UninstallStep]:
    """Yield the steps for directories that packages do not change because other hosts may share them."""
    kind = shared_file_system(_script(at).parent)
    commands = [("place", at.is_gpu_node), ("place-lua", at.is_controller)]
    lines = [f"{PACKAGED}/{command} remove --shared" for command, is_here in commands if is_here]
    if kind is not None and lines:
        yield UninstallStep(
            f"{_script(at).parent} is on {kind}, which other hosts may share, so the packages do not change "
            "it. Run these only if you remove slurm-gpu from all of these hosts:",
            tuple(lines),
        )


def _own_script(at: DoctorContext) -> Path | None:
    """Return the copy of the site's own script to restore; None if no copy is known or needed."""
    if not at.is_controller or not may_read(at.policy_state) or read_chain(_script(at)) != {}:
        return None
    return put_aside(at.policy_state)


def _script(at: DoctorContext) -> Path:
    return Path(at.settings.conf_path).parent / SCRIPT_NAME


def _leftovers(
    at: DoctorContext, conf: Sequence[ConfLine], *, controller: bool, database: bool, web: bool
) -> Iterator[UninstallStep]:
    files = [file for kind in KINDS for line in settings_named(conf, kind) for file in _matched(at, line)]
    stubs = list(dict.fromkeys(str(file.path) for file in files if file.is_ours))
    own = _own_script(at) if controller else None
    if controller and read_chain(_script(at)) == {} and own is None:
        stubs.append(str(_script(at)))
    if stubs:
        yield UninstallStep(
            "Once no slurm.conf refers to the stubs, remove them:", (f"rm {shlex.join(stubs)}",)
        )
    where = ", in the database too" if database else ""
    drop = (f"(and drop the database that url in {DATABASE_FILE} names)",) if database else ()
    back = f" By then, {_script(at)} is your own script again, or your script is in {own}." if own else ""
    yield UninstallStep(
        f"Configuration and records remain{where}.{back} To delete them:",
        (f"rm -r /etc/slurm-gpu /var/lib/slurm-gpu{' /var/lib/slurm-gpu-web' if web else ''}", *drop),
    )
