"""Rows of `run` and `run_device` from the fields given by tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu.database.storage.packed import pack_statistics


def run_row(run_id: int, one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `run` with defaults; `mgpu` and `nodes` are short forms."""
    over = one["end_s"] is not None
    elapsed_s = one["end_s"] - one["start_s"] if over and one["start_s"] is not None else 0
    given = {name: value for name, value in one.items() if name not in ("mgpu", "nodes", "recorded")}
    return {
        "run_id": run_id,
        "cluster": "c",
        "job_id": run_id,
        "array_job_id": None,
        "array_task": None,
        "het_job_id": None,
        "het_offset": None,
        "eligible_s": one["submit_s"],
        "name": "job",
        "qos": "normal",
        "partition": "gpu",
        "state": "COMPLETED" if over else "RUNNING" if one["start_s"] is not None else "PENDING",
        "exit_code": "0:0",
        "elapsed_s": max(0, elapsed_s),
        "suspended_s": 0,
        "n_nodes": len(one["nodes"]),
        "nodes": ",".join(one["nodes"]),
        "tres_requested": "{}",
        "tres_allocated": "{}",
        "admin_comment": "",
        "requested_mgpu": None,
        "allocated_mgpu": one["mgpu"],
        "granted_mgpu": one["mgpu"],
        "ugpucore": None,
        "ugpumem": None,
        "coverage": None,
        "no_process_mgpu_s": None,
        "energy_j": None,
        "app": None,
        "app_field": None,
        "derive_due": 0,
        **given,
    }


@dataclass(frozen=True)
class _Record:
    names: tuple[str, ...]

    def row(
        self, segment: str, device: str, run_id: int, job_id: int, node: str, mgpu: int | None
    ) -> list[Any]:
        """Return a record with the part of a device that a run had."""
        empty = pack_statistics({})
        return [segment, device, run_id, 0, "c", job_id, 0, 1, node, "b", 1, 1, 1, 2, 1.0, 1.0, mgpu, empty]


RECORD = _Record(
    (
        *("segment", "device", "run_id", "match_due", "cluster", "job_id", "restart", "prolog_s", "node"),
        *(
            "boot_id",
            "seq",
            "final",
            "first_s",
            "last_s",
            "allocated_s",
            "sampled_s",
            "granted_mgpu",
            "statistics",
        ),
    )
)
