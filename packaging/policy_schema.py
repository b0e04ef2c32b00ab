"""Print a JSON Schema of policy.yaml, with which editors complete and check the file.

`PYTHONPATH=. python packaging/policy_schema.py > etc/policy.schema.json`; a test compares them.
A schema cannot check that the group of a rule exists, for instance; `slurm-gpu policy check` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

from slurm_gpu.config.decoder import ANY_NUMBER, Items, Shape, fields_of, shape_of
from slurm_gpu.policy.language.check_adjust import ADJUSTABLE, bound_type
from slurm_gpu.policy.language.check_changes import CHANGES
from slurm_gpu.policy.language.hour_sums import UNITS
from slurm_gpu.policy.language.limits import LIMITS
from slurm_gpu.policy.language.model import Per, Policy
from slurm_gpu.policy.language.value_types import GPUS

Schema = dict[str, Any]
# In rules other than those with `per: job`.
_NOT_OF_JOBS = dict.fromkeys(("at_least", "exactly", "options", "jobs", *CHANGES), False)


def policy_schema() -> Schema:
    """Return the schema of the whole format (JSON Schema 2020-12)."""
    schema = table_schema(Policy)
    parts = schema["properties"]
    rule, exception = parts["rules"]["items"], parts["exceptions"]["items"]
    rule["properties"]["adjust"] |= _adjust()
    rule["allOf"] = [
        {
            "if": {"properties": {"per": {"const": str(per)}}, "required": ["per"]},
            "then": {"properties": {**_parts(per), "tiers": {"items": {"properties": _parts(per)}}}},
        }
        for per in Per
    ]
    amounts = [{"required": [key]} for key in ("limits", "at_least", "exactly")]
    either = [*amounts, *({"required": [key]} for key in ("options", *CHANGES))]
    in_tiers = dict.fromkeys(("limits", "at_least", "exactly", "options", "adjust", *CHANGES), False)
    rule["oneOf"] = [
        {"required": ["for"], "anyOf": either, "properties": {"tiers": False}},
        {"required": ["tiers"], "properties": in_tiers},
    ]
    exception["anyOf"] = amounts
    exception["oneOf"] = [{"required": [key]} for key in ("user", "group")]
    exception["properties"]["limits"]["anyOf"] = [_allowed(Per.JOB), _allowed(Per.USER)]
    for holder in (rule, rule["properties"]["tiers"]["items"], exception):
        for key in ("at_least", "exactly"):
            gpus = holder["properties"][key]["properties"]["gpus"]
            gpus |= {"anyOf": [dict(GPUS.schema)]}
    parts["bundles"]["additionalProperties"] |= {
        "anyOf": [{"required": [key]} for key in ("cpus", "memory", "partitions")],
        "if": {"properties": {"gpus": {"const": 0}}},
        "then": {"properties": {"gpu_types": False}},
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "policy.yaml of slurm-gpu"}
    return head | schema


def _parts(per: Per) -> Schema:
    """Return the parts of the schema of a rule or tier that depend on the rule's `per:`."""
    return {"limits": _allowed(per)} | ({} if per is Per.JOB else _NOT_OF_JOBS)


def _allowed(per: Per) -> Schema:
    hours = {key: {"type": "number" if per is Per.JOB else "object"} for key in UNITS}
    keys = [key for key, kind in LIMITS.items() if kind.allowed_per(per)]
    return {"propertyNames": {"enum": keys}, "properties": hours}


def _adjust() -> Schema:
    bounds = {
        key: {"type": "array", "items": dict(bound_type(LIMITS[key]).schema), "minItems": 2, "maxItems": 2}
        for key in ADJUSTABLE
    }
    return {"type": "object", "properties": bounds, "additionalProperties": False, "minProperties": 1}


def table_schema(settings_class: type, items: Items = ANY_NUMBER) -> Schema:
    """Return the schema of a table with the settings of the class."""
    settings = [setting for setting in fields_of(settings_class) if setting.description]
    required = [setting.key for setting in settings if setting.is_required]
    properties = {
        setting.key: value_schema(setting.shape) | {"description": setting.description}
        for setting in settings
    }
    table: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return table | ({"required": required} if required else {}) | _least(items, "minProperties")


def value_schema(shape: Shape) -> Schema:
    """Return the schema of a value."""
    either, items = shape.one_or_table, shape.items
    if either is not None:
        one = dict(either.one.schema)
        item = value_schema(Shape(None, either.one, either.inner, ANY_NUMBER)) if either.inner else one
        return {"anyOf": [one, _by_name(either.key.schema, item, Items(least=1))]}
    if shape.value_type is not None:
        return dict(shape.value_type.schema)
    if is_dataclass(shape.type):
        return table_schema(shape.type, items)  # type: ignore[arg-type]
    inner = get_args(shape.type)
    if get_origin(shape.type) is Mapping:
        key = shape_of(inner[0]).value_type
        return _by_name({} if key is None else key.schema, value_schema(shape_of(inner[1])), items)
    item = value_schema(shape_of(inner[0]))
    if items.keyed:
        return _by_name({}, item, items)
    most = {} if items.most is None else {"maxItems": items.most}
    several = {"type": "array", "items": item} | _least(items, "minItems") | most
    return {"anyOf": [item, several]} if items.or_one else several


def _by_name(key: Mapping[str, Any], item: Schema, items: Items) -> Schema:
    names = {"propertyNames": dict(key)} if key else {}
    return {"type": "object", **names, "additionalProperties": item} | _least(items, "minProperties")


def _least(items: Items, key: str) -> Schema:
    return {key: items.least} if items.least else {}


def main() -> None:
    """Print the schema."""
    sys.stdout.write(json.dumps(policy_schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
