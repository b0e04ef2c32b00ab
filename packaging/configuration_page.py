"""Print the reference of configuration files from the classes that decode them.

`PYTHONPATH=. python packaging/configuration_page.py > docs/configuration.md`; a test compares them.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from typing import NamedTuple, get_args, get_origin

from slurm_gpu.config.decoder import SettingField, Shape, fields_of, shape_of
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.config.value_types import ValueType
from slurm_gpu.database.settings import DaemonSettings
from slurm_gpu.monitor.settings import WebSettings
from slurm_gpu.node.application.rules import ApplicationsFile
from slurm_gpu.notices.settings import Settings
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.text.units import format_duration, format_memory_mib

_FILES = (
    ("slurm-gpu.yaml", SiteConfig, "The site file, the same on every host."),
    ("policy.yaml", Policy, "Limits, bundles, loans and the rest of the [policy](policy.md)."),
    ("notices.yaml", Settings, "[Notices](notices.md) to users, on the hosts of slurmctld."),
    ("applications.yaml", ApplicationsFile, "How nodes recognise [applications](applications.md)."),
    (
        "slurm-gpudbd.yaml",
        DaemonSettings,
        "Only on slurm-gpudbd's host; mode 0600, as it may contain a password.",
    ),
    ("slurm-gpuweb.yaml", WebSettings, "Only on slurm-gpuweb's host."),
)
_HEAD = """\
# Configuration reference

This page lists every key of the files in `/etc/slurm-gpu`. `KEY: VALUE` shows the default. `KEY: <…>` shows
the kind of value if there is no default. Allowed values are in parentheses. `NAME` is any name, and `-`
begins an entry of a list.

| value | form |
|---|---|
| duration | `90s`, `10m`, `4h`, `7d`, `2w` |
| memory | `64G`, in powers of 1024 |
| n | a whole number |
| gpus | `8` or `0.5`; in rules also by type as in gres.conf: `{a100: 4}` |
| steps | a table by the number of GPUs from which a value applies: `{1: 7d, 8: 2d}` |
| id | up to 40 letters, digits, `_`, `.`, `-` |
| names, groups, durations, networks | a list, such as `[a, b]` |
| hostlist | `n[1-4]` |
| patterns | a shell pattern such as `lmp*`, or a list; at most 64, of at most 64 characters |
| regex | a regular expression of at most 300 characters |
| day | `2026-12-31`, inclusive |
| path | an absolute path |
"""
_WIDTH = 116
_COLUMN = 32
_LONGEST_PLACEHOLDER = 30
_BY_GPUS = "; or table by the number of GPUs from which it applies"
# Placeholders, which the table above explains.
_PLACEHOLDERS = {
    "list of names": "names",
    "list of names of groups": "groups",
    "list of durations": "durations",
    "list of networks, or one": "networks",
    "text on one line": "text",
    "absolute path": "path",
    "amount of memory": "memory",
    "whole number": "n",
    "whole number ≥ 1": "n ≥ 1",
    "number of GPUs ≥ 0": "gpus",
    "number of GPUs ≥ 0; or table by GPU type as in gres.conf": "gpus",
    "letters, digits, _ . - (up to 40)": "id",
    "day written as YYYY-MM-DD": "day",
    "name, or a list of at most 64 names, of at most 64 characters each": "patterns",
    "regular expression of at most 300 characters": "regex",
}
_EXAMPLE = re.compile(r", such as `[^`]*`")
_RANGE = re.compile(r"(?:whole number|number|duration) from (\S+ to \S+)")
# Kinds of values that are evident from a default.
_EVIDENT = {
    "duration",
    "HOST:PORT",
    "mail server's name",
    "slurm-gpudbd's address",
    "time zone",
    "true or false",
    *_PLACEHOLDERS,
}
# Kinds of values that need no example.
_OBVIOUS = {"hostlist", "number", "name", *_PLACEHOLDERS}


class _Row(NamedTuple):
    indent: str
    key: str
    value: str
    comment: str


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name, settings_class, description in _FILES:
        lines = (line for row in _rows("", "", settings_class, {}) for line in _lines(row))
        parts.append("\n".join((f"## {name}", "", description, "", "```yaml", *lines, "```", "")))
    return "\n".join(parts)


def _lines(row: _Row) -> Iterator[str]:
    """Return a key with its comment, which is above the key if both do not fit on one line."""
    start = f"{row.indent}{row.key}: {row.value}".rstrip()
    line = f"{start:{_COLUMN - 2}}  # {row.comment}" if row.comment else start
    if len(line) <= _WIDTH:
        yield line
        return
    above = f"{row.indent.replace('-', ' ')}# "
    yield from textwrap.wrap(row.comment, _WIDTH, initial_indent=above, subsequent_indent=above)
    yield start


def _rows(indent: str, above: str, settings_class: type, shown: dict[type, str]) -> Iterator[_Row]:
    shown[settings_class] = above.removesuffix(".")
    below_first = indent.replace("-", " ")
    for setting in fields_of(settings_class):
        if not setting.description:
            continue
        named, inner = _inner(setting.key, setting.shape)
        value, kind = _value_and_kind(setting) if inner is None else ("", "")
        same = next((name for one, name in shown.items() if inner and issubclass(one, inner)), None)
        if same is not None:
            value = f"<as {same}>"
        yield _Row(indent, setting.key, value, _comment(setting, kind))
        indent = below_first
        if inner is None or same is not None:
            continue
        below = f"{indent}  "
        if named.endswith(".NAME"):
            yield _Row(below, "NAME", "", "")
            below += "  "
        elif named.endswith("[]"):
            below += "- "
        yield from _rows(below, f"{above}{named}.", inner, shown)


def _comment(setting: SettingField, kind: str) -> str:
    """Return the allowed values and the description, unless it only repeats the key."""
    words = setting.description.removesuffix(".").replace("`", "")
    plain = re.sub(r"^(?:the|its) ", "", words.lower()).replace(" ", "_")
    about = "; ".join(filter(None, ("required" if setting.is_required else "", kind)))
    return " ".join(filter(None, (f"({about})" if about else "", "" if plain == setting.key else words)))


def _value_and_kind(setting: SettingField) -> tuple[str, str]:
    """Return the text shown for a key, and the allowed values if it does not contain them."""
    default = "" if setting.is_required else _default(setting).strip("`")
    kind = _value(setting.shape).replace("`", "")
    plain = _EXAMPLE.sub("", _value(setting.shape)).replace("`", "")
    if default:
        found = _RANGE.fullmatch(plain)
        return default, found[1] if found else "" if plain in _EVIDENT else plain
    one = plain.removesuffix(_BY_GPUS)
    shown = _PLACEHOLDERS.get(one, one.removeprefix("the ")) + ("" if one == plain else "|steps")
    if shown.isdigit():
        return shown, ""
    if len(shown) > _LONGEST_PLACEHOLDER:
        return "<…>", kind
    example = "" if {one, one.split()[0]} & _OBVIOUS else kind.removeprefix(plain)
    return f"<{shown}>", example.removeprefix(", ")


def _inner(key: str, shape: Shape) -> tuple[str, type | None]:
    """Return a key and the class of the tables under it."""
    if is_dataclass(shape.type) and shape.value_type is None and shape.one_or_table is None:
        return key, shape.type  # type: ignore[return-value]
    if shape.value_type is None and shape.one_or_table is None:
        item = shape_of(get_args(shape.type)[-1 if get_origin(shape.type) is Mapping else 0])
        if is_dataclass(item.type) and item.one_or_table is None:
            named = get_origin(shape.type) is Mapping or shape.items.keyed
            return f"{key}.NAME" if named else f"{key}[]", item.type  # type: ignore[return-value]
    return key, None


def _value(shape: Shape) -> str:
    if shape.one_or_table is not None:
        either = shape.one_or_table
        inner = (
            "" if either.inner is None else f", whose values may be tables by {_short(either.inner.key.what)}"
        )
        return f"{_described(either.one)}; or table by {_short(either.key.what)}{inner}"
    if shape.value_type is not None:
        return _described(shape.value_type)
    key, *item = map(shape_of, get_args(shape.type))
    if get_origin(shape.type) is Mapping:
        return f"table: {_described(key.value_type)} → {_value(item[0])}"
    items = _described(key.value_type)
    if key.value_type is not None and key.value_type.example:
        items = key.value_type.plural
    return f"list of {items}" + (", or one" if shape.items.or_one else "")


def _described(kind: ValueType | None) -> str:
    if kind is None:
        return "table"
    shown = _short(kind.what)
    has_example = kind.example and not shown.startswith(("duration", "whole number"))
    return f"{shown}, such as `{kind.example}`" if has_example else shown


def _short(what: str) -> str:
    """Return a description without its article, and without a bound that no real value reaches."""
    what = re.sub(r"^(?:an?|one of) ", "", what)
    return re.sub(r" from (\d+) to \d{6,}$", lambda low: "" if low[1] == "0" else f" ≥ {low[1]}", what)


def _default(setting: SettingField) -> str:
    value, kind = setting.default, setting.shape.value_type
    if setting.is_required:
        return "required"
    if isinstance(value, frozenset) and value and kind is None:
        return f"`[{', '.join(sorted(value))}]`"
    if kind is None or value is None or value is MISSING or isinstance(value, frozenset | tuple):
        return ""
    if kind.suffix:
        return f"`{(format_duration if kind.suffix == '_s' else format_memory_mib)(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(page())
