"""Calculate correlations of metrics over time, and between GPUs at the same time."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import numpy as np

from slurm_gpu.diagnose.robust import Matrix, median
from slurm_gpu.reports.diagnosed.page_model import CaseView
from slurm_gpu.reports.diagnosed.style import SHADES
from slurm_gpu.reports.diagnosed.words import TITLES
from slurm_gpu.reports.page.markup import append, element, section

_LEAST_PAIRS = 12
# Minimum standard deviation of a metric, as a fraction of its maximum. Smaller variations are noise of the
# measurement.
_LEAST_VARIATION = 0.02


def correlations(view: CaseView) -> Matrix:
    """Return (n_metrics, n_metrics) correlations: over time below the diagonal, between GPUs above it."""
    metrics = list(view.values)
    over_time = [median(view.values[metric].T) for metric in metrics]
    between = [_apart(view, view.values[metric]) for metric in metrics]
    least_variations = [
        _LEAST_VARIATION * float(np.nanmax(view.values[metric], initial=0.0)) for metric in metrics
    ]
    found = np.full((len(metrics), len(metrics)), np.nan)
    for row in range(len(metrics)):
        for column in range(row):
            least = (least_variations[row], least_variations[column])
            found[row, column] = _pearson(over_time[row], over_time[column], least)
            found[column, row] = _pearson(between[row].ravel(), between[column].ravel(), least)
    return found


def relations_section(view: CaseView) -> Element | None:
    """Return a table with cells shaded by correlation; None if there are no correlations."""
    metrics = list(view.values)
    found = correlations(view)
    if not np.isfinite(found).any():
        return None
    head = element("tr", None, element("td", None))
    append(
        head, *(element("th", {"scope": "col"}, element("span", None, TITLES[metric])) for metric in metrics)
    )
    body = element("tbody", None)
    for row, metric in enumerate(metrics):
        line = element("tr", None, element("th", {"scope": "row"}, TITLES[metric]))
        append(line, *(_cell(found[row, column], row == column) for column in range(len(metrics))))
        append(body, line)
    reading = (
        "Cells below the diagonal show correlation over time. Cells above it show correlation of deviations "
        "from peers, for the same GPU and time. Values are from −1 to 1."
    )
    if view.is_of_one:
        reading = "Correlation of metrics over time, from −1 to 1."
    table = element("table", {"class": "relations"}, element("thead", None, head), body)
    return section(
        "relations",
        "Correlation of metrics",
        element("p", {"class": "reading"}, reading),
        element("div", {"class": "across"}, table),
    )


def _cell(value: float, is_same: bool) -> Element:
    if is_same:
        return element("td", {"class": "same"})
    if np.isnan(value):
        return element("td", {"class": "none"}, "–")
    shade = round(abs(value) * SHADES)
    text = f"{value:.1f}".replace("-", "−") if round(abs(value), 1) else "0"
    return element("td", {"class": f"c{'p' if value > 0 else 'm'}{shade}"} if shade else {}, text)


def _apart(view: CaseView, rows: Matrix) -> Matrix:
    apart = np.full(rows.shape, np.nan)
    for group in np.unique(view.of):
        members = view.of == group
        apart[members] = rows[members] - median(rows[members].T)
    return apart


def _pearson(one: Matrix, other: Matrix, least: tuple[float, float]) -> float:
    """Return the correlation; NaN if a series is short or has at most the standard deviation in `least`."""
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < _LEAST_PAIRS:
        return float("nan")
    a, b = one[both], other[both]
    if a.std() <= least[0] or b.std() <= least[1]:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
