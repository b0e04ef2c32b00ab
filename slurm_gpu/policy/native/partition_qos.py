"""Find the QOS of partitions that can have limits for a group of partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupQos:
    """The QOS that count only jobs in the partitions of a group."""

    names: tuple[str, ...]
    # Why some partitions of the group have no such QOS; None if all have one.
    lacking: str | None


def qos_of_group(
    partitions: Collection[str],
    qos_of: Mapping[str, str | None],
    managed: Collection[str],
    chosen: Collection[str],
) -> GroupQos:
    """Return the QOS that can have limits for `partitions`.

    `qos_of` contains the QOS of every partition in slurm.conf, or None; `managed` are the QOS that may be
    changed, and `chosen` those that users may name in any partition.
    """
    names, reasons = set(), []
    for partition in sorted(partitions):
        qos = qos_of[partition]
        others = sorted(name for name, one in qos_of.items() if one == qos and name not in partitions)
        if qos is None:
            reasons.append(
                f"partition {partition} has no QOS; add QOS=NAME to its line in slurm.conf, with NAME under "
                "manages: qos"
            )
        elif qos not in managed:
            reasons.append(f"QOS {qos} of partition {partition} must be in slurmdbd and under manages: qos")
        elif others:
            reasons.append(f"partition {partition} shares QOS {qos} with {', '.join(others)}")
        elif qos in chosen:
            reasons.append(f"users may name QOS {qos} of partition {partition} in other partitions, too")
        else:
            names.add(qos)
    if not partitions:
        reasons.append("slurm.conf has no partition of this group")
    return GroupQos(tuple(sorted(names)), "; ".join(reasons) or None)
