"""Figures as pictures: SVG to scale and to edit, PNG for slides and mail; both on light ground."""

from __future__ import annotations

from pathlib import Path

from slurm_gpu.files.atomic import whole_file
from slurm_gpu.reports.figure import Figure
from slurm_gpu.reports.page.draw import draw
from slurm_gpu.reports.page.png import write_png
from slurm_gpu.reports.page.svg import svg_file


def write_pictures(figure: Figure, directory: Path) -> None:
    """Write ID.svg and ID.png; raises OSError."""
    drawing = draw(figure.chart)
    with whole_file(directory / f"{figure.id}.svg") as unfinished:
        unfinished.write_text(svg_file(drawing, figure.title), "utf-8")
    with whole_file(directory / f"{figure.id}.png") as unfinished:
        write_png(drawing, unfinished)
