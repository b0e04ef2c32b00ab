"""A recorded run becomes a profile with its application, GPU model and input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import delete

from slurm_gpu.client.application_profiles import profile_of, recorded_profiles
from slurm_gpu.client.database_client import DatabaseClient, DeviceTimeline, Run, RunTimeline
from slurm_gpu.colocation.profiles.profile import ProfilePhase
from slurm_gpu.database.storage.schema import metadata
from slurm_gpu.wire import DeviceFacts, Host, Timeline
from tests.database.running_server import Running
from tests.database.samples import T0, gpu, host, record, row, segment
from tests.database.test_run_detail import account, ship

RUN = Run(
    id="17",
    full=True,
    cluster="c",
    job_id=17,
    array_job_id=None,
    array_task=None,
    het_job_id=None,
    het_offset=None,
    user="alice",
    account="a",
    qos="q",
    partition="p",
    state="COMPLETED",
    submit_s=0,
    eligible_s=0,
    start_s=0,
    end_s=40,
    elapsed_s=38,
    suspended_s=0,
    time_limit_s=None,
    nodes="n1",
    gpu_type="v100",
    n_nodes=1,
    n_gpus=1.0,
    wait_h=0.0,
    submit_wait_h=0.0,
    run_h=0.01,
    app="PyTorch",
    app_field="deep learning",
    device_facts={
        "GPU-1": DeviceFacts(uuid="GPU-1", node="n1", at_s=0, name="Tesla V100", memory_mib=16000.0)
    },
)


def watched(**params: str) -> Host:
    return Host(
        cluster="c",
        job_id=17,
        restart=0,
        prolog_s=0,
        node="n1",
        boot_id="b",
        segment="s",
        seq=0,
        final=True,
        first_s=0,
        last_s=40,
        app="PyTorch",
        app_params=params,
    )


def recorded(*devices: bytes | None) -> RunTimeline:
    rows = [
        DeviceTimeline(
            node="n1",
            device=f"GPU-{at}",
            timeline=levels and Timeline(width_s=4, start_s=0, series={"util": levels, "mem_used": levels}),
        )
        for at, levels in enumerate(devices, 1)
    ]
    return RunTimeline(id="17", job_id=17, submit_s=0, devices=tuple(rows))


LEVELS = bytes([125] * 10)


def test_a_run_has_its_application_card_input_and_phases() -> None:
    profile = profile_of(
        structs.replace(RUN, hosts=[watched(batch_size="64", dtype="fp16")]), recorded(LEVELS)
    )
    assert profile is not None
    assert (profile.application, profile.kind, profile.gpu_model) == (
        "PyTorch",
        "deep learning",
        "Tesla V100",
    )
    assert (profile.input_size, profile.parameters) == (64, (("dtype", "fp16"),))
    assert profile.phases == (ProfilePhase(seconds=38, util=0.5, memory_mib=8000.0),)


def test_without_the_cards_facts_slurms_type_names_it_and_no_memory_is_known() -> None:
    profile = profile_of(structs.replace(RUN, device_facts=None), recorded(LEVELS))
    assert profile is not None
    assert (profile.gpu_model, profile.phases[0].memory_mib) == ("v100", None)
    assert (profile.input_size, profile.parameters) == (None, ())


@pytest.mark.parametrize("size", ["0", "many", "nan", "1e999"])
def test_a_size_that_is_none_stays_a_parameter(size: str) -> None:
    profile = profile_of(structs.replace(RUN, hosts=[watched(batch_size=size)]), recorded(LEVELS))
    assert profile is not None
    assert (profile.input_size, profile.parameters) == (None, (("batch_size", size),))


def test_runs_of_which_too_little_is_known_have_no_profile() -> None:
    assert profile_of(structs.replace(RUN, app=None), recorded(LEVELS)) is None
    assert profile_of(RUN, recorded(None)) is None
    assert profile_of(RUN, recorded(LEVELS, LEVELS)) is None
    assert profile_of(RUN, recorded(bytes([255] * 9))) is None
    assert profile_of(structs.replace(RUN, gpu_type=None, device_facts=None), recorded(LEVELS)) is None
    assert profile_of(RUN, replace(recorded(LEVELS), devices=None)) is None


@pytest.fixture
def site(server: Running) -> Running:
    """Return the server with empty tables."""
    with server.database.engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(delete(table))
    return server


def test_finished_runs_on_one_whole_gpu_are_read_from_the_server(site: Running) -> None:
    def shipped(job_id: int, number: int) -> list[Any]:
        one = {"job_id": job_id, "segment": segment(number), "node": "here"}
        course = Timeline(width_s=1, start_s=T0, series={"util": bytes([0] * 5 + [250] * 5)})
        return [record(**one, timeline=course), host(**one, app_params={"batch_size": "64"})]

    records, hosts = zip(*(shipped(job_id, job_id) for job_id in (1, 2, 3)), strict=True)
    ship(site, records=list(records), hosts=list(hosts), devices=[gpu(node="here")])
    account(
        site,
        row(nodes="here"),
        row(nodes="here", job_id=2, state="FAILED"),
        row(nodes="here", job_id=3, tres_allocated={"cpu": 1, "gres/gpu": 2}),
    )
    with DatabaseClient(site.config) as client:
        (profile,) = recorded_profiles(client, since_s=T0 - 100)
        assert list(recorded_profiles(client, until_s=T0 - 100)) == []
    assert (profile.application, profile.kind) == ("GROMACS", "molecular dynamics")
    assert (profile.gpu_model, profile.input_size) == ("NVIDIA A100-SXM4-80GB", 64)
    assert [(phase.seconds, phase.util) for phase in profile.phases] == [(5, 0.0), (5, 1.0)]
