"""Build application profiles from the runs in the database that the caller may see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slurm_gpu.client.database_client import DatabaseClient, Run, RunTimeline
from slurm_gpu.colocation.profiles.phases import phases_of
from slurm_gpu.colocation.profiles.profile import ApplicationProfile

_FINISHED = ("COMPLETED",)
_WHOLE_GPU = 1.0
SIZES = ("batch_size", "atoms", "input_bytes", "topology_bytes")
"""The parameters that contain the input size of an application; the first one with a known value is used."""


def recorded_profiles(client: DatabaseClient, **filters: Any) -> Iterator[ApplicationProfile]:
    """Yield a profile of each finished run of a known application on one whole GPU, newest first.

    `filters` are the filters of DatabaseClient.runs, such as since_s. Runs on several GPUs, on a part of a
    GPU or without a GPU are omitted, as are runs whose timeline is missing or empty. Each run has its own
    profile; colocation.library merges the profiles of one application and input. Raise the same errors as
    DatabaseClient.
    """
    for run in client.all_runs(**{"states": _FINISHED, **filters}):
        if run.full and run.app is not None and run.n_gpus == _WHOLE_GPU and run.n_nodes == 1:
            profile = _of_run(client, run)
            if profile is not None:
                yield profile


def _of_run(client: DatabaseClient, listed: Run) -> ApplicationProfile | None:
    run = next((one for one in client.run(listed.id) if one.submit_s == listed.submit_s), None)
    timeline = next((one for one in client.timelines(listed.id) if one.submit_s == listed.submit_s), None)
    if run is None or timeline is None:
        return None
    return profile_of(run, timeline)


def profile_of(run: Run, recorded: RunTimeline) -> ApplicationProfile | None:
    """Return the profile of a run, or None if too little was recorded."""
    devices = [one for one in recorded.devices or () if one.timeline is not None]
    if run.app is None or len(devices) != 1 or devices[0].timeline is None:
        return None
    facts = (run.device_facts or {}).get(devices[0].device)
    model = (facts.name if facts is not None else None) or run.gpu_type
    phases = phases_of(devices[0].timeline, facts.memory_mib if facts is not None else None, run.elapsed_s)
    known = any(phase.util is not None or phase.memory_mib is not None for phase in phases)
    if model is None or not known:
        return None
    parameters = _parameters(run)
    size = next((name for name in SIZES if _number(parameters.get(name)) is not None), None)
    others = tuple(sorted((name, text) for name, text in parameters.items() if name != size))
    return ApplicationProfile(
        application=run.app,
        gpu_model=model,
        phases=tuple(phases),
        kind=run.app_field or "",
        input_size=None if size is None else _number(parameters[size]),
        parameters=others,
    )


def _parameters(run: Run) -> dict[str, str]:
    """Return the parameters of the run's application from the first segment that recognised it."""
    for host in run.hosts or ():
        if host.app == run.app and host.app_params:
            return dict(host.app_params)
    return {}


def _number(text: str | None) -> float | None:
    try:
        found = float(text) if text is not None else None
    except ValueError:
        return None
    return found if found is not None and 0 < found < float("inf") else None
