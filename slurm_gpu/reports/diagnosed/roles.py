"""Show the groups of GPUs that are compared with each other, and a table of all GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

import numpy as np

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, middle
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.reports.diagnosed.page_model import CaseView, DiagnosisPageModel
from slurm_gpu.reports.diagnosed.words import TITLES, group_tone, shown
from slurm_gpu.reports.page.markup import append, element, section
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.units import few

_OF_GROUPS = (Metric.MEM_USED, Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.UTIL)
_MOST_PARTS = 8


def roles_section(page: DiagnosisPageModel, view: CaseView) -> Element:
    """Return the groups of peers with their usual levels, and a table of all GPUs."""
    case = page.case
    usual = {metric: _usual(page, view, metric) for metric in view.values}
    metrics = [metric for metric in _OF_GROUPS if metric in usual]
    body = element("tbody", None)
    for group, name in enumerate(case.groups.names):
        rows = view.of == group
        everyone = [case.series.workers[row] for row in np.flatnonzero(case.groups.of == group)]
        swatch = (
            element("i", {"class": f"swatch b-{group_tone(group)}"}) if len(case.groups.names) > 1 else None
        )
        line = element("tr", None, element("th", {"scope": "row"}, swatch, name))
        append(line, _number(str(len(everyone))), element("td", None, _places(everyone)))
        append(line, *(_number(shown(metric, middle(usual[metric][rows]))) for metric in metrics))
        append(line, _number(str(int(view.culprit[rows].sum()))))
        append(body, line)
    heads = ("Group", "GPUs", "Nodes", *(TITLES[metric] for metric in metrics), "suspected")
    reading = f"GPUs are compared within their group: {case.groups.source}."
    if len(case.groups.names) == 1:
        reading = f"All GPUs are compared with each other: {case.groups.source}."
    if view.is_of_one:
        reading = "The job has one GPU, so there is nothing to compare it with."
    return section(
        "roles",
        "Groups of GPUs with the same work",
        element("p", {"class": "reading"}, reading),
        element("div", {"class": "across"}, element("table", None, _head(heads), body)),
        _everyone(page, view, usual),
    )


def _everyone(page: DiagnosisPageModel, view: CaseView, usual: dict[Metric, Matrix]) -> Element:
    names = page.case.groups.names
    coverage = page.case.series.coverage()[view.places]
    judged, unused = page.case.judged[view.places], frozenset(page.case.unused)
    body = element("tbody", None)
    for row, worker in enumerate(view.workers):
        line = element("tr", {"class": "accused"} if view.culprit[row] else {})
        append(line, element("th", {"scope": "row"}, worker.name), element("td", None, names[view.of[row]]))
        append(line, *(_number(shown(metric, float(usual[metric][row]))) for metric in view.values))
        note = "" if judged[row] else "shared" if worker.shared else "no data"
        note = "no process" if worker in unused else note
        append(line, _number(f"{coverage[row]:.0%}"), element("td", None, note))
        append(body, line)
    whose = "The GPU" if view.n_rows == 1 else f"All {view.n_rows} GPUs"
    if view.left_out:
        whose = f"{view.n_rows} of {view.n_rows + view.left_out} GPUs"
    heads = ("GPU", "group", *(TITLES[metric] for metric in view.values), "coverage", "")
    table = element("table", {"id": "gpus"}, _head(heads), body)
    return element(
        "details",
        None,
        element("summary", None, f"{whose} in numbers"),
        element("div", {"class": "scroll"}, table),
    )


def _usual(page: DiagnosisPageModel, view: CaseView, metric: Metric) -> Matrix:
    """Return the median of each row over the time in which the job computed, or else over all time."""
    rows, active = page.case.series.values[metric][view.places], page.case.phases.active
    return median(rows[:, active] if active.any() else rows)


def _head(names: Sequence[str]) -> Element:
    return element(
        "thead", None, element("tr", None, *(element("th", {"scope": "col"}, name) for name in names))
    )


def _number(text: str) -> Element:
    return element("td", {"class": "number"}, text)


def _places(workers: Sequence[JobWorker]) -> str:
    """Return the nodes and GPUs of workers as text, such as "n[1-7] 0–7, n8 0–3"."""
    nodes: dict[str, list[str]] = {}
    for node, there in groupby(workers, key=lambda worker: worker.node):
        numbers = [worker.index for worker in there]
        known = sorted(number for number in numbers if number is not None)
        nodes.setdefault(_spans(known) if len(known) == len(numbers) else f"({len(numbers)})", []).append(
            node
        )
    parts = [f"{compress(names)} {spans}" for spans, names in nodes.items()]
    return few(parts, _MOST_PARTS)


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)
