"""Details of synthetic runs: their use of hosts, ended runs with records, and one job array."""

from __future__ import annotations

import msgspec

from slurm_gpu.wire import DeviceFacts, Host, Mean, Record
from slurm_gpu.wire.answers.runs import Run

_MEMORY_MIB = 143_771.0
# Each GPU comes with this many CPUs and this much memory.
_CPUS, _MIB = 16, 250_000
ARRAY, _N_TASKS = 900, 60
_STATES = ("COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "COMPLETED", "TIMEOUT", "COMPLETED", "CANCELLED")


def with_use(run: Run) -> Run:
    """Return a run with records and the use of CPUs and memory on each of its nodes."""
    n_gpus = run.n_gpus or 0
    devices = run.devices or ()
    return msgspec.structs.replace(
        run,
        ugpucore=run.ugpucore if run.ugpucore is not None else 52.0 if devices else None,
        ugpumem=run.ugpumem if run.ugpumem is not None else 55.0 if devices else None,
        tres_allocated={"cpu": _CPUS * n_gpus, "mem": _MIB * n_gpus, "gres/gpu": n_gpus},
        hosts=[_host(run, record) for record in {record.node: record for record in devices}.values()],
        device_facts={record.device: _facts(record) for record in devices},
    )


def ended_run(run: Run) -> Run:
    """Return an ended run with a record of each GPU on one node."""
    first_s, last_s = run.start_s or 0, run.end_s or 0
    records = [_record(run, gpu, first_s, last_s) for gpu in range(int(run.n_gpus or 0))]
    return with_use(
        msgspec.structs.replace(
            run, devices=records, nodes="n1", n_nodes=1, elapsed_s=last_s - first_s, coverage=1.0
        )
    )


def array_runs(like: Run, now_s: float) -> list[Run]:
    """Return one run for each task of an array, whose last tasks are running and pending."""
    runs = []
    for task in range(_N_TASKS):
        start_s = int(now_s) - 60 * (_N_TASKS - task) if task < 50 else None
        is_ended = task < 40
        run = msgspec.structs.replace(
            like,
            id=f"{ARRAY}_{task}",
            job_id=ARRAY + task,
            array_job_id=ARRAY,
            array_task=task,
            n_gpus=1.0,
            n_gpus_requested=1.0,
            state=_STATES[task % len(_STATES)] if is_ended else "PENDING" if start_s is None else "RUNNING",
            submit_s=int(now_s) - 7200,
            start_s=start_s,
            end_s=start_s + 1100 if is_ended and start_s is not None else None,
            devices=(),
        )
        runs.append(ended_run(run) if is_ended else run)
    return runs[::-1]


def _record(run: Run, gpu: int, first_s: int, last_s: int) -> Record:
    seconds = float(max(1, last_s - first_s))
    return Record(
        cluster="synthetic",
        job_id=run.job_id,
        restart=0,
        prolog_s=first_s,
        node="n1",
        boot_id="boot",
        segment=f"{run.job_id:016x}",
        device=f"GPU-{gpu:08x}",
        seq=1,
        final=True,
        first_s=first_s,
        last_s=last_s,
        allocated_s=seconds,
        sampled_s=seconds,
        util_hist_ms={round(run.ugpucore or 0): int(1000 * seconds)},
        mem_used_mib=Mean(seconds, 60_000.0, 0.0, 80_000.0),
    )


def _host(run: Run, record: Record) -> Host:
    seconds = record.last_s - record.first_s
    return Host(
        cluster="synthetic",
        job_id=run.job_id,
        restart=0,
        prolog_s=record.prolog_s,
        node=record.node,
        boot_id="boot",
        segment=record.segment,
        seq=1,
        final=record.final,
        first_s=record.first_s,
        last_s=record.last_s,
        cpu_s=2.5 * seconds,
        rss_max_mib=40_000.0,
    )


def _facts(record: Record) -> DeviceFacts:
    return DeviceFacts(
        uuid=record.device,
        node=record.node,
        at_s=record.first_s,
        memory_mib=_MEMORY_MIB,
        index=int(record.device.rsplit("-", 1)[-1], 16),
    )
