"""Example figures of every kind with hostile names of users."""

import numpy as np

from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import (
    Axis,
    Bars,
    Cdf,
    Chapter,
    Figure,
    FigureTable,
    Matrix,
    ParallelCoordinates,
    StepCurve,
    TableColumn,
    TimeSeries,
)
from slurm_gpu.reports.findings import Finding
from slurm_gpu.reports.page.document import ReportPage

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "'; DROP TABLE run; --",
    "two\nlines\r\tand a tab",
    "\x1b]0;owned\x07\x1b[2J",
    "gnp.\u202egnp.exe\u202c",
    "<!-- ]]> &lt; &#60; <!--<script>",
    "{{7*7}}${7*7}<%=7*7%>",
    "javascript:alert(4)",
    '=HYPERLINK("http://x","y")',
    "half a pair \ud800 and a NUL \x00",
    "한글 이름 العربية",
    "$x^2$ \\frac{1}{0}",
)
AXES = (
    Axis("nNODE", ""),
    Axis("nGPU", ""),
    Axis("WAIT_h", "h"),
    Axis("RUN_h", "h"),
    Axis("uGPUcore", "%"),
    Axis("uGPUmem", "%"),
)


def parallel(
    n: int, names: tuple[str, ...] = ("pytorch", "tensorflow", "python"), seed: int = 1
) -> ParallelCoordinates:
    """Return typical runs: few use many nodes, waits are short, and some runs have no measurements."""
    random = np.random.default_rng(seed)
    nodes = np.where(random.random(n) < 0.4, random.choice([2.0, 3, 4, 6, 8, 24], n), 1.0)
    gpus = nodes * random.choice([1.0, 2, 4, 8], n)
    gpus[random.random(n) < 0.03] = 0.25
    core = np.clip(random.beta(2.2, 1.2, n) * 100, 0, 100)
    core[random.random(n) < 0.05] = np.nan
    values = {
        "nNODE": nodes,
        "nGPU": gpus,
        "WAIT_h": np.where(random.random(n) < 0.5, 0.0, random.exponential(1.5, n).clip(0, 12)),
        "RUN_h": random.lognormal(0.5, 1.6, n).clip(0.001, 526),
        "uGPUcore": core,
        "uGPUmem": np.clip(core * 0.5 + random.normal(20, 16, n), 0, 100),
    }
    codes = random.integers(0, len(names), n).astype(np.int32)
    codes[random.random(n) < 0.02] = -1
    return ParallelCoordinates(
        axes=AXES, values=values, colour="nNODE", application=Category(names, codes), labels=[], of=n
    )


def table(name: str, **data: object) -> FigureTable:
    return FigureTable(
        name=name,
        title=f"Table {name}",
        columns=[TableColumn(key, "h" if key.endswith("_h") else "", f"What {key} is.") for key in data],
        data=data,  # type: ignore[arg-type]
    )


def steps(values: np.ndarray) -> StepCurve:
    known = np.sort(values[~np.isnan(values)])
    x, first = np.unique(known, return_index=True)
    return StepCurve(x, np.append(first[1:], len(known)) / max(1, len(known)), len(known))


def figures(names: tuple[str, ...] = HOSTILE, runs: int = 300) -> list[Figure]:
    """Return a figure of each kind, with given names as the texts that users choose."""
    many = np.arange(1.0, len(names) + 1)
    lines = parallel(runs, names)
    hours = np.arange(25) * 3600.0 + 1_790_812_800
    edge = {name: np.linspace(1, 2 + i, 24) for i, name in enumerate(names)}
    charts = {
        "bars": Bars(
            labels=names, series={"allocated": many, "idle": many / 2}, unit="GPU-hours", total=many * 2
        ),
        "grouped": Bars(labels=["a"], series=dict.fromkeys(names, np.array([1.5])), unit="h", stacked=False),
        "course": TimeSeries(edges_s=hours, series=edge, unit="GPUs", limit=np.full(24, 99.0)),
        "lines": TimeSeries(edges_s=hours, series=edge, unit="%", stacked=False, timezone="Asia/Seoul"),
        "runs": lines,
        "distributions": Cdf(
            axes=AXES,
            curves={axis.name: {name: steps(lines.values[axis.name]) for name in names} for axis in AXES},
        ),
        "lending": Matrix(
            rows=names,
            columns=names,
            values=np.outer(many, many),
            unit="GPU-hours",
            row_title=names[0],
            column_title=names[0],
        ),
    }
    return [
        Figure(
            id=name,
            title=f"Figure {name}",
            reading=f"{names[0]} leads {names[-1]}.",
            table=table(name, who=Category(names, np.arange(len(names), dtype=np.int32)), wait_h=many),
            chart=chart,
            notes=[names[1 % len(names)]],
        )
        for name, chart in charts.items()
    ]


def page(of: list[Figure], *, with_files: bool = True) -> ReportPage:
    return ReportPage(
        title="GPU report of neuron",
        period="1 October to 31 October 2026, Asia/Seoul",
        made="version 0, on 2026-11-01 02:00 Asia/Seoul",
        findings=[
            Finding(
                name="Who",
                value="483",
                unit="users",
                text=f"The largest user was {HOSTILE[0]}.",
                change=f"{HOSTILE[1]}: 5 GPU-hours per day",
                figure_id=of[0].id,
            )
        ],
        chapters=[Chapter(id="use", title="Use", figures=of)],
        timezone="Asia/Seoul",
        with_files=with_files,
    )
