"""Read YAML with the position of every value, for errors that state file:line:column.

PyYAML's safe composer returns nodes with marks. The nodes are converted to plain values once, and the marks
are stored by location. Duplicate keys are errors, although YAML loaders silently use the last one. The size
of the file, the number of values, the depth of nesting and the range of integers are limited. Values that
only YAML 1.1 reads as numbers, in base 60 or 8 (1:30 as 90, 010 as 8), remain text, which checks do not
accept as a number. {month: 50,000} is an error, although YAML reads it as the keys month and 000.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slurm_gpu.errors import InputError
from slurm_gpu.files.bounded_read import read_text

Location = tuple[str | int, ...]

_MOST_BYTES = 4 * 2**20
# PyYAML takes about 25 µs for each value; the largest policies have a few thousand.
_MOST_VALUES = 100_000
# PyYAML composes recursively and exceeds Python's recursion limit at about 200 levels of nesting.
_DEEPEST = 64
_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_BASE_60_OR_8 = re.compile(r"[^:]*:.*|[-+]?0[0-7_]+")
# Amounts whose separator may mark decimals or thousands. 0.500 can only be a decimal number, and 1.125 is
# read as one, because fractions of GPUs are written in this way.
_SEPARATED = re.compile(r"([1-9]\d{0,2})(?:,(\d{3})|\.(\d\d0))( ?[A-Za-z]{0,3})")
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A parsed YAML document and the position of each of its parts.

    `value` consists of dicts, lists, strings, numbers, booleans, None and dates, like the result of
    yaml.safe_load. `positions` maps a location such as ("rules", 0, "limits") to the (line, column) of the
    value, and `key_positions` maps it to the (line, column) of the key. Lines and columns count from 1.
    """

    path: str
    value: Any
    positions: Mapping[Location, tuple[int, int]] = field(repr=False)
    key_positions: Mapping[Location, tuple[int, int]] = field(repr=False)
    texts: Mapping[Location, str] = field(default_factory=dict, repr=False)
    """The text of each scalar value as it appears in the file, with its quotes."""
    converted: Mapping[tuple[Location, bool], str] = field(default_factory=dict, repr=False)
    """By (location, is a key): the original text, such as yes, if Python prints it differently."""

    def error(self, location: Sequence[str | int], message: str, *, key: bool = False) -> InputError:
        """Return an error at the value or key of `location`, or at its nearest existing parent."""
        place = tuple(location)
        if (written := self.converted.get((place, key))) is not None:
            message += f" (written as {written[:_SHOWN_CHARACTERS]})" if written else " (no value is written)"
        tables = (self.key_positions, self.positions) if key else (self.positions, self.key_positions)
        while place:
            for table in tables:
                if place in table:
                    return InputError(self.path, *table[place], message)
            place = place[:-1]
        return InputError(self.path, *self.positions.get((), (1, 1)), message)


class _Loader(yaml.SafeLoader):
    """Rejects too many values or levels, recursive documents, and values that are invalid for their type."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self._path = path
        self._n_values = self._n_merged = 0
        self._open_anchors: list[str | None] = []

    def error(self, mark: Any, message: str) -> InputError:
        """Return an error at the position of a PyYAML mark."""
        return InputError(self._path, mark.line + 1, mark.column + 1, message)

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return _TEXT if tag in _NUMBERS and _BASE_60_OR_8.fullmatch(value) else tag

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._n_values += 1
        if self._n_values > _MOST_VALUES:
            raise self.error(event.start_mark, f"the file has more than {_MOST_VALUES} values")
        if len(self._open_anchors) > _DEEPEST:
            raise self.error(event.start_mark, f"is nested more than {_DEEPEST} levels deep")
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open_anchors:
            raise self.error(event.start_mark, f"the anchor {event.anchor} contains itself")
        self._open_anchors.append(None if isinstance(event, yaml.AliasEvent) else event.anchor)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._open_anchors.pop()
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            kind = "64-bit integer" if kind == "int" else kind
            value = node.value[:80] if isinstance(node.value, str) else "a list or mapping"
            raise self.error(node.start_mark, f"{value!r} is not a valid {kind}") from error

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Limit merges before they are made: each level of nesting multiplies the number of values."""
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for part in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    self._n_merged += len(part.value)
            if self._n_merged > _MOST_VALUES:
                raise self.error(
                    key.start_mark, f"merges (<<) expand this to more than {_MOST_VALUES} values"
                )
        super().flatten_mapping(node)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if node.tag in _NUMBERS and _BASE_60_OR_8.fullmatch(value):
            raise ValueError  # !!int 1:30
        return value

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if not -(2**63) <= value < 2**63:
            raise ValueError
        return value

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        """Return an invalid calendar date as text; later checks report its position."""
        try:
            return super().construct_yaml_timestamp(node)
        except (ValueError, OverflowError):
            return node.value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)


def read_yaml(path: Path) -> YamlSource:
    """Read a YAML file; raise InputError with the position if it is missing, unreadable or invalid."""
    return parse_yaml(read_text(path, _MOST_BYTES), str(path))


def parse_yaml(text: str, path: str) -> YamlSource:
    """Parse one YAML document; raise InputError with the position if it is invalid.

    `path` is used only in messages.
    """
    try:
        loader = _Loader(text, path)
    except yaml.reader.ReaderError as error:
        what = f"contains U+{ord(text[error.position]):04X}, a character that YAML does not allow"
        raise InputError(path, *_place_of(text, error.position), what) from error
    try:
        root = loader.get_single_node()
        if root is None:
            return YamlSource(path, None, {}, {})
        positions: dict[Location, tuple[int, int]] = {}
        keys: dict[Location, tuple[int, int]] = {}
        texts: dict[Location, str] = {}
        converted: dict[tuple[Location, bool], str] = {}
        for location, node in _walk(root, (), keys, converted, loader):
            if len(positions) >= _MOST_VALUES:
                raise loader.error(node.start_mark, f"aliases expand this to more than {_MOST_VALUES} values")
            if isinstance(node, yaml.ScalarNode):
                if _is_converted(node, loader.construct_object(node)):
                    converted[location, False] = node.value
                quote = node.style if node.style in {"'", '"'} else ""
                texts[location] = f"{quote}{node.value}{quote}"
            positions[location] = _place(node)
        return YamlSource(path, loader.construct_document(root), positions, keys, texts, converted)
    except yaml.MarkedYAMLError as error:
        mark, problem = _explained(error, text)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise InputError(path, line, column, f"is not valid YAML: {problem}") from error
    except (
        ValueError,
        OverflowError,
    ) as error:  # an escape that is not in Unicode, or an invalid YAML version
        raise loader.error(loader.get_mark(), f"is not valid YAML: {error}") from error
    finally:
        loader.dispose()


def readings(text: str) -> tuple[float | str, int | str] | None:
    """Return the two amounts that text such as 50.000 or 50,000G may mean; None if it is unambiguous."""
    match = _SEPARATED.fullmatch(text)
    if match is None:
        return None
    whole, decimals, unit = match[1], match[2] or match[3], match[4]
    number, thousands = float(f"{whole}.{decimals}"), int(whole + decimals)
    number = int(number) if number.is_integer() else number
    return (f"{number}{unit}", f"{thousands}{unit}") if unit else (number, thousands)


def ambiguity(amounts: tuple[float | str, int | str]) -> str:
    """Return the end of a message about an amount with two readings."""
    return f"is ambiguous; write {amounts[0]} or {amounts[1]}"


def _explained(error: yaml.MarkedYAMLError, text: str) -> tuple[yaml.Mark | None, str]:
    """Return a problem's position and its description, without any values, since these may be passwords."""
    problem, began = error.problem or str(error), error.context_mark
    if "'\\t'" in problem:
        problem = "a tab is not allowed here; use spaces"
    elif problem == "mapping values are not allowed here":
        problem = (
            "a key is not allowed here; check indentation and colons of this line and the line before it"
        )
    elif began is not None and problem == "could not find expected ':'":
        key = re.split(r"[\s:=]", text[began.index :], maxsplit=1)[0]
        return began, f"a colon is missing after {key[:_SHOWN_CHARACTERS]!r}"
    elif began is not None and "stream" in problem:
        return began, "a quotation mark or bracket is not closed"
    elif began is not None and "flow" in (error.context or ""):
        problem += f"; the bracket before it is in line {began.line + 1}"
    return error.problem_mark or began, problem


def _place_of(text: str, position: int) -> tuple[int, int]:
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def _is_converted(node: yaml.ScalarNode, value: Any) -> bool:
    return not isinstance(value, str) and repr(value) != node.value and node.value.isprintable()


def _walk(
    node: yaml.Node,
    location: Location,
    keys: dict[Location, tuple[int, int]],
    converted: dict[tuple[Location, bool], str],
    loader: _Loader,
) -> Iterator[tuple[Location, yaml.Node]]:
    yield location, node
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*location, index), keys, converted, loader)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, tuple[int, int]] = {}
        before: yaml.Node | None = None
        for key_node, value_node in node.value:
            match before, key_node, value_node:
                case yaml.ScalarNode(value=start), yaml.ScalarNode(value=end), yaml.ScalarNode(value=""):
                    if node.flow_style and (amounts := readings(f"{start},{end}")):
                        raise loader.error(before.start_mark, f"{start},{end} {ambiguity(amounts)}")
            before = value_node
            if key_node.tag == _MERGE:
                continue  # "<<: *defaults": its values keep their original positions
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise loader.error(key_node.start_mark, "a key must be a plain word")
            if key in seen:
                line, _ = seen[key]
                raise loader.error(key_node.start_mark, f"{key!r} occurs twice here; first on line {line}")
            seen[key] = _place(key_node)
            inner = (*location, key if isinstance(key, str | int) else str(key))
            keys[inner] = _place(key_node)
            if isinstance(key_node, yaml.ScalarNode) and _is_converted(key_node, key):
                converted[inner, True] = key_node.value
            yield from _walk(value_node, inner, keys, converted, loader)


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
