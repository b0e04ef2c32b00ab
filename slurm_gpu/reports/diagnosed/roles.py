"""Who was compared with whom, and every GPU with its levels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

import numpy as np

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.robust import Matrix, median, middle
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.reports.diagnosed.page_model import DiagnosisPageModel, Sight
from slurm_gpu.reports.diagnosed.words import TITLES, group_tone, shown
from slurm_gpu.reports.page.markup import append, element, section
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.units import few

_OF_GROUPS = (Metric.MEM_USED, Metric.TENSOR, Metric.SM_ACTIVE, Metric.POWER, Metric.UTIL)
_MOST_PARTS = 8


def roles_section(look: DiagnosisPageModel, sight: Sight) -> Element:
    """Groups of peers with their usual levels, and below a table of all GPUs."""
    case = look.case
    usual = {metric: _usual(look, sight, metric) for metric in sight.values}
    metrics = [metric for metric in _OF_GROUPS if metric in usual]
    body = element("tbody", None)
    for group, name in enumerate(case.groups.names):
        rows = sight.of == group
        everyone = [case.series.workers[row] for row in np.flatnonzero(case.groups.of == group)]
        swatch = (
            element("i", {"class": f"swatch b-{group_tone(group)}"}) if len(case.groups.names) > 1 else None
        )
        line = element("tr", None, element("th", {"scope": "row"}, swatch, name))
        append(line, _number(str(len(everyone))), element("td", None, _places(everyone)))
        append(line, *(_number(shown(metric, middle(usual[metric][rows]))) for metric in metrics))
        append(line, _number(str(int(sight.culprit[rows].sum()))))
        append(body, line)
    heads = ("Group", "GPUs", "where", *(TITLES[metric] for metric in metrics), "accused")
    reading = f"GPUs are compared with those of their group alone: {case.groups.source}."
    if len(case.groups.names) == 1:
        reading = f"All GPUs are compared with each other: {case.groups.source}."
    if sight.is_of_one:
        reading = "The job has one GPU, and none to compare it with."
    return section(
        "roles",
        "Who does the same",
        element("p", {"class": "reading"}, reading),
        element("div", {"class": "across"}, element("table", None, _head(heads), body)),
        _everyone(look, sight, usual),
    )


def _everyone(look: DiagnosisPageModel, sight: Sight, usual: dict[Metric, Matrix]) -> Element:
    names = look.case.groups.names
    coverage = look.case.series.coverage()[sight.places]
    judged, unused = look.case.judged[sight.places], frozenset(look.case.unused)
    body = element("tbody", None)
    for row, worker in enumerate(sight.workers):
        line = element("tr", {"class": "accused"} if sight.culprit[row] else {})
        append(line, element("th", {"scope": "row"}, worker.name), element("td", None, names[sight.of[row]]))
        append(line, *(_number(shown(metric, float(usual[metric][row]))) for metric in sight.values))
        note = "" if judged[row] else "shared" if worker.shared else "told nothing"
        note = "runs nothing" if worker in unused else note
        append(line, _number(f"{coverage[row]:.0%}"), element("td", None, note))
        append(body, line)
    whose = "The GPU" if sight.n_rows == 1 else f"All {sight.n_rows} GPUs"
    if sight.left_out:
        whose = f"{sight.n_rows} of {sight.n_rows + sight.left_out} GPUs"
    heads = ("GPU", "group", *(TITLES[metric] for metric in sight.values), "told", "")
    table = element("table", {"id": "gpus"}, _head(heads), body)
    return element(
        "details",
        None,
        element("summary", None, f"{whose} in numbers"),
        element("div", {"class": "scroll"}, table),
    )


def _usual(look: DiagnosisPageModel, sight: Sight, metric: Metric) -> Matrix:
    """Of each row the median while the job computed; over all of it where it never did."""
    rows, active = look.case.series.values[metric][sight.places], look.case.phases.active
    return median(rows[:, active] if active.any() else rows)


def _head(names: Sequence[str]) -> Element:
    return element(
        "thead", None, element("tr", None, *(element("th", {"scope": "col"}, name) for name in names))
    )


def _number(text: str) -> Element:
    return element("td", {"class": "number"}, text)


def _places(workers: Sequence[JobWorker]) -> str:
    """Nodes by their GPUs: n[1-7] 0–7, n8 0–3."""
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
