"""Decode a YAML file into dataclasses whose fields declare the keys, values and descriptions.

A field is declared as `Annotated[type, value type, description]`. Its type determines how it is decoded. A
dataclass is a table with fixed keys, and `Mapping[str, X]` is a table with arbitrary keys. `tuple[X, ...]`
and `frozenset[X]` are lists, and an enum is a choice. A field without a default is required. A field without
a description cannot be set in the file.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from slurm_gpu.config.checker import YamlCheck, shown
from slurm_gpu.config.value_types import BOOL, InvalidValueError, ValueType, choice
from slurm_gpu.config.yaml_source import Location, YamlSource, ambiguity, readings

# Marks an invalid value, which is replaced with its default or None. The file is rejected in any case.
_INVALID: Any = object()
# Errors of ValueType.parse.
_PARSE_ERRORS = (ValueError, LookupError, AttributeError, TypeError, OSError)
_SHOWN_ID = re.compile(r"[!-~]{1,40}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field in the file, if it differs from the field's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Items:
    """The number of entries that a list or table may contain.

    If `or_one` is true, a single value may be written without a list. If `keyed` is true, a tuple is written
    as a table.
    """

    least: int = 0
    most: int | None = None
    or_one: bool = False
    keyed: bool = False


ANY_NUMBER = Items()


@dataclass(frozen=True, slots=True)
class OneOrTable:
    """A single value or a table of such values; `make` receives the table, or {None: value}.

    With `inner`, each value in the table may itself be a table; `make` receives the results of `inner.make`.
    """

    one: ValueType
    key: ValueType
    make: Callable[[dict[Any, Any]], Any]
    inner: OneOrTable | None = None


@dataclass(frozen=True, slots=True)
class FromPlace:
    """Derives the value of an unset field from the location of its table."""

    value: Callable[[Location], Any]


class Required(NamedTuple):
    """Marks a field that a file must set, although it has a default in the class."""


REQUIRED = Required()


class Shape(NamedTuple):
    """The decoding rule for a value: its `type` without annotations and None, and the annotations."""

    type: Any
    value_type: ValueType | None
    one_or_table: OneOrTable | None
    items: Items


class SettingField(NamedTuple):
    """A field of a settings class; `default` is MISSING if the class has no default for it."""

    name: str
    key: str
    shape: Shape
    description: str
    default: Any
    is_required: bool
    from_place: FromPlace | None


def _unwrapped(hint: Any) -> tuple[Any, dict[type, Any]]:
    noted: dict[type, Any] = {}
    while True:
        if hasattr(hint, "__metadata__"):
            noted = {type(note): note for note in hint.__metadata__} | noted
            hint = hint.__origin__
        elif get_origin(hint) in (Union, types.UnionType):
            hint = next(one for one in get_args(hint) if one is not types.NoneType)
        else:
            return hint, noted


def shape_of(hint: Any) -> Shape:
    """Return the decoding rule for values with this type hint."""
    bare, noted = _unwrapped(hint)
    value_type = noted.get(ValueType)
    if value_type is None and isinstance(bare, type):
        value_type = BOOL if bare is bool else choice(bare) if issubclass(bare, StrEnum) else None
    return Shape(bare, value_type, noted.get(OneOrTable), noted.get(Items, ANY_NUMBER))


@cache
def fields_of(settings_class: type) -> tuple[SettingField, ...]:
    """Return the fields of the class in order; fields that a file may set have a description."""
    hints = get_type_hints(settings_class, include_extras=True)
    found = []
    for item in fields(settings_class):
        _, noted = _unwrapped(hints[item.name])
        shape = shape_of(hints[item.name])
        suffix = "" if shape.value_type is None else shape.value_type.suffix
        suffix = shape.one_or_table.one.suffix if shape.one_or_table else suffix
        key = noted[Key].name if Key in noted else item.name.removesuffix(suffix)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        from_place = noted.get(FromPlace)
        is_required = Required in noted or (default is MISSING and from_place is None)
        found.append(
            SettingField(item.name, key, shape, noted.get(str, ""), default, is_required, from_place)
        )
    return tuple(found)


def keys_of(settings_class: type) -> list[str]:
    """Return the keys that a file may set in a table of this class."""
    return [one.key for one in fields_of(settings_class) if one.description]


def _inner_keys(shape_type: Any) -> list[str]:
    return keys_of(shape_type) if isinstance(shape_type, type) and is_dataclass(shape_type) else []


def decode(source: YamlSource, settings_class: type[_T]) -> _T:
    """Decode a file; if it is invalid, raise InvalidFileError with all errors."""
    decoder = Decoder(source)
    settings = decoder.read(settings_class)
    decoder.finish()
    return settings


class Decoder(YamlCheck):
    """Decodes one file and collects its errors; `finish` raises them."""

    def __init__(self, source: YamlSource) -> None:
        super().__init__(source)
        # Location of each table with fixed keys → its class.
        self._classes: dict[Location, type] = {}

    def read(self, settings_class: type[_T]) -> _T:
        """Decode the whole file; invalid values are replaced with their defaults or None."""
        settings: _T = self._table((), {} if self.source.value is None else self.source.value, settings_class)
        return settings

    def at(self, *place: str | int) -> Any:
        """Return the value at a location in the file, or MISSING if there is none."""
        value = self.source.value
        for part in place:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return MISSING
        return value

    def has(self, *place: str | int) -> bool:
        """Return whether the file has a value at a location."""
        return self.at(*place) is not MISSING

    def name_of(self, at: Location) -> str:
        """Return a location for messages: "limits of rule grad-days", or "rule 2" if the rule has no id."""
        index = next((index for index in range(len(at) - 1, 0, -1) if isinstance(at[index], int)), 0)
        if not index:
            return ".".join(map(str, at)) or "the file"
        identifier = self.at(*at[: index + 1], "id")
        if not (isinstance(identifier, str) and _SHOWN_ID.fullmatch(identifier)):
            identifier = at[index] + 1  # type: ignore[operator]
        inner, outer = ".".join(map(str, at[index + 1 :])), at[: index - 1]
        one = f"{str(at[index - 1]).removesuffix('s')} {identifier}"
        return " of ".join(part for part in (inner, one, self.name_of(outer) if outer else "") if part)

    def has_failed(self, at: Location) -> bool:
        """Return whether an error was recorded at or below a location."""
        return any(place[: len(at)] == at for place in self.failed)

    def fail_once(self, at: Location, message: str, *, key: bool = False) -> None:
        """Record an error unless one was recorded at or below its location."""
        if not self.has_failed(at):
            self.fail(at, message, key=key)

    def hint_for(self, location: Location, key: Any, known: Collection[str]) -> str:
        """Name the enclosing table to which an unknown key belongs, or the tables in this one."""
        if enclosing := self._hint_of_enclosing(location, key):
            return enclosing
        settings = fields_of(self._classes[location]) if location in self._classes else ()
        inner = [one.key for one in settings if one.description and key in _inner_keys(one.shape.type)]
        return f"it is a setting of {', '.join(inner)}" if inner else super().hint_for(location, key, known)

    def _hint_of_enclosing(self, location: Location, key: Any) -> str | None:
        for n in range(len(location) - 1, -1, -1):
            if location[:n] in self._classes and key in keys_of(self._classes[location[:n]]):
                return f"it is a setting of {self.name_of(location[:n])}"
        return None

    def _table(self, at: Location, value: Any, settings_class: type, items: Items = ANY_NUMBER) -> Any:
        settings = fields_of(settings_class)
        keys = keys_of(settings_class)
        self._classes[at] = settings_class
        if value is None or (value == {} and items.least):
            needed = items.least or any(setting.is_required for setting in settings)
            hint = "" if needed else ", or write {}"
            self.fail(at, f"{self.name_of(at)} is empty; allowed: {', '.join(keys)}{hint}", key=value is None)
            value = None
        given = {} if value is None else self.mapping(at, value, keys, self.name_of(at))
        found: dict[str, Any] = {}
        for setting in settings:
            name, key, kind = setting.name, setting.key, setting.shape.value_type
            if setting.description and key in given:
                found[name] = self._value((*at, key), given[key], setting.shape)
            elif setting.is_required and isinstance(value, dict):
                hint = ""
                if kind is not None:
                    such = f"{kind.what}, such as {key}: {kind.example}"
                    hint = f"; write {such if kind.example else f'{key}: {kind.what}'}"
                self.fail(at, f"{self.name_of(at)} lacks {key}{hint}")
            if found.get(name, MISSING) in (MISSING, _INVALID):
                default = None if setting.default is MISSING else setting.default
                found[name] = setting.from_place.value(at) if setting.from_place else default
        return settings_class(**found)

    def _value(self, at: Location, value: Any, shape: Shape) -> Any:
        origin = get_origin(shape.type)
        if shape.one_or_table is not None:
            return self._one_or_table(at, value, shape.one_or_table)
        if shape.value_type is not None:
            return self.single(at, value, shape.value_type)
        if is_dataclass(shape.type):
            return self._table(at, value, shape.type, shape.items)  # type: ignore[arg-type]
        if origin is Mapping:
            key, item = map(shape_of, get_args(shape.type))
            found = self._named(at, value, key.value_type, item, shape.items)
            return _INVALID if _INVALID in found.values() else found
        if shape.items.keyed:
            return origin(
                self._named(at, value, None, shape_of(get_args(shape.type)[0]), shape.items).values()
            )
        return self._list(at, value, shape, origin)

    def single(self, at: Location, value: Any, value_type: ValueType) -> Any:
        """Parse a single value; if it is invalid, record an error and return _INVALID."""
        try:
            if value_type.suffix != "_s" or not self.is_ambiguous(at, value):
                return self._parsed(at, value, value_type)
            hours, minutes = value.split(":")
            clock = f"{hours}:{minutes}:00"
            write = clock if int(minutes) else f"{hours}h or {clock}"
            problem = f"may be hours or minutes; write {write}"
        except InvalidValueError as error:
            problem = str(error)
        except _PARSE_ERRORS:
            problem = f"must be {value_type}"
        self.fail(at, f"{_label(at)}: {shown(value)} {problem}")
        return _INVALID

    def _parsed(self, at: Location, value: Any, value_type: ValueType, *, key: bool = False) -> Any:
        text = value if isinstance(value, str) else self.source.converted.get((at, key), "")
        if (amounts := readings(text)) and all(_is_amount(value_type, amount) for amount in amounts):
            raise InvalidValueError(ambiguity(amounts))
        return value_type.parse(value)

    def _named(
        self, at: Location, value: Any, key_type: ValueType | None, item: Shape, items: Items
    ) -> dict[Any, Any]:
        known = None if key_type is None else key_type.schema.get("enum")
        table = self.mapping(at, value, known, self.name_of(at))
        if value == {} and items.least:
            kind = item.value_type
            hint = f"allowed: {', '.join(known)}" if known else f"write {kind or '`name: …` lines'}"
            self.fail(at, f"{self.name_of(at)} is empty; {hint}")
        if items.most is not None and len(table) > items.most:
            self.fail(at, f"{self.name_of(at)} has {len(table)} entries; at most {items.most} are allowed")
        found: dict[Any, Any] = {}
        for key, one in table.items():
            place = (*at, key if isinstance(key, str | int) else str(key))
            try:
                parsed = str(key) if key_type is None else self._parsed(place, key, key_type, key=True)
                if parsed in found:
                    self.fail(place, f"{shown(key)} is set twice", key=True)
            except (ValueError, AttributeError, TypeError) as error:
                problem = str(error) if isinstance(error, InvalidValueError) else f"must be {key_type}"
                if enclosing := self._hint_of_enclosing(at, key):
                    problem = f"is not valid here; {enclosing}"
                self.fail(place, f"{shown(key)} {problem}", key=True)
                continue
            found[parsed] = self._value(place, one, item)
        return found

    def _one_or_table(self, at: Location, value: Any, kind: OneOrTable) -> Any:
        n_errors, item = len(self.errors), Shape(None, kind.one, kind.inner, ANY_NUMBER)
        if isinstance(value, dict):
            if not value:
                table = f"{{{kind.key.example}: {kind.one.example}}}"
                self.fail(at, f"{self.name_of(at)} is empty; write {kind.one}, or a table such as {table}")
            found = self._named(at, value, kind.key, item, ANY_NUMBER)
        else:
            found = {None: self._value(at, value, item)}
        return kind.make(found) if len(self.errors) == n_errors else _INVALID

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
            bounds = "" if most is None else f"{least} to {most} "
            self.fail(at, f"{_label(at)}: {shown(value)} must be a list of {bounds}{what}")
            return _INVALID
        return _INVALID if _INVALID in found else origin(found)


def _is_amount(value_type: ValueType, value: Any) -> bool:
    try:
        return isinstance(value_type.parse(value), int | float)
    except _PARSE_ERRORS:
        return False


def _label(at: Location) -> str:
    return str(next((part for part in reversed(at) if isinstance(part, str)), "the file"))
