"""`slurm-gpu job JOB`: show the runs of a job and the use of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

import click
from click.shell_completion import CompletionItem

from slurm_gpu.cli.options import json_option
from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.runs.device_names import DeviceNames
from slurm_gpu.cli.runs.job_tables import (
    print_events,
    print_hardware,
    print_hosts,
    print_timelines,
    print_use,
)
from slurm_gpu.cli.runs.pending_job import PendingJob, header_lines
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.client.database_client import DeviceTimeline, Run, RunTimeline
from slurm_gpu.database.accounting.allocated_time import SHIPPED_WITHIN_S
from slurm_gpu.errors import OutsideError, SlurmError, UsageError
from slurm_gpu.reports.diagnosed.missing_data import REPORTED_WITHIN_S
from slurm_gpu.reports.run_use.device_use import DeviceUse, device_uses, idle_advice
from slurm_gpu.reports.run_use.host_use import HostUse, host_uses
from slurm_gpu.reports.run_use.suggestions import suggestions
from slurm_gpu.slurm.queue import read_own_jobs
from slurm_gpu.slurm.tres import uses_gpus
from slurm_gpu.text.cells import GAP, count, energy, moment, not_quite, number, span, text
from slurm_gpu.text.units import counted
from slurm_gpu.wire import Record
from slurm_gpu.wire.answers.codec import to_json

_AGREES_S = 3
"""Largest difference between the times of a suspension in Slurm and slurm-gpud, which polls every 2 s."""


def _own_jobs(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the IDs of the caller's pending and running jobs."""
    site = ctx.find_object(CommandSite) or CommandSite()
    try:
        jobs = read_own_jobs(site.run)
    except SlurmError:
        return []
    return [
        CompletionItem(job, help=state.lower()) for job, state in jobs.items() if job.startswith(incomplete)
    ]


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=_own_jobs)
@click.option("--uuid", "by_uuid", is_flag=True, help="Show the UUIDs of GPUs instead of their indices.")
@json_option
@with_site
def job(site: CommandSite, job_id: str, by_uuid: bool, as_json: bool) -> None:
    """Show every run of JOB (17, 17_3 for an array task, 17+1 for a het component) and its GPUs.

    GPU is the index on the node, as in nvidia-smi; under MIG, GI and the GPU instance follow. The column util
    is the percentage of time in which the GPU was busy; p5, p50 and p95 are its percentiles over time.
    sampled is the measured share of the allocated time, excluding suspensions. SM, occup. (occupancy), tensor
    and DRAM are percentages of the hardware's maximum. throttled is the time for which the clocks were
    reduced. Power, energy and link traffic of a GPU are not known while jobs share it. A dash marks a gap:
    the value was not measured, or the GPU was shared for a long time. M and G are MiB and GiB; kB, MB and GB
    are powers of 1000.
    """
    with site.database() as database:
        page = database.run_page(job_id)
        runs = page.runs
        # Read the timeline only if there is one.
        run_timelines = database.timelines(job_id) if any(run.devices for run in runs) else ()
        # Accounting does not contain held jobs; other jobs appear there after the next import.
        is_waiting = not runs or (not runs[0].has_started and runs[0].end_s is None)
        pending = None
        try:
            pending = PendingJob.read(database, job_id) if is_waiting else None
        except OutsideError as error:
            if runs:
                remark(f"why the job waits is unknown: {error}")
            elif not page.unmatched:
                raise
    if not runs and pending is None and page.unmatched:
        records = counted(page.unmatched, "record")
        raise UsageError(
            f"Slurm's accounting has no job {job_id}, but slurm-gpudbd has {records} of it; "
            f"if sacct -j {job_id} remains empty, slurmdbd has lost the job"
        )
    if not runs and pending is None:
        every = span(site.config.import_interval_s)
        raise UsageError(
            f"job {job_id} is neither pending nor in Slurm's accounting, which is read every {every}"
        )
    min_coverage = site.config.sampling.min_coverage
    if as_json:
        shown = [_to_json(run, _timelines_of(run, run_timelines), min_coverage) for run in runs]
        left_out = {"left_out": page.left_out, "events_left_out": page.events_left_out}
        print_json({"runs": shown, **left_out, "wait": None if pending is None else pending.to_json()})
        return
    zone = ZoneInfo(site.config.timezone)
    if pending is not None and not runs:
        for line in (*header_lines(pending.job, zone), *pending.lines(zone)):
            click.echo(line)
    for index, run in enumerate(runs):
        if index:
            click.echo()
        shown_timelines = _timelines_of(run, run_timelines)
        _print_run(run, shown_timelines, zone, min_coverage, site.wall(), by_uuid=by_uuid)
        for line in pending.lines(zone) if pending is not None and index == 0 else ():
            click.echo(line)
    if page.left_out:
        remark(f"older runs of {job_id} are not shown ({page.left_out}): specify a task, such as {job_id}_7")
    if page.events_left_out:
        n = counted(page.events_left_out, "event")
        remark(f"not shown: {n} between the first and the last events of each kind")


def _timelines_of(run: Run, run_timelines: Sequence[RunTimeline]) -> Sequence[DeviceTimeline]:
    for timelines in run_timelines:
        if (timelines.job_id, timelines.submit_s) == (
            run.job_id,
            run.submit_s,
        ) and timelines.devices is not None:
            return timelines.devices
    return ()


def _to_json(run: Run, timelines: Sequence[DeviceTimeline], min_coverage: float) -> dict[str, object]:
    uses = device_uses(run.devices) if run.devices is not None else None
    return {
        **run.to_json(),
        "timelines": None if uses is None else to_json(timelines),
        "host_use": None if run.hosts is None else [use.to_json() for use in _host_uses(run)],
        "gpus": None if uses is None else [_gpu_to_json(use, run) for use in uses],
        "advice": None if uses is None else idle_advice(run, uses, min_coverage),
        "suggestions": list(suggestions(run, min_coverage)),
    }


def _gpu_to_json(use: DeviceUse, run: Run) -> dict[str, object]:
    facts = (run.device_facts or {}).get(use.device)
    return {**use.to_json(), "index": None if facts is None else facts.index}


def _print_run(
    run: Run,
    timelines: Sequence[DeviceTimeline],
    zone: ZoneInfo,
    min_coverage: float,
    now_s: float,
    *,
    by_uuid: bool,
) -> None:
    click.echo(
        f"Job {run.id} {text(run.name) if run.name else ''}".rstrip() + f"  {run.state}{_exit_text(run)}"
    )
    click.echo(
        f"  {text(run.user)} in {text(run.account)}, partition {text(run.partition)}, QOS {text(run.qos)}"
    )
    if run.lender is not None:
        click.echo(f"  {_loan(run)}")
    nodes = "1 node" if run.n_nodes == 1 else f"{number(run.n_nodes)} nodes"
    if not run.has_started:
        request = "not started yet; requests" if run.end_s is None else "never started; requested"
        # Accounting may lack the request of a job that was cancelled right after submission.
        click.echo(f"  {request} {_gpus_requested(run)} on {nodes}" if run.n_nodes else "  never started")
        click.echo(f"  submitted {moment(run.submit_s, zone)}")
        if run.end_s is not None:
            click.echo(f"  ended     {moment(run.end_s, zone)}")
        return
    models = sorted({facts.name for facts in (run.device_facts or {}).values() if facts.name is not None})
    model = f" ({text(', '.join(models))})" if models else ""
    click.echo(f"  {nodes} {text(run.nodes)}, {_gpus(run.n_gpus, run.gpu_type)}{model}")
    click.echo(f"  submitted {moment(run.submit_s, zone)}")
    if run.eligible_s is not None and run.eligible_s > run.submit_s:
        click.echo(f"  eligible  {moment(run.eligible_s, zone)}")
    click.echo(f"  started   {moment(run.start_s, zone)}  after waiting {span(_seconds(run.wait_h))}")
    suspended = f", suspended for {span(run.suspended_s)}" if run.suspended_s else ""
    if run.end_s is None:
        click.echo(f"  has run   {span(run.elapsed_s)} so far{suspended}")
    else:
        click.echo(f"  ended     {moment(run.end_s, zone)}  having run {span(run.elapsed_s)}{suspended}")
        released_s = _released_s(run)
        if released_s is not None:
            click.echo("            according to Slurm, which records the start of a suspension as the end;")
            click.echo(f"            its GPUs were allocated until {moment(released_s, zone)}")
    if not run.full:
        click.echo("  Only the job's owner and operators see its GPU use.")
        return
    if run.n_gpus == 0 and not run.devices:
        click.echo("  It had no GPU.")
        return
    click.echo(
        f"  uGPUcore {_percent(run.ugpucore)}  uGPUmem {_percent(run.ugpumem)}  "
        f"coverage {number(not_quite(run.coverage), 2)}  energy {energy(run.energy_j)}"
    )
    if run.end_s is None and run.devices:
        click.echo(f"  as of {_reported_at(run.devices, zone)}")
    _print_application(run)
    uses = device_uses(run.devices) if run.devices is not None else []
    names = DeviceNames([use.device for use in uses], run.device_facts, by_uuid=by_uuid)
    uses = names.ordered(uses)
    if uses:
        click.echo()
        print_use(uses, names, min_coverage)
        print_hardware(uses, names, min_coverage)
        print_timelines(timelines, names, zone)
    else:
        click.echo(f"  {_without_records(run, now_s)}")
    # Accounting does not record CPUs by node.
    n_cpus = (run.tres_allocated or {}).get("cpu") if run.n_nodes == 1 else None
    print_hosts(_host_uses(run), n_cpus)
    if run.events:
        click.echo()
        print_events(run.events, names, zone)
    if advice := suggestions(run, min_coverage):
        click.echo()
    for line in advice:
        click.echo(f"  {line}")


def _reported_at(records: Sequence[Record], zone: ZoneInfo) -> str:
    """Describe when the nodes of a running job last reported, and name a node that no longer reports."""
    # A node that a job lost when the job was resized will not report again.
    continuing = [record for record in records if not record.final] or records
    newest_s: dict[str, int] = {}
    for record in continuing:
        newest_s[record.node] = max(record.last_s, newest_s.get(record.node, 0))
    first, last = min(newest_s, key=newest_s.__getitem__), max(newest_s, key=newest_s.__getitem__)
    times = [moment(newest_s[node], zone) for node in dict.fromkeys((first, last))]
    said = f"{' to '.join(dict.fromkeys(times))}, when its nodes last reported"
    silent = newest_s[last] - newest_s[first] > SHIPPED_WITHIN_S
    return f"{said}; {text(first)} has not reported since {times[0]}" if silent else said


def _without_records(run: Run, now_s: float) -> str:
    """Explain why a run has no record yet, or why it will never have one."""
    doctor = f"Run slurm-gpu doctor as root on {text(run.nodes)}"
    if run.end_s is None and (run.elapsed_s is None or run.elapsed_s <= REPORTED_WITHIN_S):
        return "No node has reported GPU use yet: the first record of a running job arrives within a minute."
    if run.end_s is None:
        return (
            f"The job has run for {span(run.elapsed_s)}, but no node has reported its GPU use, which usually "
            f"takes a minute. {doctor} to find the cause."
        )
    if any(event.kind == "prolog_missing" for event in run.events or ()):
        return "Its GPU use was not measured: Slurm ran no prolog for this run, which followed a requeue."
    since_s = now_s - run.end_s
    if since_s <= REPORTED_WITHIN_S:
        return "No node has reported GPU use yet: the record of an ended job arrives within seconds."
    return (
        f"The job ended {span(since_s)} ago, but no node has reported its GPU use, which usually takes "
        f"seconds. {doctor} to find out what delays the record. If nothing does, the record was lost, or "
        "slurm-gpud was not running."
    )


def _exit_text(run: Run) -> str:
    """Return how a failed job script ended: its exit code, or the signal that ended it."""
    code, _, signal = (run.exit_code or "").partition(":")
    if run.state != "FAILED" or not code:
        return ""
    return f" with exit code {code}" if signal == "0" else f" by signal {signal}"


def _loan(run: Run) -> str:
    """Describe from whom the GPUs were borrowed, and whether the owner reclaimed them."""
    lent = f"on loan from {text(run.lender)}"
    if run.state != "PREEMPTED":
        return lent
    if run.returned_to is None:
        return f"{lent}, and returned when the owner needed the GPUs"
    return f"{lent}, and returned to job {run.returned_to}, which had waited {span(run.returned_in_s)}"


def _host_uses(run: Run) -> list[HostUse]:
    return host_uses(run.hosts or (), run.devices or ())


def _released_s(run: Run) -> int | None:
    """Return the time at which the nodes released the GPUs if Slurm recorded an earlier end, else None.

    If a job ends while it is suspended, Slurm records the start of that suspension as the end of the job, and
    does not count the suspension. After a late epilog, the end differs too, but the suspended time agrees.
    """
    if run.end_s is None or run.suspended_s is None or not run.devices:
        return None
    last = max(run.devices, key=lambda record: record.last_s)
    uncounted_s = max(use.suspended_s for use in device_uses(run.devices)) - run.suspended_s
    odd = last.final and uncounted_s > _AGREES_S and last.last_s - run.end_s > _AGREES_S
    return last.last_s if odd else None


def _print_application(run: Run) -> None:
    """Print the recognised application with captured parameters such as `input=water`."""
    if run.app is None:
        return
    hosts = [host for host in run.hosts or () if host.app == run.app]
    newest = max(hosts, key=lambda host: host.last_s, default=None)
    parts = [text(run.app) + (f" ({text(run.app_field)})" if run.app_field is not None else "")]
    if newest is not None:
        parts += [f"{name}={text(value)}" for name, value in (newest.app_params or {}).items()]
        parts += ["in a container"] if newest.container else []
    click.echo(f"  application {', '.join(parts)}")


def _gpus(n_gpus: float | None, kind: str | None = None) -> str:
    """Return a number of GPUs as text, such as "2 a100 GPUs"."""
    return f"{count(n_gpus)} {kind + ' ' if kind else ''}GPU{'' if n_gpus == 1 else 's'}"


def _gpus_requested(run: Run) -> str:
    """Format the GPUs that a run requests as text.

    Shards and MPS have no known number of GPUs, since each node may divide its GPUs differently.
    """
    if run.n_gpus_requested is not None:
        return _gpus(run.n_gpus_requested)
    request = {} if run.tres_requested is None else run.tres_requested
    return "a share of a GPU" if uses_gpus(request) else "an unknown number of GPUs"


def _percent(value: float | None) -> str:
    return GAP if value is None else f"{number(value, 1)} %"


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else hours * 3600
