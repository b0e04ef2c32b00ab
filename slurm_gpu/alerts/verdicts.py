"""Convert verdicts from slurm-gpudbd to alerts on running jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slurm_gpu.alerts.alert import Alert, AlertKind, DiagnosisSummary
from slurm_gpu.text.units import few
from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.runs import NodeReport
from slurm_gpu.wire.answers.verdicts import JobVerdict, Verdicts

_NAMED = 3


def unhealthy(
    found: Verdicts | None,
    runs: Collection[tuple[int, int | None]],
    reports: Iterable[NodeReport],
    live: Mapping[str, Live],
) -> list[Alert]:
    """Return an alert for each verdict on a run in `runs`, which contains pairs of job ID and start.

    An alert covers the GPUs that its verdict names or, if it names none, all GPUs of the job according to
    `live`. `reports` contains the indices of GPUs.
    """
    if found is None or not found.verdicts:
        return []
    index = {item.uuid: item.index for report in reports for item in report.devices if item.index is not None}
    return [
        Alert(
            job_id=item.job_id,
            kind=AlertKind.UNHEALTHY,
            devices=tuple(uuid for _, uuid in item.devices) or _devices_of(live, item.job_id),
            since_s=item.start_s if item.since_s is None else item.since_s,
            coverage=float(item.verdict.get("coverage") or 0.0),
            diagnosis=_summary(item, index),
        )
        for item in found.verdicts
        if (item.job_id, item.start_s) in runs
    ]


def _summary(item: JobVerdict, index: Mapping[str, int]) -> DiagnosisSummary:
    """Summarise a verdict by its culprits and its first piece of evidence."""
    gpus = [f"{node} GPU {index[uuid]}" if uuid in index else f"{node} {uuid}" for node, uuid in item.devices]
    roles = few(item.verdict.get("roles") or (), _NAMED)
    many = f"{len(gpus)} GPUs on {_few_nodes(item)}"
    who = (", ".join(gpus) if len(gpus) <= _NAMED else many) or _few_nodes(item) or roles
    evidence: Mapping[str, Any] = next(iter(item.verdict.get("evidence") or ()), {})
    text, workers = str(evidence.get("text") or ""), list(evidence.get("workers") or ())
    if len(workers) == len(item.devices) == 1 and text.startswith(f"{workers[0]}:"):
        who = ""  # the evidence already names the GPU
    return DiagnosisSummary(
        cause=item.cause,
        kind=item.kind,
        confidence=item.confidence,
        text="; ".join(part for part in (who, text) if part),
        next_step=str(item.verdict.get("next_step") or ""),
    )


def _few_nodes(item: JobVerdict) -> str:
    return few(dict.fromkeys([*item.nodes, *(node for node, _ in item.devices)]), _NAMED)


def _devices_of(live: Mapping[str, Live], job_id: int) -> tuple[str, ...]:
    """Return the UUIDs of all GPUs of a job."""
    return tuple(
        sorted(uuid for node in live.values() for uuid, value in node.devices.items() if job_id in value.jobs)
    )
