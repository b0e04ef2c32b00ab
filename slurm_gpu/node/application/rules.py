"""Read applications.yaml: the traces that identify programs, and the arguments to store.

docs/applications.md describes the file for admins.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from slurm_gpu.config.decoder import REQUIRED, FromPlace, Items, Key, OneOrTable, decode
from slurm_gpu.config.value_types import (
    InvalidValueError,
    ValueType,
    choice,
    fixed,
    pattern,
    require,
    whole_number,
)
from slurm_gpu.config.yaml_source import YamlSource, read_yaml
from slurm_gpu.files.source_root import SOURCE_ROOT
from slurm_gpu.node.application.pattern_cost import LONGEST_TEXT, MOST_WAYS, ways_to_match

FILE_NAME = "applications.yaml"
SHIPPED = (
    SOURCE_ROOT / "etc" / FILE_NAME,
    Path(sys.prefix) / "share" / "slurm-gpu" / FILE_NAME,
    Path("/usr/share/slurm-gpu") / FILE_NAME,
)

MAX_PRIORITY = 100
_LONGEST_PATTERN = 300
_LONGEST_NAME = 64
_MOST_NAMES = 64


def _parse_name(value: Any) -> str:
    return str(require(isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_NAME, value))


def _parse_field(value: Any) -> str | None:
    return None if value is None else _parse_name(require(value != "", value))


def _parse_names(value: Any) -> Sequence[str]:
    names = [value] if isinstance(value, str) else value
    require(isinstance(names, list) and 0 < len(names) <= _MOST_NAMES, names)
    require(all(isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME for name in names), names)
    return list(names)


def _parse_globs(value: Any) -> re.Pattern[str]:
    names = _parse_names(value)
    for name in names:
        if "/" in name:
            raise InvalidValueError(f"has {name!r}; it must be a name without directories, such as lmp*")
        if not name.strip("*?"):
            raise InvalidValueError(f"has {name!r}, which matches everything")
    return re.compile("|".join(fnmatch.translate(name) for name in names))


def _parse_packages(value: Any) -> frozenset[str]:
    names = _parse_names(value)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):
            raise InvalidValueError(
                f"has {name!r}; it must be a top-level package as imported, such as torch"
            )
    return frozenset(names)


def _parse_pattern(value: Any) -> re.Pattern[str]:
    require(isinstance(value, str) and 0 < len(value) <= _LONGEST_PATTERN, value)
    try:
        ways = ways_to_match(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidValueError(f"is not a regular expression: {error}") from None
    if ways > MOST_WAYS:
        raise InvalidValueError(
            f"could take too long on {LONGEST_TEXT} characters that a user chose: it can match in more than "
            f"{MOST_WAYS} ways; bound its repeats, for example with {{1,20}} instead of + or *"
        )
    return re.compile(value)


def _parse_parameter(value: Any) -> re.Pattern[str]:
    pattern = _parse_pattern(value)
    if pattern.groups != 1:
        raise InvalidValueError(
            f"must have one group, which captures the part to store, but has {pattern.groups};"
            r" write it as in --batch-size[= ](\d{1,7}), and other groups as (?:…)"
        )
    return pattern


_NAMES = f"a name, or a list of at most {_MOST_NAMES} names, of at most {_LONGEST_NAME} characters each"
_GLOBS = ValueType(_NAMES, "lmp*", _parse_globs)
_PATTERN_WHAT = f"a regular expression of at most {_LONGEST_PATTERN} characters"
_PATTERN = ValueType(_PATTERN_WHAT, r"'--batch-size[= ](\d{1,7})'", _parse_pattern)
_NAME = ValueType(f"at most {_LONGEST_NAME} printable characters", "deep learning", _parse_name)
_FIELD = ValueType(f"{_NAME.what}, or null", _NAME.example, _parse_field)
_PARAMETER_NAME = pattern("batch_size", "at most 32 characters of a-z, 0-9 and _", "[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One alternative of a rule; one process must match all given fields."""

    executable: Annotated[re.Pattern[str] | None, _GLOBS, "The executable."] = None
    script: Annotated[re.Pattern[str] | None, _GLOBS, "The script of an interpreter."] = None
    module: Annotated[re.Pattern[str] | None, _GLOBS, "The Python module (`python -m`)."] = None
    library: Annotated[re.Pattern[str] | None, _GLOBS, "A mapped library."] = None
    python: Annotated[
        frozenset[str] | None, ValueType(_NAMES, "torch", _parse_packages), "Imported Python packages."
    ] = None
    arguments: Annotated[re.Pattern[str] | None, _PATTERN, "The command line."] = None


@dataclass(frozen=True, slots=True)
class ApplicationParameter:
    """A parameter to store: the pattern's group, or the size of the file that the group names."""

    pattern: re.Pattern[str]
    of_file: bool = False


def _parameter(found: Mapping[str | None, re.Pattern[str]]) -> ApplicationParameter:
    ((key, kept),) = found.items()
    return ApplicationParameter(kept, of_file=key is not None)


_PARAMETER = OneOrTable(
    ValueType(_PATTERN_WHAT, _PATTERN.example, _parse_parameter), choice(("file_size",)), _parameter
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRule:
    """The rule for one application; `place` is its file:line:column."""

    name: Annotated[str, FromPlace(lambda at: str(at[-1]))]
    field: Annotated[str | None, _FIELD, "The field of science."] = None
    priority: Annotated[int, whole_number(0, MAX_PRIORITY), "The highest priority wins."] = 50
    traces: Annotated[
        tuple[Annotated[Trace, Items(least=1)], ...],
        Items(least=1, most=64),
        Key("any"),
        "Alternatives, one of which must match.",
    ]
    parameters: Annotated[
        Mapping[Annotated[str, _PARAMETER_NAME], Annotated[ApplicationParameter, _PARAMETER]],
        Items(most=16),
        "The parts of the arguments to store.",
    ] = dataclasses.field(default_factory=dict)
    place: Annotated[str, FromPlace(lambda _: "")]


@dataclass(frozen=True, slots=True)
class ApplicationsFile:
    """The content of applications.yaml."""

    applications: Annotated[
        Mapping[Annotated[str, _NAME], ApplicationRule], Items(least=1, most=1000), "Applications by name."
    ]
    version: Annotated[int, fixed(1), REQUIRED, "The version."] = 1


@dataclass(frozen=True, slots=True)
class ApplicationRules:
    """All rules by descending priority, then in file order.

    `libraries` is a pattern that matches every library named by a rule; it quickly excludes all other
    libraries.
    """

    path: str
    rules: Sequence[ApplicationRule]
    libraries: re.Pattern[str]


NO_RULES = ApplicationRules("", (), re.compile(r"(?!)"))


def rules_path(site_file: Path) -> Path:
    """Return the path of the rules next to slurm-gpu.yaml, or of the shipped rules if there are none."""
    own = site_file.parent / FILE_NAME
    if own.exists():
        return own
    return next((path for path in SHIPPED if path.exists()), own)


def load_rules(path: Path) -> ApplicationRules:
    """Read and check the file; raise InvalidFileError with all errors and their positions."""
    return check_rules(read_yaml(path))


def check_rules(source: YamlSource) -> ApplicationRules:
    """Convert a parsed applications.yaml to rules; raise InvalidFileError with all errors."""
    found = []
    for name, rule in decode(source, ApplicationsFile).applications.items():
        line, column = source.key_positions.get(("applications", name), (0, 0))
        found.append(replace(rule, place=f"{source.path}:{line}:{column}"))
    traces = [trace for rule in found for trace in rule.traces]
    libraries = [trace.library.pattern for trace in traces if trace.library is not None]
    return ApplicationRules(
        source.path,
        sorted(found, key=lambda rule: -rule.priority),
        re.compile("|".join(libraries) or r"(?!)"),
    )
