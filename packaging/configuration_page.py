"""Print the reference of configuration files from the classes that decode them.

`PYTHONPATH=. python packaging/configuration_page.py > docs/configuration.md`; a test keeps both equal.
"""

from __future__ import annotations

import re
import sys
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
        "Only on slurm-gpudbd's host; mode 0600, as it may hold a password.",
    ),
    ("slurm-gpuweb.yaml", WebSettings, "Only on slurm-gpuweb's host."),
)
_HEAD = """\
# Configuration reference

Every key of the files in `/etc/slurm-gpu`. A mistake is reported with its line and column, the value and the
allowed values. `NAME` is any name, `[]` an entry of a list. Times have a unit: `90s`, `10m`, `4h`, `7d`,
`2w`. `packaging/configuration_page.py` writes this page from the classes that decode the files.
"""


_EXAMPLE = re.compile(r", such as `[^`]*`$")


class _Row(NamedTuple):
    key: str
    value: str
    description: str


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name, settings_class, description in _FILES:
        rows = [_Row("key", "value (default)", "description"), *_rows("", settings_class, {})]
        head, *lines = (f"| {' | '.join(row)} |" for row in rows)
        table = "\n".join((head, "|---|---|---|", *lines))
        parts.append(f"## {name}\n\n{description}\n\n{table}\n")
    return "\n".join(parts)


def _rows(above: str, settings_class: type, shown: dict[type, str]) -> Iterator[_Row]:
    shown[settings_class] = above.removesuffix(".")
    for setting in fields_of(settings_class):
        if not setting.description:
            continue
        key, inner = _inner(f"{above}{setting.key}", setting.shape)
        default = _default(setting)
        value = f"as `{shown[inner]}`" if inner in shown else "" if inner else _value(setting.shape)
        if default.startswith("`"):  # An example of its own is not needed.
            value = _EXAMPLE.sub("", value)
        yield _Row(f"`{key}`", f"{value} ({default})" if default and value else value, setting.description)
        if inner is not None and inner not in shown:
            yield from _rows(f"{key}.", inner, shown)


def _inner(key: str, shape: Shape) -> tuple[str, type | None]:
    """(key, the class of the tables under it)."""
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
        return f"{_described(shape.one_or_table.one)}; or table by {_short(shape.one_or_table.key.what)}"
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
    """Return a description without its article, and without a bound that no value reaches."""
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
