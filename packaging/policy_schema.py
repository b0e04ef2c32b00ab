"""Print policy.yaml as a JSON Schema, by which editors complete and check it while it is written.

`PYTHONPATH=. python packaging/policy_schema.py > etc/policy.schema.json`; a test keeps both equal.
It says all that a schema can: that a rule's group exists, say, is for `slurm-gpu policy check`.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Any

from slurm_gpu.policy.language.check import CONDITIONS
from slurm_gpu.policy.language.check_adjust import ADJUSTABLE
from slurm_gpu.policy.language.check_colocation import (
    LEARNED_PLANNERS,
    MOST_SLOWDOWN,
    MOST_TOGETHER,
    PLANNERS,
)
from slurm_gpu.policy.language.check_hours import DAYS
from slurm_gpu.policy.language.check_idle import MOST_WARNINGS
from slurm_gpu.policy.language.check_values import ID, MOST_COUNT, MOST_GPUS
from slurm_gpu.policy.language.limits import LIMITS, LimitKind, LimitUnit, Scope
from slurm_gpu.policy.language.model import (
    BundleMode,
    Goal,
    HoursPeriod,
    IdleAction,
    JobKind,
    Mode,
    OnError,
    Per,
)

Schema = dict[str, Any]

_PRINTABLE = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]*$"
_DURATION = (
    r"^\s*(\d+(\.\d+)?\s*[smhdw]|\d+-\d+(:\d+(:\d+)?)?|\d+:\d+(:\d+)?)\s*$"  # 4h, or Slurm's D-HH:MM:SS
)
_MEMORY = r"^\s*\d+(\.\d+)?\s*[KMGTkmgt]([iI]?[bB])?\s*$"
_HOURS = r"^\s*\d{1,2}(:\d\d)?\s*-\s*\d{1,2}(:\d\d)?\s*$"
_HELD = {
    Scope.JOB: "of one job",
    Scope.TOTAL: "of running and pending jobs together",
    Scope.RUNNING: "of running jobs together; held back by Slurm's own limits",
    Scope.PERIOD: "used in the calendar's day, week or month, with those that the job may use",
}


def policy_schema() -> Schema:
    """The schema of the whole format (JSON Schema 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "policy.yaml of slurm-gpu",
        "$defs": _definitions(),
        **_table(
            {
                "version": _told({"const": 1}, "Of the format: 1."),
                "contact": _told(_ref("text"), "Where users ask; every refusal ends with it."),
                "manages": _table({"qos": _ref("names"), "accounts": _ref("names")})
                | {"description": "All that `policy apply` may write to."},
                "chain": _table({"before": _ref("path"), "after": _ref("path")})
                | {"description": "A site's own job_submit.lua, asked before or after this policy."},
                "on_error": _told(_choice(OnError), "What happens to a job when our own code fails."),
                "mode": _told(_choice(Mode), "Of rules that say nothing of it; enforce is the default."),
                "bundles": _by_name(_bundle(), "What so many GPUs may take along."),
                "owners": _by_name(_owner(), "Groups whose idle GPUs are lent, and return when they ask."),
                "urgent": _urgent(),
                "colocation": _colocation(),
                "cancel_idle": _cancel_idle(),
                "groups": _by_name(_group(), "Jobs that rules are for: all conditions that are given match."),
                "rules": {"type": "array", "items": _rule(), "description": "All that match a job apply."},
                "exceptions": {
                    "type": "array",
                    "items": _exception(),
                    "description": "For one user, in place of the named limits of a rule, until a day.",
                },
            },
            required=("version",),
        ),
    }


def _definitions() -> Schema:
    day = "|".join("".join(f"[{letter.upper()}{letter}]" for letter in name) for name in DAYS)
    days = rf"\s*({day})(\s*-\s*({day}))?\s*"
    return {
        "text": {"type": "string", "allOf": [{"pattern": r"\S"}, {"pattern": _PRINTABLE}]},
        "names": {"type": "array", "items": _ref("text"), "minItems": 1},
        "path": {"type": "string", "allOf": [{"pattern": "^/"}, {"pattern": _PRINTABLE}]},
        "id": {"type": "string", "pattern": f"^{ID.pattern}$"},
        "day": {
            "type": "string",
            "pattern": r"^\d{4}-\d{1,2}-\d{1,2}$",
            "description": "Such as 2026-12-31.",
        },
        "days": {
            "anyOf": [
                {"type": "string", "pattern": f"^{days}(,{days})*$"},
                {"type": "array", "items": {"type": "string", "pattern": f"^{days}$"}, "minItems": 1},
            ],
            "description": "Such as mon-fri or [sat, sun].",
        },
        "hours": {"type": "string", "pattern": _HOURS, "description": 'Such as "09-18" or "22:30-24".'},
        "gpus": {"type": "number", "minimum": 0, "maximum": MOST_GPUS},
        "count": {"type": "integer", "minimum": 0, "maximum": MOST_COUNT},
        "memory": {"type": "string", "pattern": _MEMORY, "description": "With its unit, such as 64G."},
        "duration": {"type": "string", "pattern": _DURATION, "description": "Such as 4h or 7d."},
        "gpus_or_by_type": {
            "anyOf": [_ref("gpus"), _by_pattern(r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}$", _ref("gpus"))]
        },
        "walltime": {"anyOf": [_ref("duration"), _by_pattern(r"^\d+(\.\d{1,3})?$", _ref("duration"))]},
        "gpu_hours": _table(
            {str(period): {"type": "number", "minimum": 0, "maximum": 1e9} for period in HoursPeriod}
        )
        | {"minProperties": 1},
        "limits_of_a_job": _limits(Per.JOB),
        "limits_of_a_sum": _limits(Per.USER),
    }


def _limits(per: Per) -> Schema:
    kinds = [kind for kind in LIMITS.values() if kind.allowed_per(per)]
    return _table({kind.key: _limit(kind) for kind in kinds}) | {"minProperties": 1}


def _limit(kind: LimitKind) -> Schema:
    of = {
        LimitUnit.GPUS: "gpus_or_by_type",
        LimitUnit.COUNT: "count",
        LimitUnit.MEMORY: "memory",
        LimitUnit.WALLTIME: "walltime",
        LimitUnit.NAMES: "names",
        LimitUnit.GPU_HOURS: "gpu_hours",
    }[kind.measure]
    most = "Allowed" if kind.measure is LimitUnit.NAMES else "At most:"
    return _told(_ref(of), f"{most} {kind.what} {_HELD[kind.scope]}.")


def _rule() -> Schema:
    def limits(per: list[Per], of: str) -> Schema:
        return {
            "if": {"properties": {"per": {"enum": [str(one) for one in per]}}, "required": ["per"]},
            "then": {"properties": {"limits": _ref(of)}},
        }

    table = _table(
        {
            "id": _told(_ref("id"), "What a refusal calls it."),
            "for": _told({"type": "string"}, "The group that it is for."),
            "per": _told(_choice(Per), "Over what its limits are taken."),
            "why": _told(_ref("text"), "The reason, as a refusal tells it."),
            "limits": {"type": "object"},
            "mode": _told(_choice(Mode), "Write it down, tell the user, or refuse the job."),
            "on_error": _told(_choice(OnError), "What happens to a job when our own code fails."),
            "when": _table({"days": _ref("days"), "hours": _ref("hours")})
            | {"minProperties": 1, "description": "When it holds, by the moment of submission."},
            "kind": _told(_choice(JobKind), "Only for jobs with a script (batch) or without (interactive)."),
            "adjust": _told(_adjust(), "Within which bounds the weekly review may move limits on what runs."),
        },
        required=("id", "for", "per", "why", "limits"),
    )
    return table | {
        "allOf": [limits([Per.JOB], "limits_of_a_job"), limits([Per.USER, Per.GROUP], "limits_of_a_sum")]
    }


def _adjust() -> Schema:
    kinds = [LIMITS[key] for key in ADJUSTABLE]
    return _table({kind.key: _bounds(kind) for kind in kinds}) | {"minProperties": 1}


def _bounds(kind: LimitKind) -> Schema:
    of = {LimitUnit.GPUS: "gpus", LimitUnit.COUNT: "count", LimitUnit.MEMORY: "memory"}[kind.measure]
    return {"type": "array", "items": _ref(of), "minItems": 2, "maxItems": 2}


def _exception() -> Schema:
    return _table(
        {
            "rule": _told({"type": "string"}, "The id of a rule with per: user or per: job."),
            "user": _ref("text"),
            "limits": {"anyOf": [_ref("limits_of_a_job"), _ref("limits_of_a_sum")]},
            "until": _told(_ref("day"), "The last day on which it holds."),
            "why": _ref("text"),
            "granted_by": _ref("text"),
        },
        required=("rule", "user", "limits", "until", "why"),
    )


def _group() -> Schema:
    conditions = {key: _ref("names") for key in CONDITIONS}
    return _table(conditions | {"until": _told(_ref("day"), "The last day on which the group exists.")})


def _bundle() -> Schema:
    table = _table(
        {
            "gpus": _told(_ref("gpus"), "0 is for jobs without GPUs."),
            "cpus": {"type": "integer", "minimum": 1, "maximum": MOST_COUNT},
            "memory": _ref("memory"),
            "partitions": _ref("names"),
            "gpu_types": _ref("names"),
            "mode": _told(
                _choice(BundleMode), "fit writes in what the job left unsaid; advise is the default."
            ),
            "why": _ref("text"),
        },
        required=("gpus",),
    )
    return table | {
        "anyOf": [{"required": [key]} for key in ("cpus", "memory", "partitions")],
        "if": {"properties": {"gpus": {"const": 0}}},
        "then": {"properties": {"gpu_types": False}},
    }


def _owner() -> Schema:
    return _table(
        {
            "gpus": {"type": "integer", "minimum": 1, "maximum": MOST_GPUS, "description": "That it owns."},
            "lend_in": _told(_ref("id"), "The QOS of jobs that borrow."),
            "return_within": _told(_ref("duration"), "From the owner's submission to its GPUs."),
            "qos": _told(_ref("id"), "The QOS of the group's own jobs; sg-GROUP where it is not said."),
        },
        required=("gpus", "lend_in", "return_within"),
    )


def _urgent() -> Schema:
    table = _table(
        {
            "for": _told(_ref("names"), "Groups of users, unix_groups and accounts: who may."),
            "jobs_running": _told(_ref("count"), "Of all of them at once; the others wait."),
            "why": _ref("text"),
            "qos": _told(_ref("id"), "That users ask for; urgent where it is not said."),
            "preempts": _told(_ref("names"), "QOS whose jobs are requeued where there is no room else."),
        },
        required=("for", "jobs_running", "why"),
    )
    return table | {"description": "Jobs that start before all others."}


def _colocation() -> Schema:
    table = _table(
        {
            "may": _told(_ref("names"), "Groups whose jobs share if they ask; all where it is not said."),
            "must": _told(_ref("names"), "Groups whose jobs share unasked."),
            "mode": _told(_choice(Mode), "Write it down (the default), tell the user, or do it."),
            "goal": _told(_choice(Goal), "considerate: nobody is slowed down by more than `slowdown`."),
            "slowdown": {"type": "number", "minimum": 1, "maximum": MOST_SLOWDOWN},
            "together": {"type": "integer", "minimum": 2, "maximum": MOST_TOGETHER},
            "largest": {"type": "number", "minimum": 0, "maximum": 1},
            "hold": _told(_ref("duration"), "So long a job waits for its place at most."),
            "planner": _told(
                {"enum": [*PLANNERS, *LEARNED_PLANNERS]},
                "Who decides whom they share with; annealing is the default.",
            ),
            "model": _told({"type": "string", "pattern": "^/"}, "The file of what a planner learned."),
            "why": _ref("text"),
        },
        required=("why",),
    )
    return table | {"description": "Jobs of one GPU that share it with others."}


def _cancel_idle() -> Schema:
    times = {"type": "array", "items": _ref("duration"), "minItems": 1, "maxItems": MOST_WARNINGS}
    table = _table(
        {
            "for": _told(_ref("names"), "Groups whose jobs; all jobs where it is not said."),
            "exempt": _told(_ref("names"), "Groups whose jobs never."),
            "warn": _told(times, "When nothing was computed for so long, their owner is warned."),
            "after": _told(_ref("duration"), "When nothing was computed for so long, they are ended."),
            "then": _told(_choice(IdleAction), "cancel (the default), or hold: back into the queue, held."),
            "mode": _told(_choice(Mode), "Write it down (the default), only warn, or do it."),
            "why": _ref("text"),
        },
        required=("warn", "after", "why"),
    )
    return table | {"description": "Jobs that are ended as none of their GPUs was ever used."}


def _table(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    table: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return table | ({"required": list(required)} if required else {})


def _by_name(item: Schema, description: str) -> Schema:
    return {
        "type": "object",
        "propertyNames": _ref("id"),
        "additionalProperties": item,
        "description": description,
    }


def _by_pattern(pattern: str, item: Schema) -> Schema:
    return {
        "type": "object",
        "patternProperties": {pattern: item},
        "additionalProperties": False,
        "minProperties": 1,
    }


def _choice(kind: type[StrEnum]) -> Schema:
    return {"enum": [str(member) for member in kind]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _told(schema: Schema, description: str) -> Schema:
    return schema | {"description": description}


def main() -> None:
    """Print the schema."""
    sys.stdout.write(json.dumps(policy_schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
