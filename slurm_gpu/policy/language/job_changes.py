"""Options that a rule sets.

A rule sets them for all of its jobs (`set:`), for jobs that do not name them (`defaults:`), or for jobs over
its limits (`over_limit:`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.value_types import (
    CONSTRAINT,
    EXCLUSIVE,
    NODES,
    ONE_PARTITION,
    PARTITIONS,
    QOS,
    WALLTIME,
)
from slurm_gpu.text.units import format_slurm_time


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Options that every job of the rule gets; None means that the rule does not set the option."""

    partition: Annotated[str | None, PARTITIONS, "`--partition`."] = None
    qos: Annotated[str | None, QOS, "`--qos`."] = None
    constraint: Annotated[str | None, CONSTRAINT, "`--constraint`, joined with the job's own by `&`."] = None
    exclusive: Annotated[bool | None, EXCLUSIVE, "`--exclusive`."] = None
    nodes: Annotated[int | None, NODES, "`--nodes`."] = None

    def table(self) -> dict[str, Plain]:
        """Return the options as the Lua code reads them."""
        return {
            "partition": self.partition,
            "qos": self.qos,
            "constraint": self.constraint,
            "exclusive": self.exclusive,
            "nodes": self.nodes,
        }


@dataclass(frozen=True, slots=True)
class DefaultOptions:
    """Options for jobs that do not specify them; None means that the rule sets no default."""

    partition: Annotated[str | None, PARTITIONS, "`--partition`."] = None
    qos: Annotated[str | None, QOS, "`--qos`."] = None
    constraint: Annotated[str | None, CONSTRAINT, "`--constraint`."] = None
    nodes: Annotated[int | None, NODES, "`--nodes`."] = None
    walltime_s: Annotated[int | None, WALLTIME, "`--time`."] = None

    def table(self) -> dict[str, Plain]:
        """Return the options as the Lua code reads them, with the time limit in seconds."""
        return {
            "partition": self.partition,
            "qos": self.qos,
            "constraint": self.constraint,
            "nodes": self.nodes,
            "walltime": self.walltime_s,
        }


@dataclass(frozen=True, slots=True)
class OverLimitOptions:
    """The options that a job gets instead of a refusal; None means that the rule does not set the option.

    The rule neither applies to jobs with all of these options nor counts them.
    """

    partition: Annotated[str | None, ONE_PARTITION, "`--partition`."] = None
    qos: Annotated[str | None, QOS, "`--qos`."] = None

    def table(self) -> dict[str, Plain]:
        """Return the options as the Lua code reads them."""
        return {"partition": self.partition, "qos": self.qos}


def options_text(table: Mapping[str, Plain]) -> str:
    """Return options as users write them, such as "--partition=debug --exclusive"."""
    return " ".join(_option(key, value) for key, value in table.items() if value is not None)


def _option(key: str, value: Plain) -> str:
    if key == "exclusive":
        return "--exclusive"
    if key == "walltime" and isinstance(value, int):
        return f"--time={format_slurm_time(value)}"
    quote = "'" if key == "constraint" and set(str(value)) & set("&|") else ""
    return f"--{key}={quote}{value}{quote}"
