"""`slurm-gpu diagnose JOB`: find out why a distributed job is slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.runs.steps_file import timings_of
from slurm_gpu.cli.site import CommandSite, with_site
from slurm_gpu.client.database_client import DatabaseClient, NodeWindow, Run
from slurm_gpu.database.verdicts.job_series import workers_of
from slurm_gpu.diagnose.case import DiagnosisThresholds
from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.errors import DatabaseError, OutsideError, UsageError
from slurm_gpu.files.atomic import write_whole
from slurm_gpu.reports.diagnosed.earlier_runs import earlier_clocks
from slurm_gpu.reports.diagnosed.judged import NO_FINDING, JudgedRun, judge_run
from slurm_gpu.reports.diagnosed.missing_data import why_no_data
from slurm_gpu.text.cells import moment, span, text

# A node whose live values were not needed posts within 66 s, and sends its window within 11 s after that.
_ANSWERED_S, _AGAIN_S = 85.0, 2.0


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option(
    "--groups",
    metavar="GROUPS",
    help="GPUs that do the same work: pp=4 (pipeline stages), or lists such as 0-3,8/4-7.",
)
@click.option(
    "--steps",
    "steps_file",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Step timings: Parquet, CSV, or a directory of CSV files (columns: docs/diagnose.md).",
)
@click.option(
    "--html",
    "page_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write an HTML page with the GPUs over time, the changes, and the evidence.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (keys: docs/diagnose.md).")
@with_site
def diagnose(
    site: CommandSite,
    job_id: str,
    groups: str | None,
    steps_file: Path | None,
    page_file: Path | None,
    as_json: bool,
) -> None:
    """Find out why JOB is slow: imbalance, a slow or failing GPU, links, input, or a hang.

    The last run of JOB is judged by its last ten minutes at full resolution if slurm-gpudbd has them, and
    otherwise by its whole timeline. GPUs are compared within their pipeline stage, which is inferred unless
    --groups specifies it. --groups numbers the GPUs from 0, in order of node and index. The exit code is 1 if
    a problem was found, and 0 if no problem was found or the data do not suffice.
    """
    if page_file is not None and page_file.exists() and not page_file.is_file():
        raise UsageError(
            f"--html {page_file}: not a regular file; specify a file, which is created if it does not exist"
        )
    if page_file is not None and not page_file.parent.is_dir():
        raise UsageError(f"--html {page_file}: directory {page_file.parent} does not exist")
    timings = None if steps_file is None else timings_of(steps_file)
    rules = DiagnosisThresholds(min_coverage=site.config.sampling.min_coverage)
    with site.database() as database:
        runs = database.run(job_id)
        if not runs:
            raise UsageError(f"no job {job_id} in Slurm's accounting; run slurm-gpu job {job_id} for details")
        run = runs[0]
        if not run.full:
            raise UsageError(
                f"job {job_id} belongs to another user: only its owner and operators may diagnose it"
            )
        if not run.devices:
            raise UsageError(why_no_data(run))
        try:
            if groups is not None:
                groups_given(
                    groups, len(workers_of(run))
                )  # reject invalid groups before the wait for the nodes
            windows = _windows(site, database, run, job_id)
            hosts = database.hosts(job_id) if windows and run.end_s is None else ()
            data = (run, windows, database.timelines(job_id), rules, groups, timings, hosts)
            found = judge_run(*data)
            if found.verdict.cause in NO_FINDING and (clocks := earlier_clocks(database, run)):
                found = judge_run(*data, clocks)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if page_file is not None:
        # The modules that draw the page are slow to import.
        from slurm_gpu.reports.diagnosed.run_page import run_page

        _write_page(page_file, run_page(run, found, rules, site.config.timezone, site.wall()))
        remark(f"The page: {page_file}")
    if as_json:
        answer = {"id": run.id, "start_s": run.start_s, "by": found.by, "verdict": found.verdict.to_json()}
        print_json(answer)
    else:
        _print(run, found, rules, ZoneInfo(site.config.timezone))
    if found.verdict.cause not in NO_FINDING:
        raise click.exceptions.Exit(1)


def _windows(site: CommandSite, database: DatabaseClient, run: Run, job_id: str) -> Sequence[NodeWindow]:
    """Return the windows of all nodes of a job; wait until the nodes of a running job have sent them.

    slurm-gpudbd keeps a window for 20 s, so windows are kept here until all nodes have answered.
    """
    holding = {record.node for record in run.devices or () if not record.final}
    until, is_announced = site.wall() + _ANSWERED_S, False
    kept: dict[str, list[NodeWindow]] = {}
    try:
        while True:
            found = [item for item in database.windows(job_id) if item.job_id == run.job_id]
            kept |= {node: [item for item in found if item.node == node] for node in {i.node for i in found}}
            if run.end_s is not None or holding <= kept.keys() or site.wall() >= until:
                return [item for node in sorted(kept) for item in kept[node]]
            if not is_announced:
                remark("Requesting the last ten minutes from the nodes of the job; this takes up to 80 s")
            is_announced = True
            site.sleep(_AGAIN_S)
    except DatabaseError:
        return ()  # no window was kept or sent: use the timeline


def _write_page(path: Path, page: str) -> None:
    """Write the page atomically, readable only by the owner of the file."""
    try:
        write_whole(path, page)
    except OSError as error:
        raise OutsideError(f"--html {path}: cannot be written: {error.strerror or error}") from error


def _print(run: Run, found: JudgedRun, rules: DiagnosisThresholds, zone: ZoneInfo) -> None:
    verdict = found.verdict
    kind = f" ({verdict.kind})" if verdict.kind else ""
    sure = f", {'suspected: ' if verdict.suspect else ''}confidence {verdict.confidence:.0%}"
    click.echo(f"Job {run.id}: {verdict.cause}{kind}" + ("" if verdict.cause is Cause.INCONCLUSIVE else sure))
    lasting = span(found.series.end_s - found.series.start_s)
    click.echo(f"  by {found.source(run)}: {lasting}{found.coverage_text(run, rules)}")
    if verdict.culprits:
        click.echo(f"  who       {', '.join(text(worker.name) for worker in verdict.culprits)}")
    elif verdict.roles and verdict.cause is Cause.IMBALANCE:
        click.echo(f"  most work: {', '.join(map(text, verdict.roles))}; no GPU is at fault")
    elif verdict.roles:
        click.echo(f"  differ    {', '.join(map(text, verdict.roles))}")
    if verdict.nodes:
        click.echo(f"  nodes     {', '.join(map(text, verdict.nodes))}")
    if verdict.since_s is not None:
        click.echo(f"  since     {moment(verdict.since_s, zone)}")
    if verdict.until_s is not None:
        click.echo(f"  until     {moment(verdict.until_s, zone)}")
    for item in verdict.evidence:
        click.echo(f"  because   {text(item.text)}")
    for why in verdict.why_not:
        click.echo(f"  but       {text(why)}")
    if len(verdict.groups) > 1:
        sizes = ", ".join(f"{text(name)}: {len(members)}" for name, members in verdict.groups.items())
        click.echo(f"  compared  within {sizes} GPUs; {text(verdict.groups_by)}")
    click.echo(f"  next      {verdict.next_step}")
