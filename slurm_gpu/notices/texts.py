"""The texts of notices: a site's own, else ours, with placeholders that hold nothing but plain text.

A template's first line is `Subject: …`; what follows is the message. `$name` stands for a value, `$$` for $.
No value is looked into for placeholders, and none has a control character, so that a job's name is a name.
"""

from __future__ import annotations

import datetime as dt
import string
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from slurm_gpu.errors import InputError, InvalidFileError
from slurm_gpu.files.bounded_read import read_bytes
from slurm_gpu.notices.finding import KINDS, JobFinding
from slurm_gpu.text.units import counted, format_gpus

PLACEHOLDERS = {
    "user": "the user's name",
    "cluster": "the cluster's name",
    "jobs": "the jobs that it is about, a line each; below it what a diagnosis found",
    "count": "how many they are, as `2 jobs`",
    "job": "the first one's id",
    "contact": "where to ask, as a sentence; nothing where notices.yaml has no contact",
    "web": "the page of the cluster, as a sentence; nothing where there is none",
    "why": "of a warning and of an end, the reason that the policy gives",
    "end": "of a warning, when the jobs are ended at the earliest",
    "fate": "of a warning and of an end, what becomes of the jobs, as a sentence",
}
_SUBJECT = "Subject: "
_LONGEST_NAME, _LONGEST_SUBJECT = 40, 150
_MOST_JOBS = 20
_BELOW = 6 * " "
_MOST_BYTES = 64 * 1024
_OURS = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Text:
    """A message."""

    subject: str
    """In one line."""
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeContext:
    """What all notices of a site have in common."""

    cluster: str
    zone: ZoneInfo
    contact: str | None = None
    web: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """One kind's text."""

    subject: string.Template
    body: string.Template


def load_templates(directory: Path | None = None) -> Mapping[str, Template]:
    """By kind; a site's own where `directory` has KIND.txt. Raises InvalidFileError with every mistake."""
    found: dict[str, Template] = {}
    errors: list[InputError] = []
    for kind in KINDS:
        own = None if directory is None else directory / f"{kind}.txt"
        path = own if own is not None and own.exists() else _OURS / f"{kind}.txt"
        try:
            found[kind] = _template(path)
        except InvalidFileError as error:
            errors.extend(error.errors)
    if directory is not None:
        errors.extend(_strays(directory))
    if errors:
        raise InvalidFileError(errors)
    return found


def _strays(directory: Path) -> list[InputError]:
    """A text that nobody would ever read, as its name is none."""
    if not directory.is_dir():
        return [
            InputError(
                str(directory), 0, 0, "is no directory; templates: names one with texts such as held_idle.txt"
            )
        ]
    known = ", ".join(KINDS)
    return [
        InputError(str(path), 0, 0, f"is the text of no kind of notice; there are {known}")
        for path in sorted(directory.glob("*.txt"))
        if path.stem not in KINDS
    ]


def _template(path: Path) -> Template:
    try:
        raw = read_bytes(path, 16 * _MOST_BYTES)
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(path, 0, f"is not UTF-8 text (byte {error.start})") from error
    if len(raw) > _MOST_BYTES:
        raise _wrong(path, 0, f"has {len(raw)} bytes; a notice has {_MOST_BYTES} at most")
    first, _, rest = text.partition("\n")
    if not first.startswith(_SUBJECT) or not first.removeprefix(_SUBJECT).strip():
        raise _wrong(path, 1, f"the first line must be `{_SUBJECT}…`, and then the message")
    if not rest.strip():
        raise _wrong(path, 2, "there is no message behind the subject")
    errors = [
        InputError(str(path), number, 1, message)
        for number, line in enumerate(text.splitlines(), 1)
        if (message := _mistake(line)) is not None
    ]
    if errors:
        raise InvalidFileError(errors)
    return Template(string.Template(first.removeprefix(_SUBJECT).strip()), string.Template(rest.strip("\n")))


def _mistake(line: str) -> str | None:
    template = string.Template(line)
    if not template.is_valid():
        return "a $ that is no placeholder; write $$ for a dollar sign"
    unknown = [name for name in template.get_identifiers() if name not in PLACEHOLDERS]
    return f"${unknown[0]} is no placeholder; there are ${', $'.join(PLACEHOLDERS)}" if unknown else None


def _wrong(path: Path, line: int, message: str) -> InvalidFileError:
    return InvalidFileError([InputError(str(path), line, 1 if line else 0, message)])


def render(
    template: Template,
    user: str,
    findings: Sequence[JobFinding],
    around: NoticeContext,
    *,
    why: str = "",
    fate: str = "",
) -> Text:
    """The message to one user about at least one finding; `fate` is what becomes of the jobs."""
    ends = [one.end_s for one in findings if one.end_s is not None]
    values = {
        "user": plain(user),
        "cluster": plain(around.cluster),
        "jobs": "\n".join(_lines(findings, around.zone)),
        "count": counted(len(findings), "job"),
        "job": plain(findings[0].job.id),
        "contact": f"Questions: {plain(around.contact)}" if around.contact else "",
        "web": f"The cluster, and your jobs: {plain(around.web)}" if around.web else "",
        "why": plain(why, 1000),
        "end": moment(min(ends), around.zone) if ends else "",
        "fate": fate,
    }
    body = template.body.substitute(values).rstrip()
    subject = plain(template.subject.substitute({**values, "jobs": values["count"]}), _LONGEST_SUBJECT)
    return Text(subject, body + "\n")


def _lines(findings: Sequence[JobFinding], zone: ZoneInfo) -> list[str]:
    lines = [
        f"  {plain(one.job.id)}  {plain(one.job.name, _LONGEST_NAME) or '(no name)'}: "
        f"{format_gpus(round(1000 * one.job.n_gpus))}, since {moment(one.since_s, zone)}{_said(one)}"
        for one in findings[:_MOST_JOBS]
    ]
    left = len(findings) - _MOST_JOBS
    return [*lines, f"  and {counted(left, 'other')}"] if left > 0 else lines


def _said(finding: JobFinding) -> str:
    """What a diagnosis found, and what to do, each in a line of its own below the job."""
    said = finding.diagnosis
    if said is None:
        return ""
    kind = f" ({said.kind})" if said.kind else ""
    found = f"{said.cause}{kind}, {said.confidence:.0%} confidence: {said.text}"
    told = (plain(line, 300) for line in (found, said.next_step))
    lines = (textwrap.wrap(line, 104, initial_indent=_BELOW, subsequent_indent=_BELOW) for line in told)
    return "".join(f"\n{line}" for some in lines for line in some)


def moment(at_s: float, zone: ZoneInfo) -> str:
    """A time as people of the site read it: "2026-11-23 21:30 KST"."""
    return dt.datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%d %H:%M %Z")


def plain(text: str, longest: int = 200) -> str:
    """In one line, without what steers a terminal, a mail or the direction of writing."""
    clean = "".join(" " if unicodedata.category(one)[0] in "CZ" else one for one in text)
    words = " ".join(clean.split())
    return words if len(words) <= longest else f"{words[: longest - 1]}…"
