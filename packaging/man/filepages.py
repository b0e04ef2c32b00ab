"""Build the pages of the files in /etc/slurm-gpu from the commented examples in etc/."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from manpage import ManPage, definitions, literal, paragraph, see_also, strong

_EXAMPLES = Path(__file__).parents[2] / "etc"
_KEY = re.compile(r"(?:# )?(?P<key>[a-z_]+):(?: |$)")
_INDENTED = re.compile(r"#  | ")
_FOR_EDITORS = re.compile(r"# yaml-language-server:.*\n")


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    summary: str
    related: tuple[str, ...]


_FILES = (
    _File(
        "slurm-gpu.yaml",
        "the site file of slurm-gpu",
        ("slurm-gpu(1)", "slurm-gpu-doctor(1)", "slurm-gpud(8)", "slurm-gpudbd(8)", "slurm-gpuctld(8)"),
    ),
    _File(
        "slurm-gpudbd.yaml",
        "the database of slurm-gpudbd",
        ("slurm-gpudbd(8)", "slurm-gpu-db(1)", "slurm-gpu.yaml(5)"),
    ),
    _File(
        "slurm-gpuweb.yaml",
        "the address and sign-in of slurm-gpuweb",
        ("slurm-gpuweb(8)", "slurm-gpu.yaml(5)"),
    ),
    _File(
        "notices.yaml",
        "the notices that users receive about their jobs",
        ("slurm-gpuctld(8)", "slurm-gpu-notices(1)", "policy.yaml(5)", "slurm-gpu.yaml(5)"),
    ),
    _File(
        "policy.yaml",
        "the limits of a cluster and their reasons",
        ("slurm-gpu-policy(1)", "slurm-gpu-explain(1)", "slurm-gpu-quota(1)", "slurm-gpuctld(8)"),
    ),
)


def file_pages(version: str, date: str) -> Iterator[ManPage]:
    """Yield slurm-gpu.yaml(5) and the pages of the other files."""
    for file in _FILES:
        first, *entries = read_entries((_EXAMPLES / file.name).read_text("utf-8"))
        page = ManPage(file.name, 5, file.summary, version, date)
        page.add("SYNOPSIS", paragraph(f"`/etc/slurm-gpu/{file.name}`"))
        page.add("DESCRIPTION", *_body(first.runs))
        page.add(
            "KEYS",
            definitions(
                ([strong(", ".join(entry.keys))], list(_body(entry.runs))) for entry in entries if entry.keys
            ),
        )
        page.add("SEE ALSO", see_also(file.related))
        yield page


@dataclass(frozen=True, slots=True)
class Entry:
    """A paragraph of an example: its keys, and its runs of lines, each verbatim or prose."""

    keys: tuple[str, ...]
    # Whether the run is verbatim, and its text: unchanged if verbatim, otherwise without comment signs.
    runs: tuple[tuple[bool, str], ...]


def read_entries(text: str) -> list[Entry]:
    """Return the paragraphs of a commented file; the first describes the whole file."""
    text = _FOR_EDITORS.sub("", text).strip("\n")
    return [_entry(part.split("\n")) for part in re.split(r"\n\s*\n", text)]


def _entry(lines: Iterable[str]) -> Entry:
    keys: dict[str, None] = {}
    runs: list[tuple[bool, list[str]]] = []
    for line in lines:
        match = _KEY.match(line)
        if match is not None:
            keys[match["key"]] = None
        verbatim = match is not None or _INDENTED.match(line) is not None
        if not runs or runs[-1][0] != verbatim:
            runs.append((verbatim, []))
        runs[-1][1].append(line if verbatim else line.removeprefix("# "))
    return Entry(tuple(keys), tuple((verbatim, "\n".join(text)) for verbatim, text in runs))


def _body(runs: Iterable[tuple[bool, str]]) -> Iterator[nodes.Node]:
    for verbatim, text in runs:
        yield literal(text) if verbatim else paragraph(text)
