"""Build the diagnosis page of one run."""

from __future__ import annotations

from slurm_gpu import __version__
from slurm_gpu.diagnose.case import DiagnosisThresholds, build_case
from slurm_gpu.reports.diagnosed.document import SiteLinks, diagnosis_html
from slurm_gpu.reports.diagnosed.judged import JudgedRun
from slurm_gpu.reports.diagnosed.page_model import DiagnosisPageModel
from slurm_gpu.reports.diagnosed.words import clock_time
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.runs import Run


def run_page(
    run: Run,
    found: JudgedRun,
    rules: DiagnosisThresholds,
    timezone: str,
    now_s: float,
    site: SiteLinks | None = None,
) -> str:
    """Return the HTML of the page: a self-contained file or, if `site` is given, a page for that site."""
    name = f" · {run.name}" if run.name else ""
    begin = "–" if run.start_s is None else clock_time(run.start_s, timezone)
    until = "now" if run.end_s is None else clock_time(run.end_s, timezone)
    page = DiagnosisPageModel(
        title=f"Job {run.id}{name}",
        about=[
            f"{run.user} in {run.account}",
            counted(len(found.series.workers), f"{run.gpu_type} GPU" if run.gpu_type else "GPU"),
            f"{counted(run.n_nodes, 'node')} {run.nodes}",
            *([run.app] if run.app else []),
            f"{begin} to {until}",
        ],
        by=found.source(run),
        coverage_text=found.coverage_text(run, rules),
        case=build_case(found.series, found.groups, rules, run.end_s is None),
        verdict=found.verdict,
        timezone=timezone,
        made=f"version {__version__}, on {clock_time(int(now_s), timezone)}",
    )
    return diagnosis_html(page, site)
