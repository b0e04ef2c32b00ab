"""Draw a chart of any kind."""

from __future__ import annotations

from slurm_gpu.reports.figure import Bars, Cdf, Chart, Matrix, ParallelCoordinates, TimeSeries, is_empty
from slurm_gpu.reports.page.bars import draw_bars
from slurm_gpu.reports.page.cumulative import draw_cdf
from slurm_gpu.reports.page.drawing import TextMark, VectorDrawing
from slurm_gpu.reports.page.lines import draw_lines
from slurm_gpu.reports.page.matrix import draw_matrix
from slurm_gpu.reports.page.timeseries import draw_time_series

# Widths in pixels on a desktop and on a phone.
WIDE, NARROW = 960.0, 352.0


def draw(chart: Chart, width: float = WIDE) -> VectorDrawing:
    """Return a drawing of the chart for this width, or of a sentence if the chart is empty."""
    if is_empty(chart):
        return VectorDrawing(width, 40, [TextMark(0, 24, "No data in this period.")])
    match chart:
        case Bars():
            return draw_bars(chart, width)
        case TimeSeries():
            return draw_time_series(chart, width)
        case Cdf():
            return draw_cdf(chart, width)
        case Matrix():
            return draw_matrix(chart, width)
        case ParallelCoordinates():
            return draw_lines(chart, width)
