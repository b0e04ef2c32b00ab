"""Create the texts of notices from templates, which are the site's or slurm-gpu's own.

The first line of a template is `Subject: …`; the rest is the message. `$name` is a placeholder, and `$$` is a
dollar sign. Placeholders in values are not replaced, and control characters are removed. A job's name is
therefore always shown as plain text.
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
    "user": "name of the user",
    "cluster": "name of the cluster",
    "jobs": "the jobs, one per line, each followed by its diagnosis if there is one",
    "count": "number of jobs, such as `2 jobs`",
    "job": "ID of the first job",
    "contact": "where to ask, as a sentence; empty if notices.yaml has no contact",
    "web": "address of the web page, as a sentence; empty if there is none",
    "why": "in warning.txt and ended.txt: the reason that the policy gives",
    "end": "in warning.txt: the earliest time at which the jobs are ended",
    "fate": "in warning.txt and ended.txt: what happens to the jobs, as a sentence",
}
_SUBJECT = "Subject: "
_LONGEST_NAME, _LONGEST_SUBJECT = 40, 150
_MOST_JOBS = 20
_BELOW = 6 * " "
_MOST_BYTES = 64 * 1024
_OURS = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Text:
    """The subject and body of a message."""

    subject: str
    """A single line."""
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeContext:
    """The values that all notices of a site share."""

    cluster: str
    zone: ZoneInfo
    contact: str | None = None
    web: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """The text of one kind of notice."""

    subject: string.Template
    body: string.Template


def load_templates(directory: Path | None = None) -> Mapping[str, Template]:
    """Return the templates by kind: KIND.txt in `directory` if it exists, otherwise slurm-gpu's own.

    Raise InvalidFileError with all errors.
    """
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
    """Return an error for each file whose name is not a kind of notice."""
    if not directory.is_dir():
        return [
            InputError(
                str(directory),
                0,
                0,
                "is not a directory; templates: must name one with files such as never_used.txt",
            )
        ]
    known = ", ".join(KINDS)
    return [
        InputError(str(path), 0, 0, f"is not named after a kind of notice: {known}")
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
        raise _wrong(path, 0, f"has {len(raw)} bytes; the limit is {_MOST_BYTES}")
    first, _, rest = text.partition("\n")
    if not first.startswith(_SUBJECT) or not first.removeprefix(_SUBJECT).strip():
        raise _wrong(path, 1, f"the first line must be `{_SUBJECT}…`, followed by the message")
    if not rest.strip():
        raise _wrong(path, 2, "there is no message after the subject")
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
        return "a $ without a placeholder; write $$ for a dollar sign"
    unknown = [name for name in template.get_identifiers() if name not in PLACEHOLDERS]
    return f"${unknown[0]} is not a placeholder; available: ${', $'.join(PLACEHOLDERS)}" if unknown else None


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
    """Return the message to one user about one or more findings; `fate` is the consequence for the jobs."""
    ends = [one.end_s for one in findings if one.end_s is not None]
    values = {
        "user": plain(user),
        "cluster": plain(around.cluster),
        "jobs": "\n".join(_lines(findings, around.zone)),
        "count": counted(len(findings), "job"),
        "job": plain(findings[0].job.id),
        "contact": f"Questions: {plain(around.contact)}" if around.contact else "",
        "web": f"Your jobs on the web: {plain(around.web)}" if around.web else "",
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
        f"{format_gpus(round(1000 * one.job.n_gpus))}, since {moment(one.since_s, zone)}{_diagnosis(one)}"
        for one in findings[:_MOST_JOBS]
    ]
    left = len(findings) - _MOST_JOBS
    return [*lines, f"  and {counted(left, 'other')}"] if left > 0 else lines


def _diagnosis(finding: JobFinding) -> str:
    """Return the diagnosis and the next step, on indented lines below the job."""
    found = finding.diagnosis
    if found is None:
        return ""
    kind = f" ({found.kind})" if found.kind else ""
    cause = f"{found.cause}{kind}, {found.confidence:.0%} confidence: {found.text}"
    lines = (
        line
        for text in (cause, found.next_step)
        for line in textwrap.wrap(plain(text, 300), 104, initial_indent=_BELOW, subsequent_indent=_BELOW)
    )
    return "".join(f"\n{line}" for line in lines)


def moment(at_s: float, zone: ZoneInfo) -> str:
    """Format a time in the time zone of the site, such as "2026-11-23 21:30 KST"."""
    return dt.datetime.fromtimestamp(at_s, zone).strftime("%Y-%m-%d %H:%M %Z")


def plain(text: str, longest: int = 200) -> str:
    """Return the text on one line, without characters that control terminals, mail or writing direction."""
    clean = "".join(" " if unicodedata.category(one)[0] in "CZ" else one for one in text)
    words = " ".join(clean.split())
    return words if len(words) <= longest else f"{words[: longest - 1]}…"
