"""`slurm-gpu diagnose ID`: why a distributed job is slow, by what its GPUs told."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.cells import moment, text
from slurm_gpu.cli.diagnosedpage import SOURCES, Judged, write_page
from slurm_gpu.cli.output import print_json, remark
from slurm_gpu.cli.site import Site, with_site
from slurm_gpu.cli.stepsfile import Timings, timings_of
from slurm_gpu.database.client import DatabaseClient, Run
from slurm_gpu.database.verdicts.jobseries import groups_of, series_of_timelines, series_of_windows
from slurm_gpu.diagnose.case import Rules
from slurm_gpu.diagnose.judge import diagnose as judge
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.verdict import Cause, Verdict
from slurm_gpu.errors import DatabaseError, UsageError

_NOTHING = (Cause.HEALTHY, Cause.UNKNOWN)


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--groups", metavar="GROUPS", help="Who does the same: pp=4,tp=2, or GPUs by hand, 0-3,8/4-7.")
@click.option(
    "--steps",
    "steps_file",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Timings of its steps: Parquet, CSV, or a directory of CSV files; docs/diagnose.md has the columns.",
)
@click.option(
    "--html",
    "page_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page to look at as well: GPU by time, what changed when, the evidence.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/diagnose.md has its keys.")
@with_site
def diagnose(
    site: Site,
    job_id: str,
    groups: str | None,
    steps_file: Path | None,
    page_file: Path | None,
    as_json: bool,
) -> None:
    """Say why job ID is slow: imbalance, a slow or failing GPU, links, input, a hang, or that it is well.

    The last run is judged, by its last ten minutes at full resolution where slurm-gpudbd has them, else by
    the whole of its course. GPUs are compared with those of their pipeline stage alone, which is inferred
    where nobody says it; --groups counts GPUs from 0 on, by node and index. Exit status 1 where trouble was
    found, 0 where none was, or where it cannot be told.
    """
    timings = None if steps_file is None else timings_of(steps_file)
    rules = Rules(min_coverage=site.config.sampling.min_coverage)
    with site.database() as database:
        runs = database.run(job_id)
        if not runs:
            raise UsageError(f"no job {job_id} in Slurm's accounting; slurm-gpu job {job_id} says more")
        run = runs[0]
        if not run.full:
            raise UsageError(f"job {job_id} is another user's: its owner and operators may diagnose it")
        if not run.devices:
            raise UsageError(f"nothing was told of GPUs of job {job_id} yet, or it has none")
        judged = _judged(run, _looks(database, run, job_id), groups, timings, rules)
    by, verdict = judged.by, judged.verdict
    if page_file is not None:
        write_page(page_file, run, judged, rules, site.config.timezone, site.wall())
        remark(f"The page: {page_file}")
    if as_json:
        print_json({"id": run.id, "start_s": run.start_s, "by": by, "verdict": verdict.to_json()})
    else:
        _print(run, by, verdict, ZoneInfo(site.config.timezone))
    if verdict.cause not in _NOTHING:
        raise click.exceptions.Exit(1)


def _looks(database: DatabaseClient, run: Run, job_id: str) -> list[tuple[str, Series]]:
    """What there is to judge by: the window where there is one, and the course."""
    looks = []
    try:
        windows = database.windows(job_id)
    except DatabaseError:
        windows = ()  # none was kept, or its nodes do not tell: the course does
    if windows:
        looks.append(("window", series_of_windows(run, windows)))
    courses = [
        course.devices
        for course in database.timelines(job_id)
        if (course.job_id, course.submit_s) == (run.job_id, run.submit_s) and course.devices is not None
    ]
    looks.append(("timeline", series_of_timelines(run, courses[0] if courses else ())))
    return looks


def _judged(
    run: Run, looks: list[tuple[str, Series]], groups: str | None, timings: Timings | None, rules: Rules
) -> Judged:
    """What is found now counts; else what is found in the whole course."""
    verdicts = []
    for by, series in looks:
        if timings is not None:
            series = timings.ranked(series)
        try:
            given = None if timings is None or groups is not None else timings.groups(series)
            given = given or groups_of(run, groups, len(series.workers))
        except ValueError as error:
            raise UsageError(str(error)) from None
        steps = None if timings is None else timings.steps
        verdict = judge(series, groups=given, steps=steps, rules=rules, running=run.end_s is None)
        verdicts.append(Judged(by, series, given, verdict))
    found = [item for item in verdicts if item.verdict.cause not in _NOTHING]
    told = [item for item in verdicts if item.verdict.cause is not Cause.UNKNOWN]
    return (found or told or verdicts)[0]


def _print(run: Run, by: str, verdict: Verdict, zone: ZoneInfo) -> None:
    kind = f" ({verdict.kind})" if verdict.kind else ""
    sure = f", {'suspected: ' if verdict.suspect else ''}confidence {verdict.confidence:.0%}"
    click.echo(f"Job {run.id}: {verdict.cause}{kind}" + ("" if verdict.cause is Cause.UNKNOWN else sure))
    source = SOURCES[by]
    told = "" if verdict.coverage is None else f", {verdict.coverage:.0%} of which were told"
    click.echo(f"  by {source}{told}")
    if verdict.culprits:
        click.echo(f"  who       {', '.join(text(worker.name) for worker in verdict.culprits)}")
    elif verdict.roles:
        click.echo(f"  most to do: {', '.join(map(text, verdict.roles))}; nobody is at fault")
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
