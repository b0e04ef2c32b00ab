"""Decode a YAML file into dataclasses whose fields declare keys, values and descriptions once.

A field is declared as `Annotated[type, value type, description]`. Its type says how it is decoded: a
dataclass is a table, `Mapping[str, X]` a table of any names, `tuple[X, ...]` and `frozenset[X]` are lists,
an enum is a choice. A field without a default is required; one without a description is not in the file.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from slurm_gpu.config.checker import YamlCheck, shown
from slurm_gpu.config.value_types import BOOL, InvalidValueError, ValueType, choice
from slurm_gpu.config.yaml_source import Location, YamlSource

# Instead of a value that is not valid; a required one becomes None. The file is refused in either case.
_INVALID: Any = object()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field in the file, where it is not the field's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Items:
    """How many values a list has; `or_one`: a single value may be written without a list."""

    least: int = 0
    most: int | None = None
    or_one: bool = False


class Shape(NamedTuple):
    """How a value is decoded: `type` without annotations and None, and what they say."""

    type: Any
    value_type: ValueType | None
    items: Items
    key: str | None
    description: str


class SettingField(NamedTuple):
    """One field of a settings class; `default` is MISSING where it is required."""

    name: str
    key: str
    shape: Shape
    default: Any


def shape_of(hint: Any) -> Shape:
    """Return how values with this type hint are decoded."""
    noted: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    bare = hint.__origin__ if noted else hint
    if get_origin(bare) in (Union, types.UnionType):
        bare = next((one for one in get_args(bare) if one is not type(None)), bare)
    of_kind = {type(note): note for note in noted}
    value_type = of_kind.get(ValueType)
    if value_type is None and isinstance(bare, type):
        value_type = BOOL if bare is bool else choice(bare) if issubclass(bare, StrEnum) else None
    key = of_kind.get(Key)
    return Shape(
        bare, value_type, of_kind.get(Items, Items()), None if key is None else key.name, of_kind.get(str, "")
    )


@cache
def fields_of(settings_class: type) -> tuple[SettingField, ...]:
    """Return the fields that a file may set, in the order of the class."""
    hints = get_type_hints(settings_class, include_extras=True)
    found = []
    for item in fields(settings_class):
        shape = shape_of(hints[item.name])
        if shape.description:  # others are not in the file
            suffix = "" if shape.value_type is None else shape.value_type.suffix
            key = item.name.removesuffix(suffix) if shape.key is None else shape.key
            default = item.default if item.default_factory is MISSING else item.default_factory()
            found.append(SettingField(item.name, key, shape, default))
    return tuple(found)


def decode(source: YamlSource, settings_class: type[_T]) -> _T:
    """Return the settings in the file; raises InvalidFileError with every mistake in it."""
    decoder = Decoder(source)
    settings = decoder.read(settings_class)
    decoder.finish()
    return settings


class Decoder(YamlCheck):
    """Decodes one file and collects its mistakes; `finish` raises them."""

    def read(self, settings_class: type[_T]) -> _T:
        """Return the whole file; after a mistake with defaults, or None, instead of what is not valid."""
        settings: _T = self._table((), {} if self.source.value is None else self.source.value, settings_class)
        return settings

    def has(self, key: str) -> bool:
        """Return whether the file has this key at its top."""
        return isinstance(self.source.value, dict) and key in self.source.value

    def _table(self, at: Location, value: Any, settings_class: type) -> Any:
        settings = fields_of(settings_class)
        given = self.mapping(at, value, [setting.key for setting in settings])
        found: dict[str, Any] = {}
        for name, key, shape, default in settings:
            if key in given:
                found[name] = self._value((*at, key), given[key], shape)
            elif default is MISSING and isinstance(value, dict):
                kind = shape.value_type
                hint = f"; write {kind.what}, such as {key}: {kind.example}" if kind and kind.example else ""
                self.fail(at, f"{name_of(at)} lacks {key}{hint}")
            if found.get(name, default) in (_INVALID, MISSING):
                found[name] = None if default is MISSING else default
        return settings_class(**found)

    def _value(self, at: Location, value: Any, shape: Shape) -> Any:
        origin = get_origin(shape.type)
        if shape.value_type is not None:
            return self._single(at, value, shape.value_type)
        if is_dataclass(shape.type):
            return self._table(at, value, shape.type)  # type: ignore[arg-type]
        if origin is Mapping:
            return self._named(at, value, *map(shape_of, get_args(shape.type)))
        return self._list(at, value, shape, origin)

    def _single(self, at: Location, value: Any, value_type: ValueType, *, key: bool = False) -> Any:
        try:
            if not self.is_ambiguous(at, value):
                return value_type.parse(value)
            problem = f"must be {value_type}"
        except InvalidValueError as error:
            problem = str(error)
        except (ValueError, LookupError, AttributeError, TypeError, OSError):
            problem = f"must be {value_type}"
        self.fail(at, f"{_label(at)}: {shown(value)} {problem}", key=key)
        return _INVALID

    def _named(self, at: Location, value: Any, key_shape: Shape, item: Shape) -> Any:
        key_type = key_shape.value_type
        known = None if key_type is None else key_type.schema.get("enum")
        found = {}
        for key, one in self.mapping(at, value, known).items():
            place = (*at, key if isinstance(key, str | int) else str(key))
            if key_type is not None:
                self._single(place, key, key_type, key=True)
            found[str(key)] = self._value(place, one, item)
        return _INVALID if _INVALID in found.values() else found

    def _list(self, at: Location, value: Any, shape: Shape, origin: Any) -> Any:
        item = shape_of(get_args(shape.type)[0])
        least, most, or_one = shape.items.least, shape.items.most, shape.items.or_one
        if or_one and not isinstance(value, list):
            found = [self._value(at, value, item)]
        elif isinstance(value, list) and least <= len(value) and (most is None or len(value) <= most):
            found = [self._value((*at, index), one, item) for index, one in enumerate(value)]
        else:
            kind = item.value_type
            what = f"{kind.plural}, such as [{kind.example}]" if kind else "tables"
            self.fail(at, f"{_label(at)}: {shown(value)} must be a list of {what}")
            return _INVALID
        return _INVALID if _INVALID in found else origin(found)


def _label(at: Location) -> str:
    return str(next((part for part in reversed(at) if isinstance(part, str)), "the file"))


def name_of(at: Location) -> str:
    """A place for people: ("rules", 1) is rule 2, ("zones", "z") is zones.z."""
    if at and isinstance(at[-1], int) and len(at) > 1:
        return f"{str(at[-2]).removesuffix('s')} {at[-1] + 1}"
    return ".".join(map(str, at)) or "the file"
