"""applications.yaml: by which traces programs are recognised, and what of their arguments may be kept.

docs/applications.md explains the file to admins. Everything in it is checked when it is read; every mistake
is told with its place.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu.config.checker import YamlCheck, shown
from slurm_gpu.config.yaml_source import Location, YamlSource, read_yaml
from slurm_gpu.files.source_root import SOURCE_ROOT
from slurm_gpu.node.application.pattern_cost import LONGEST_TEXT, MOST_WAYS, ways_to_match

FILE_NAME = "applications.yaml"
SHIPPED = (
    SOURCE_ROOT / "etc" / FILE_NAME,
    Path(sys.prefix) / "share" / "slurm-gpu" / FILE_NAME,
    Path("/usr/share/slurm-gpu") / FILE_NAME,
)

MAX_PRIORITY = 100
_MOST_APPLICATIONS = 1000
_MOST_ALTERNATIVES = 64
_MOST_NAMES = 64
_MOST_PARAMETERS = 16
_LONGEST_PATTERN = 300
_LONGEST_NAME = 64
_PARAMETER = re.compile(r"[a-z][a-z0-9_]{0,31}")
_PACKAGE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_GLOBS = ("executable", "script", "module", "library")
_MATCH_KEYS = (*_GLOBS, "python", "arguments")
_APPLICATION_KEYS = ("field", "priority", "any", "parameters")


@dataclass(frozen=True, slots=True)
class Names:
    """Names or globs of which any may fit; `pattern` fits what any of them does."""

    globs: Sequence[str]
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One alternative of a rule: all that is given must be found in one process."""

    executable: Names | None = None
    script: Names | None = None
    module: Names | None = None
    library: Names | None = None
    python: frozenset[str] | None = None
    arguments: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class ApplicationParameter:
    """What is kept of the arguments: the pattern's group, or the size of the file that it names."""

    pattern: re.Pattern[str]
    of_file: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRule:
    """How one application is recognised; `place` is file:line:column of the rule."""

    name: str
    field: str | None
    priority: int
    traces: Sequence[Trace]
    parameters: Mapping[str, ApplicationParameter]
    place: str


@dataclass(frozen=True, slots=True)
class ApplicationRules:
    """All rules, the highest priority first, and among equals in the order of the file.

    `libraries` fits every library that a rule names, so that the hundreds of others are passed over at once.
    """

    path: str
    rules: Sequence[ApplicationRule]
    libraries: re.Pattern[str]


NO_RULES = ApplicationRules("", (), re.compile(r"(?!)"))


def rules_path(site_file: Path) -> Path:
    """The rules beside slurm-gpu.yaml; where there are none, those that slurm-gpu comes with."""
    own = site_file.parent / FILE_NAME
    if own.exists():
        return own
    return next((path for path in SHIPPED if path.exists()), own)


def load_rules(path: Path) -> ApplicationRules:
    """Read and check the file; raises InvalidFileError with every mistake and its place."""
    return check_rules(read_yaml(path))


def check_rules(source: YamlSource) -> ApplicationRules:
    """Turn a parsed applications.yaml into rules; raises InvalidFileError with every mistake in it."""
    return _ApplicationsCheck(source).rules()


class _ApplicationsCheck(YamlCheck):
    def rules(self) -> ApplicationRules:
        top = self.mapping((), self.source.value, ("version", "applications"), "the file")
        if top.get("version") != 1 or isinstance(top.get("version"), bool):
            self.fail(("version",), "version must be 1: write `version: 1`")
        table = self.mapping(("applications",), top.get("applications"), None, "applications")
        if not self.errors and not table:
            self.fail(("applications",), "applications names no application")
        if len(table) > _MOST_APPLICATIONS:
            self.fail(("applications",), f"{len(table)} applications; at most {_MOST_APPLICATIONS} are taken")
        found = [self.rule(str(name), value) for name, value in table.items()]
        self.finish()
        traces = [trace for rule in found for trace in rule.traces]
        libraries = [trace.library.pattern.pattern for trace in traces if trace.library is not None]
        return ApplicationRules(
            self.source.path,
            sorted(found, key=lambda rule: -rule.priority),
            re.compile("|".join(libraries) or r"(?!)"),
        )

    def rule(self, name: str, value: Any) -> ApplicationRule:
        here = ("applications", name)
        line, column = self.source.key_positions.get(here, (0, 0))
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            self.fail(here, f"a name must have at most {_LONGEST_NAME} printable characters", key=True)
        table = self.mapping(here, value, _APPLICATION_KEYS, name)
        about = table.get("field")
        if about is not None:
            about = self.text((*here, "field"), about, "deep learning")
        priority = table.get("priority", 50)
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MAX_PRIORITY:
            self.fail(
                (*here, "priority"),
                f"priority: {priority!r} must be a whole number from 0 to {MAX_PRIORITY}; the highest wins",
            )
            priority = 0
        if "any" not in table:
            self.fail(
                here, f"{name} lacks `any`: what tells it, such as any: [{{executable: lmp*}}]", key=True
            )
        return ApplicationRule(
            name=name,
            field=about,
            priority=priority,
            traces=self.traces((*here, "any"), table.get("any", [])),
            parameters=self.parameters((*here, "parameters"), table.get("parameters", {})),
            place=f"{self.source.path}:{line}:{column}",
        )

    def traces(self, here: Location, value: Any) -> Sequence[Trace]:
        if not isinstance(value, list) or len(value) > _MOST_ALTERNATIVES:
            self.fail(
                here,
                f"any must be a list of at most {_MOST_ALTERNATIVES} alternatives, such as"
                " [{executable: lmp*}, {library: liblammps.so*}]",
            )
            return []
        if not value and here in self.source.positions:
            self.fail(here, "any is empty: nothing would ever be recognised by it")
        return [self.trace((*here, index), item) for index, item in enumerate(value)]

    def trace(self, here: Location, value: Any) -> Trace:
        table = self.mapping(here, value, _MATCH_KEYS, "an alternative of any")
        if isinstance(value, dict) and not value:
            self.fail(here, f"an alternative must hold one of {', '.join(_MATCH_KEYS)}")
        found: dict[str, Any] = {key: self.globs((*here, key), table[key]) for key in _GLOBS if key in table}
        if "python" in table:
            found["python"] = self.packages((*here, "python"), table["python"])
        if "arguments" in table:
            found["arguments"] = self.pattern((*here, "arguments"), table["arguments"])
        return Trace(**found)

    def parameters(self, here: Location, value: Any) -> Mapping[str, ApplicationParameter]:
        table = self.mapping(here, value, None, "parameters")
        if len(table) > _MOST_PARAMETERS:
            self.fail(here, f"{len(table)} parameters; at most {_MOST_PARAMETERS} are kept")
        found = {}
        for name, item in table.items():
            place = (*here, name)
            if not isinstance(name, str) or not _PARAMETER.fullmatch(name):
                self.fail(
                    place, f"{name!r} must be a name such as batch_size: a-z, 0-9 and _, at most 32", key=True
                )
            of_file = isinstance(item, dict)
            if of_file:
                item = self.mapping(place, item, ("file_size",), f"parameter {name}").get("file_size")
                place = (*place, "file_size")
            pattern = self.pattern(place, item)
            if pattern is None:
                continue
            if pattern.groups != 1:
                what = "none" if pattern.groups == 0 else f"{pattern.groups}"
                self.fail(
                    place,
                    f"must have one group, which is what is kept, and has {what}: {pattern.pattern!r};"
                    r" write it as in --batch-size[= ](\d{1,7}), others as (?:…)",
                )
                continue
            found[str(name)] = ApplicationParameter(pattern, of_file)
        return found

    def globs(self, here: Location, value: Any) -> Names | None:
        names = self.names(here, value, "lmp*")
        for name in names:
            if "/" in name:
                self.fail(here, f"{here[-1]}: {name!r} must be a name without directories, such as lmp*")
            if not name.strip("*?"):
                self.fail(here, f"{here[-1]}: {name!r} would fit everything")
        if not names:
            return None
        return Names(names, re.compile("|".join(fnmatch.translate(name) for name in names)))

    def packages(self, here: Location, value: Any) -> frozenset[str] | None:
        names = self.names(here, value, "torch")
        for name in names:
            if not _PACKAGE.fullmatch(name):
                self.fail(here, f"python: {name!r} must be a top-level package as imported, such as torch")
        return frozenset(names) if names else None

    def names(self, here: Location, value: Any, example: str) -> Sequence[str]:
        names = [value] if isinstance(value, str) else value
        if (
            isinstance(names, list)
            and 0 < len(names) <= _MOST_NAMES
            and all(isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME for name in names)
        ):
            return names
        self.fail(
            here,
            f"{here[-1]}: {shown(value)} must be a name such as {example}, or a list of at most"
            f" {_MOST_NAMES}, of at most {_LONGEST_NAME} characters each",
        )
        return []

    def pattern(self, here: Location, value: Any) -> re.Pattern[str] | None:
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_PATTERN:
            self.fail(
                here,
                f"{here[-1]}: {shown(value)} must be a regular expression of at most {_LONGEST_PATTERN}"
                r" characters, such as '--batch-size[= ](\d{1,7})'",
            )
            return None
        try:
            ways = ways_to_match(value)
        except (re.error, RecursionError, OverflowError) as error:
            self.fail(here, f"{here[-1]}: {value!r} is not a regular expression: {error}")
            return None
        if ways > MOST_WAYS:
            self.fail(
                here,
                f"{here[-1]}: {value!r} could take too long on {LONGEST_TEXT} characters that a user chose:"
                f" it can match in more than {MOST_WAYS} ways; bound its repeats, as in {{1,20}} for + or *",
            )
            return None
        return re.compile(value)

    def text(self, here: Location, value: Any, example: str) -> str:
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable():
            return value
        self.fail(
            here, f"{here[-1]}: {shown(value)} must be a text such as {example}, at most {_LONGEST_NAME}"
        )
        return ""
