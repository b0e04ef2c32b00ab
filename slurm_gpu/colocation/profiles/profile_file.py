"""Read and write profiles as CSV (one line per phase) and JSON; see docs/colocation.md#profiles."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.tables.strict_csv import read_rows
from slurm_gpu.colocation.tables.strict_json import mapping, number, read_json, shown
from slurm_gpu.errors import InputError
from slurm_gpu.files.atomic import whole_file, write_whole
from slurm_gpu.text.spreadsheet import armoured, bare

FORMAT = "slurm-gpu profiles 1"
_USES = ("util", "memory_mib", "sm", "pcie")
_ABOUT = ("application", "gpu_model", "kind", "input_size", "parameters", "runs")
_COLUMNS = (*_ABOUT, "phase", "seconds", *_USES)
_PHASE_KEYS = {"seconds", *_USES}
_DIGITS = 12
_QUOTED = 60
# Maximum seconds or MiB: larger than any real value, and small enough for sums.
_MOST = 1e10


def read_profiles(path: Path) -> tuple[ApplicationProfile, ...]:
    """Return the profiles in a file, which is CSV if its name ends in .csv, otherwise JSON.

    If the file is invalid, raise InputError with the line or key and the value.
    """
    return _read_csv(path) if path.suffix.lower() == ".csv" else _read_json(path)


def write_profiles_json(path: Path, profiles: Iterable[ApplicationProfile]) -> None:
    """Write profiles as JSON; raise OSError if writing fails."""
    decoded = {"format": FORMAT, "profiles": [as_json(profile) for profile in profiles]}
    write_whole(path, json.dumps(decoded, ensure_ascii=True, indent=1) + "\n")


def write_profiles_csv(path: Path, profiles: Iterable[ApplicationProfile]) -> None:
    """Write profiles as CSV; raise OSError if writing fails."""
    with whole_file(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for profile in profiles:
            parameters = json.dumps(dict(profile.parameters), ensure_ascii=True) if profile.parameters else ""
            about = [
                *map(armoured, (profile.application, profile.gpu_model, profile.kind)),
                "" if profile.input_size is None else repr(profile.input_size),
                armoured(parameters),
                profile.runs,
            ]
            for at, phase in enumerate(profile.phases, 1):
                uses = [getattr(phase, use) for use in _USES]
                writer.writerow(
                    [*about, at, repr(phase.seconds), *("" if use is None else repr(use) for use in uses)]
                )


def as_json(profile: ApplicationProfile) -> dict[str, Any]:
    """Return one profile in the format of a JSON file."""
    return {
        "application": profile.application,
        "gpu_model": profile.gpu_model,
        "kind": profile.kind,
        "input_size": profile.input_size,
        "parameters": dict(profile.parameters),
        "runs": profile.runs,
        "phases": [
            {"seconds": phase.seconds, **{use: getattr(phase, use) for use in _USES}}
            for phase in profile.phases
        ],
    }


def _read_json(path: Path) -> tuple[ApplicationProfile, ...]:
    decoded = mapping(path, "the file", read_json(path), "a JSON object")
    if decoded.get("format") != FORMAT:
        raise InputError(str(path), 0, 0, f"format: {shown(decoded.get('format'))} must be {shown(FORMAT)}")
    profiles = decoded.get("profiles")
    if not isinstance(profiles, list) or set(decoded) != {"format", "profiles"}:
        raise InputError(str(path), 0, 0, "the file must contain only `format` and the list `profiles`")
    found = []
    for at, value in enumerate(profiles):
        try:
            found.append(_profile(value))
        except ValueError as error:
            raise InputError(str(path), 0, 0, f"profiles[{at}]: {error}") from None
    _each_once(path, found)
    return tuple(found)


def _profile(value: Any) -> ApplicationProfile:
    if not isinstance(value, dict) or not set(value) <= {*_ABOUT, "phases"}:
        raise _wrong("", value, f"an object with only the keys {', '.join((*_ABOUT, 'phases'))}")
    parameters = value.get("parameters", {})
    if not isinstance(parameters, dict) or not all(isinstance(one, str) for one in parameters.values()):
        raise _wrong("parameters", parameters, "an object of strings")
    phases = value.get("phases")
    if not isinstance(phases, list) or not phases:
        raise _wrong("phases", phases, "a list of at least one phase")
    runs = value.get("runs", 1)
    if isinstance(runs, bool) or not isinstance(runs, int):
        raise _wrong("runs", runs, "a whole number")
    application, gpu_model, kind = (_text(value, name) for name in ("application", "gpu_model", "kind"))
    size, found = _optional(value, "input_size"), [_phase(at, one) for at, one in enumerate(phases)]
    return _checked(application, gpu_model, kind, size, parameters, runs, found)


def _phase(at: int, value: Any) -> ProfilePhase:
    if not isinstance(value, dict) or not set(value) <= _PHASE_KEYS:
        raise _wrong(f"phases[{at}]", value, f"an object with only the keys {', '.join(('seconds', *_USES))}")
    try:
        return _made(_optional(value, "seconds"), {use: _optional(value, use) for use in _USES})
    except ValueError as error:
        raise ValueError(f"phases[{at}]: {error}") from None


def _made(seconds: float | None, uses: Mapping[str, float | None]) -> ProfilePhase:
    if seconds is None:
        raise ValueError("seconds must be given")
    for what, value in (("seconds", seconds), ("memory_mib", uses["memory_mib"])):
        if value is not None and value > _MOST:
            raise ValueError(f"{what} must be at most {_MOST:g}, not {value:g}")
    return ProfilePhase(seconds=seconds, **uses)


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name, "")
    if not isinstance(text, str):
        raise _wrong(name, text, "a text")
    return text


def _wrong(where: str, value: Any, right: str) -> ValueError:
    return ValueError(f"{where}{': ' if where else ''}{shown(value)} must be {right}")


def _optional(value: Mapping[str, Any], name: str) -> float | None:
    given = value.get(name)
    if given is None:
        return None
    found = number(given)
    if found is None:
        raise ValueError(f"{name}: {shown(given)} must be a number or null")
    return found


def _checked(
    application: str,
    gpu_model: str,
    kind: str,
    input_size: float | None,
    parameters: Mapping[str, str],
    runs: int,
    phases: Sequence[ProfilePhase],
) -> ApplicationProfile:
    if not application or not gpu_model:
        raise ValueError("application and gpu_model must be given")
    for text in (application, gpu_model, kind):
        if not text.isprintable():
            raise ValueError(f"{_cut(text)} must be printable")
    if runs < 1:
        raise ValueError(f"runs: {runs} must be 1 or more")
    return ApplicationProfile(
        application, gpu_model, tuple(phases), kind, input_size, tuple(sorted(parameters.items())), runs
    )


@dataclass(slots=True)
class _Lines:
    """The lines of one profile."""

    about: list[str]
    line: int
    phases: list[ProfilePhase] = field(default_factory=list)


def _read_csv(path: Path) -> tuple[ApplicationProfile, ...]:
    lines = read_rows(path)
    if not lines or tuple(lines[0][1]) != _COLUMNS:
        raise InputError(str(path), 1, 1, f"the first line must be {','.join(_COLUMNS)}")
    found: list[_Lines] = []
    for line, row in lines[1:]:
        try:
            _add_line(found, line, row)
        except ValueError as error:
            raise InputError(str(path), line, 1, str(error)) from None
    profiles = []
    for one in found:
        try:
            profiles.append(_of_lines(one))
        except ValueError as error:
            raise InputError(str(path), one.line, 1, str(error)) from None
    _each_once(path, profiles)
    return tuple(profiles)


def _add_line(found: list[_Lines], line: int, row: Sequence[str]) -> None:
    if len(row) != len(_COLUMNS):
        raise ValueError(f"has {len(row)} cells, but the first line has {len(_COLUMNS)}")
    about, (at, seconds, *uses) = list(map(bare, row[: len(_ABOUT)])), row[len(_ABOUT) :]
    if at == "1":
        found.append(_Lines(about, line))
    elif not found or found[-1].about != about or at != str(len(found[-1].phases) + 1):
        raise ValueError(
            f"phase {_cut(at)} must be 1, or one more than in the previous line of the same profile"
        )
    values = {use: _cell(use, text) for use, text in zip(_USES, uses, strict=True)}
    found[-1].phases.append(_made(_cell("seconds", seconds), values))


def _of_lines(lines: _Lines) -> ApplicationProfile:
    application, gpu_model, kind, size, parameters, runs = lines.about
    if not runs.isdecimal() or not runs.isascii():
        raise ValueError(f"runs {_cut(runs)} must be a whole number")
    try:
        decoded = json.loads(parameters) if parameters else {}
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict) or not all(isinstance(one, str) for one in decoded.values()):
        raise ValueError(f"parameters {_cut(parameters)} must be empty or a JSON object of strings")
    if len(runs) > _DIGITS:
        raise ValueError(f"runs {runs[:_DIGITS]}… is too large")
    return _checked(application, gpu_model, kind, _cell("input_size", size), decoded, int(runs), lines.phases)


def _cut(text: str) -> str:
    """Shorten a value for an error message."""
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…")


def _cell(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        found = number(float(text))
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"{name} {_cut(text)} must be a number, or empty if unknown")
    return found


def _each_once(path: Path, profiles: Sequence[ApplicationProfile]) -> None:
    there = set()
    for profile in profiles:
        if profile.key in there:
            raise InputError(
                str(path),
                0,
                0,
                f"{profile.application} on {profile.gpu_model} occurs twice with the same input",
            )
        there.add(profile.key)
