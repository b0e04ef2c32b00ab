"""The figures of all chapters of a report."""

from slurm_gpu.reports.figure import Figure
from slurm_gpu.reports.figures import chapters
from slurm_gpu.reports.load import ReportData


def all_figures(data: ReportData) -> list[Figure]:
    """Return the figures of all chapters in order."""
    return [figure for chapter in chapters(data) for figure in chapter.figures]
