"""YAML that remembers where every value stood, so that an error can name file:line:column.

PyYAML's safe composer gives nodes with marks; these are turned into plain values once, with the marks
kept beside them by path. Duplicate keys, which YAML loaders silently let the last of win, are errors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slurm_gpu.errors import InputError

Location = tuple[str | int, ...]

# A site's file has hundreds; beyond this, aliases of aliases are at work.
_MOST_NODES = 200_000


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A parsed YAML document and the place of each of its parts.

    `value` is made of dicts, lists, strings, numbers, booleans, None and dates, as yaml.safe_load gives.
    `positions` maps a location such as ("rules", 0, "limits") to the (line, column) of the value there,
    `key_positions` to that of the key; both count from 1.
    """

    path: str
    value: Any
    positions: Mapping[Location, tuple[int, int]] = field(repr=False)
    key_positions: Mapping[Location, tuple[int, int]] = field(repr=False)
    texts: Mapping[Location, str] = field(default_factory=dict, repr=False)
    """What stands in the file for each single value: "12:00" where YAML 1.1 makes it the number 720."""

    def error(self, location: Sequence[str | int], message: str, *, key: bool = False) -> InputError:
        """An error at the value (or key) of `location`, or at the nearest enclosing thing that exists."""
        place = tuple(location)
        tables = (self.key_positions, self.positions) if key else (self.positions, self.key_positions)
        while place:
            for table in tables:
                if place in table:
                    return InputError(self.path, *table[place], message)
            place = place[:-1]
        return InputError(self.path, *self.positions.get((), (1, 1)), message)


class _Loader(yaml.SafeLoader):
    """Leaves a day that is not in the calendar as text, so that its reader can name the place."""

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError:
            return node.value


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)


def read_yaml(path: Path) -> YamlSource:
    """Read a YAML file; raises InputError naming the place when it is missing, unreadable or not YAML."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(str(path), 0, 0, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), 0, 0, f"is not UTF-8 text (byte {error.start})") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, path: str) -> YamlSource:
    """Parse one YAML document; `path` is only for messages. Raises InputError naming the place."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        what = f"holds U+{ord(text[error.position]):04X}, a character that YAML does not allow"
        raise InputError(path, *_place_of(text, error.position), what) from error
    try:
        root = loader.get_single_node()
        if root is None:
            return YamlSource(path, None, {}, {})
        positions: dict[Location, tuple[int, int]] = {}
        keys: dict[Location, tuple[int, int]] = {}
        texts: dict[Location, str] = {}
        # Anchors cannot nest a node in itself here: PyYAML composes such a cycle, so it is refused.
        for location, node in _walk(root, (), path, keys, loader, frozenset()):
            if len(positions) >= _MOST_NODES:
                raise InputError(path, *_place(node), f"anchors make this more than {_MOST_NODES} values")
            if isinstance(node, yaml.ScalarNode):
                _construct(node, loader, path)
                texts[location] = node.value
            positions[location] = _place(node)
        return YamlSource(path, loader.construct_document(root), positions, keys, texts)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        problem = error.problem or str(error)
        if "'\\t'" in problem:
            problem = "a tab cannot stand here; use spaces"
        raise InputError(path, line, column, f"is not valid YAML: {problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(path, 0, 0, f"is not valid YAML: {error}") from error
    finally:
        loader.dispose()


def _construct(node: yaml.ScalarNode, loader: yaml.SafeLoader, path: str) -> Any:
    """The value of a scalar; what PyYAML cannot make of it becomes an error at its place."""
    try:
        return loader.construct_object(node)
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
        kind = node.tag.rpartition(":")[2]
        raise InputError(path, *_place(node), f"{node.value[:80]!r} is no {kind}") from error


def _place_of(text: str, position: int) -> tuple[int, int]:
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def _walk(
    node: yaml.Node,
    location: Location,
    path: str,
    keys: dict[Location, tuple[int, int]],
    loader: yaml.SafeLoader,
    above: frozenset[int],
) -> Iterator[tuple[Location, yaml.Node]]:
    if id(node) in above:
        raise InputError(path, *_place(node), "an anchor contains itself")
    above = above | {id(node)}
    yield location, node
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*location, index), path, keys, loader, above)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, tuple[int, int]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # "<<: *defaults": its values keep the places where they were written
            if isinstance(key_node, yaml.ScalarNode):
                key = _construct(key_node, loader, path)
            else:
                key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise InputError(path, *_place(key_node), "a key must be a plain word")
            if key in seen:
                line, _ = seen[key]
                raise InputError(path, *_place(key_node), f"{key!r} stands here twice; first on line {line}")
            seen[key] = _place(key_node)
            inner = (*location, key if isinstance(key, str | int) else str(key))
            keys[inner] = _place(key_node)
            yield from _walk(value_node, inner, path, keys, loader, above)


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
