"""Check that slurm-gpudbd answers, imports Slurm's accounting, and receives the reports of nodes."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from slurm_gpu import __version__
from slurm_gpu.cli.doctor.checks.daemons.database_address import unanswered
from slurm_gpu.cli.doctor.checks.daemons.outages import daemon_that_is_down, failure_from
from slurm_gpu.cli.doctor.checks.daemons.processes import DaemonProcess, running
from slurm_gpu.cli.doctor.checks.daemons.services import has_systemd, log, log_there, start_and_log
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.client.database_client import Health, NodeReport
from slurm_gpu.errors import OutsideError, SlurmError
from slurm_gpu.text.cells import span
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.units import counted

_SKEW_S = 5.0
_NODE_SKEW_S = 30.0
_MISSED_IMPORTS = 3
# Nodes post at least once a minute, and one post may be late.
_RECENT_S = 120.0
_REFUSED_WITHIN_S = 86400.0
# slurm-gpud posts at least once a minute, also after it has started or reconnected.
_REPORTS_WITHIN_S = 75.0
_AGAIN = "run slurm-gpu doctor again in 75 s"
# Words in the state of a node that is not expected to report.
_UNAVAILABLE = frozenset(
    {"down", "future", "not_responding", "power_down", "powered_down", "powering_down", "unknown"}
)
_DAEMON = "slurm-gpudbd"
# This file exists in /proc while the driver is loaded.
_DRIVER = "driver/nvidia/version"


def answers(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurm-gpudbd answers, and compare its version, schema and clock with those of this host."""
    try:
        health = _health(at)
    except OutsideError as error:
        yield failure_from(at, str(error), unanswered(at, str(error)))
        return
    yield ok(f"slurm-gpudbd {health.version} on {health.database}, schema {health.schema}")
    if health.version != __version__:
        yield warn(
            f"slurm-gpudbd has version {health.version}, but this command has version {__version__}",
            "install the same version on all hosts",
        )
    head = schema_here()
    if health.schema != head and health.version == __version__:
        yield fail(
            f"the database has schema {health.schema}, but slurm-gpudbd {__version__} requires {head}",
            "run slurm-gpu db upgrade on slurm-gpudbd's host, then restart slurm-gpudbd",
        )
    skew_s = at.site.wall() - health.now_s
    if abs(skew_s) > _SKEW_S:
        side = "ahead of" if skew_s > 0 else "behind"
        yield warn(
            f"this host's clock is {span(abs(skew_s))} {side} slurm-gpudbd's",
            "run chronyd or systemd-timesyncd on both hosts",
        )


def schema_here() -> str:
    """Return this version's schema from the names of migrations, because some hosts lack Alembic."""
    versions = importlib.resources.files("slurm_gpu.database.storage") / "migrations" / "versions"
    names = (file.name for file in versions.iterdir())
    return max(name.partition("_")[0] for name in names if re.match(r"\d{4}_", name))


def import_fresh(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm's accounting is imported at the configured interval."""
    health = _health(at)
    if health.import_error is not None:
        yield failure_from(at, health.import_error, f"see {_log(at)}", "the last import failed: ")
    elif health.last_import_s is None:
        yield warn("Slurm's accounting has not been read yet", f"see {_log(at)}")
    else:
        age_s = health.now_s - health.last_import_s
        message = (
            f"Slurm's accounting was read {span(age_s)} ago (interval: {span(health.import_interval_s)})"
        )
        late = age_s > _MISSED_IMPORTS * health.import_interval_s
        yield _late_import(at, message) if late else ok(message)


def jobs_accounted(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that Slurm's accounting has every job whose records ended from a week to an hour ago."""
    health = _health(at)
    if health.unmatched_jobs is None:
        yield skipped(f"slurm-gpudbd {health.version} does not report jobs without accounting")
    elif health.unmatched_jobs:
        lost = ", ".join(map(str, health.unmatched_jobs))
        yield warn(
            f"Slurm's accounting lacks jobs that nodes recorded: {lost}",
            "run sacct -j JOB for each: slurmdbd loses a job if MariaDB dies while committing its row; "
            "slurm-gpu db export writes their records to month=unmatched",
        )
    else:
        yield ok("Slurm's accounting has every job that nodes recorded from a week to an hour ago")


def _late_import(at: DoctorContext, message: str) -> CheckResult:
    """Return a finding that names slurmdbd if it hangs, which delays sacct by up to ten minutes."""
    try:
        at.site.limits.tracked_tres()
    except SlurmError as error:
        if daemon_that_is_down(str(error)) is not None:
            return failure_from(at, str(error), f"see {_log(at)}", f"{message}: ")
    return fail(message, f"see {_log(at)}")


def nodes_ship(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that every node with allocated GPUs sends records."""
    silent = _health(at).stale_nodes
    if silent:
        yield fail(
            f"{compress(silent)} sent no records for 12 minutes, although GPUs are allocated there",
            _diagnose(at, silent[0]),
        )
    else:
        yield ok("every node with allocated GPUs sends records")


def nothing_refused(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that shipments of nodes are accepted."""
    health = _health(at)
    last_s, counts = health.last_rejected_s, health.rejected
    if counts is None:
        yield skipped(f"slurm-gpudbd {health.version} does not report rejected shipments")
        return
    if last_s is None or health.now_s - last_s > _REFUSED_WITHIN_S:
        yield ok("slurm-gpudbd has rejected no shipment within the last day")
        return
    by_kind = ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()))
    ago = span(health.now_s - last_s)
    yield warn(
        f"slurm-gpudbd has rejected shipments of nodes, the last {ago} ago; rejected since its start: "
        f"{by_kind}",
        f"see the lines with 'rejected for good' in {_log(at)} for nodes and reasons; the nodes keep these "
        "shipments in spool/rejected",
    )


def nodes_report(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that each node with GPUs has reported within the last two minutes; nodes report every minute."""
    now_s = _health(at).now_s
    with at.site.database() as database:
        reports = database.nodes()
    there = _expected(at)
    late = _late(there, reports, now_s)
    started = {name: _just_started(at, name) for name in late}
    for why in dict.fromkeys(why for why in started.values() if why is not None):
        names = [name for name in late if started[name] == why]
        yield warn(f"slurm-gpud on {compress(names)} has not reported yet: {why}", _AGAIN)
    silent = {name: at_s for name, at_s in late.items() if started[name] is None}
    ages = {name: now_s - at_s for name, at_s in silent.items() if at_s is not None}
    if ages:
        yield _unreported(at, list(ages), f"for {_between(ages.values())}")
    if never := [name for name in silent if name not in ages]:
        yield _unreported(at, never, "since slurm-gpudbd started")
    if there and not late:
        yield ok(f"slurm-gpud on {compress(there)} reported within the last two minutes")
    if not there:
        yield skipped("Slurm has no node with GPUs that is up")


def _unreported(at: DoctorContext, names: Sequence[str], since: str) -> CheckResult:
    """Return one finding for all nodes, since one cause, such as a firewall, often affects several."""
    if names[0] in at.gpu_nodes_here:
        remedy = start_and_log(at, "slurm-gpud")
    elif has_systemd(at):
        remedy = (
            f"run systemctl start slurm-gpud on {names[0]}; see journalctl -u slurm-gpud there for the cause"
        )
    else:
        remedy = f"start slurm-gpud on {names[0]}; see its log there for the cause"
    remedy += f", and check whether it reaches {at.site.config.database}"
    if len(names) > 1:
        remedy += "; do the same on the other nodes"
    return fail(f"slurm-gpud on {compress(names)} has not reported {since}", remedy)


def _between(seconds: Collection[float]) -> str:
    """Return one duration, or the shortest and the longest of several."""
    least, most = span(min(seconds)), span(max(seconds))
    return least if least == most else f"{least} to {most}"


def devices_agree(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that each slurm-gpud detects the GPUs that Slurm allocates, and has this command's version."""
    now_s = _health(at).now_s
    with at.site.database() as database:
        reports = {report.node: report for report in database.nodes()}
    expected = {node.name: node.n_gpus for node in at.nodes if node.n_gpus}
    yield from _unknown_to_slurm(at, reports)
    unreported = [name for name in expected if name not in reports or not reports[name].devices]
    late = _late(_expected(at), reports.values(), now_s)
    missing = [name for name in unreported if name in reports and name not in late]
    unreported = [name for name in unreported if name not in missing]
    has_driver = (at.proc / _DRIVER).exists()
    without_driver = [name for name in missing if name in at.gpu_nodes_here and not has_driver]
    if without_driver:
        yield fail(
            f"slurm-gpud detects no GPU on {compress(without_driver)}: the NVIDIA driver is not loaded",
            f"run nvidia-smi, then install or load the driver; see also {log(at, 'slurm-gpud')}",
        )
    if lost := [name for name in missing if name not in without_driver]:
        yield warn(
            f"slurm-gpud runs on {compress(lost)}, but the database has no GPUs of these nodes; after a "
            "backup is restored, the nodes report them again within 2 minutes",
            f"run slurm-gpu doctor again in 2 minutes; if the GPUs are still missing, see "
            f"{log_there(at, 'slurm-gpud')} on {lost[0]}",
        )
    if unreported and late.keys() >= set(unreported):
        yield skipped(f"{compress(unreported)}: see the result of the nodes check")
    elif unreported:
        yield warn(
            f"no slurm-gpud has reported the GPUs of {compress(unreported)}",
            _diagnose(at, unreported[0]),
        )
    seen_by_node = {
        name: reports[name].slurm_gpus() for name in expected if name not in {*unreported, *missing}
    }
    odd = {name: seen for name, seen in seen_by_node.items() if expected[name] not in seen}
    alike: dict[tuple[int, int], list[str]] = {}
    for name, seen in odd.items():
        alike.setdefault((expected[name], max(seen)), []).append(name)
    for (n_slurm, n_seen), names in alike.items():
        on = ("" if len(names) == 1 else "each of ") + compress(names)
        message = f"Slurm has {counted(n_slurm, 'GPU')} on {on}, but slurm-gpud detects {n_seen} there"
        remedy = (
            f"on {names[0]}, compare the output of nvidia-smi -L and slurmd -G; then fix gres.conf or the GPU"
        )
        yield fail(message, remedy) if n_seen < n_slurm else warn(message, remedy)
    if seen_by_node and not odd:
        nodes = "1 node has" if len(seen_by_node) == 1 else f"{len(seen_by_node)} nodes have"
        yield ok(f"{nodes} the GPUs that Slurm allocates")
    yield from _other_versions(reports.values())


def _unknown_to_slurm(at: DoctorContext, reports: Mapping[str, NodeReport]) -> Iterator[CheckResult]:
    """Report nodes on which slurm-gpud detects GPUs but Slurm has none: no job can request them."""
    without = [
        node.name for node in at.nodes if not node.n_gpus and node.name in reports and reports[node.name].gpus
    ]
    if without:
        n_seen = len(reports[without[0]].gpus)
        yield fail(
            f"Slurm has no GPUs on {compress(without)}, but slurm-gpud detects {n_seen} there: no job can "
            "use them",
            f"add Gres=gpu:{n_seen} to the line NodeName={compress(without)} in slurm.conf, and "
            "AutoDetect=nvml or File= to gres.conf; then restart slurmctld and slurmd",
        )


def clocks(at: DoctorContext) -> Iterator[CheckResult]:
    """Compare the clocks of nodes with slurm-gpudbd's, using the timestamps of the nodes' live values."""
    with at.site.database() as database:
        last_seen = {report.node: report.last_seen_s for report in database.nodes()}
        lives = database.live("none")
    # slurm-gpudbd receives a value up to 10 s after its measurement. A value may be newer than the report.
    ahead = {
        node: live.at_s - at_s for node, live in lives.items() if (at_s := last_seen.get(node)) is not None
    }
    wrong = {node: ahead_s for node, ahead_s in ahead.items() if abs(ahead_s) > _NODE_SKEW_S}
    for side, sign in (("ahead of", 1), ("behind", -1)):
        off = {node: sign * ahead_s for node, ahead_s in sorted(wrong.items()) if sign * ahead_s > 0}
        if off:
            is_at = "the clock of {} is" if len(off) == 1 else "the clocks of {} are"
            yield warn(
                f"{is_at.format(compress(off))} about {_between(off.values())} {side} slurm-gpudbd's; MUNGE "
                "tolerates a difference of 5 minutes",
                f"start chronyd or systemd-timesyncd on {next(iter(off))}",
            )
    if not ahead:
        yield skipped("no slurm-gpud reported its clock within the last two minutes")
    elif not wrong:
        yield ok(f"{counted(len(ahead), 'node')}: clocks within {_NODE_SKEW_S:.0f} s of slurm-gpudbd's")


def _other_versions(reports: Iterable[NodeReport]) -> Iterator[CheckResult]:
    by_version: dict[str, list[str]] = {}
    for report in reports:
        if report.version not in (None, __version__):
            by_version.setdefault(str(report.version), []).append(report.node)
    for version, nodes in sorted(by_version.items()):
        yield warn(
            f"slurm-gpud on {compress(nodes)} has version {version}, but this command has version "
            f"{__version__}",
            "install the same version on all hosts",
        )


def _expected(at: DoctorContext) -> list[str]:
    """Return the nodes with GPUs that are expected to report."""
    return [node.name for node in at.nodes if node.n_gpus and _UNAVAILABLE.isdisjoint(node.state.split("+"))]


def _late(there: Iterable[str], reports: Iterable[NodeReport], now_s: float) -> dict[str, float | None]:
    """Return each node that has not reported for two minutes, and the time of its last report, or None."""
    last_seen = {report.node: report.last_seen_s for report in reports}
    times = {name: last_seen.get(name) for name in there}
    return {name: at_s for name, at_s in times.items() if at_s is None or now_s - at_s > _RECENT_S}


def _just_started(at: DoctorContext, node: str) -> str | None:
    """Return which daemon on this host was started too recently for the node to have reported, or None."""
    mine = [one for one in running("slurm-gpud") if _is_of(one, node, at.gpu_nodes_here)]
    for name, processes in (("slurm-gpudbd", running("slurm-gpudbd")), ("it", mine)):
        ages = [one.age_s for one in processes]
        if ages and min(ages) < _REPORTS_WITHIN_S:
            return f"{name} was started {span(min(ages))} ago"
    return None


def _is_of(process: DaemonProcess, node: str, here: Sequence[str]) -> bool:
    """Return whether a process of slurm-gpud measures `node`.

    If this host simulates several nodes, the arguments of the process name its node.
    """
    return node in here and (len(here) == 1 or node in process.words or f"--node={node}" in process.words)


def _log(at: DoctorContext) -> str:
    return f"{log_there(at, _DAEMON)} on its host"


def _diagnose(at: DoctorContext, node: str) -> str:
    if node in at.gpu_nodes_here:
        return start_and_log(at, "slurm-gpud")
    return f"run slurm-gpu doctor on {node}; if slurm-gpud is not running there, start it"


def _health(at: DoctorContext) -> Health:
    with at.site.database() as database:
        return database.health()
