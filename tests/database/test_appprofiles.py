"""What the database recorded of a run becomes a profile: whose, of which card, with which input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_gpu.colocation.profile import Phase
from slurm_gpu.database.appprofiles import profile_of, recorded_profiles
from slurm_gpu.database.client import DeviceTimeline, Run, RunPage, RunTimeline
from slurm_gpu.records import DeviceFacts, Host, Timeline

RUN = Run(
    id="17", full=True, cluster="c", job_id=17, array_job_id=None, array_task=None, het_job_id=None,
    het_offset=None, user="alice", account="a", qos="q", partition="p", state="COMPLETED", submit_s=0,
    eligible_s=0, start_s=0, end_s=40, elapsed_s=38, suspended_s=0, time_limit_s=None, nodes="n1",
    gpu_type="v100", n_nodes=1, n_gpus=1.0, wait_h=0.0, submit_wait_h=0.0, run_h=0.01, app="PyTorch",
    app_field="deep learning",
    device_facts={
        "GPU-1": DeviceFacts(uuid="GPU-1", node="n1", at_s=0, name="Tesla V100", memory_mib=16000.0)
    },
)  # fmt: skip


def host(**params: str) -> Host:
    return Host(
        cluster="c", job_id=17, restart=0, prolog_s=0, node="n1", boot_id="b", segment="s", seq=0, final=True,
        first_s=0, last_s=40, app="PyTorch", app_params=params,
    )  # fmt: skip


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
    profile = profile_of(replace(RUN, hosts=[host(batch_size="64", dtype="fp16")]), recorded(LEVELS))
    assert profile is not None
    assert (profile.application, profile.kind, profile.gpu_model) == (
        "PyTorch",
        "deep learning",
        "Tesla V100",
    )
    assert (profile.input_size, profile.parameters) == (64, (("dtype", "fp16"),))
    assert profile.phases == (Phase(seconds=38, util=0.5, memory_mib=8000.0),)


def test_without_the_cards_facts_slurms_type_names_it_and_no_memory_is_known() -> None:
    profile = profile_of(replace(RUN, device_facts=None), recorded(LEVELS))
    assert profile is not None
    assert (profile.gpu_model, profile.phases[0].memory_mib) == ("v100", None)
    assert (profile.input_size, profile.parameters) == (None, ())


@pytest.mark.parametrize("size", ["0", "many", "nan", "1e999"])
def test_a_size_that_is_none_stays_a_parameter(size: str) -> None:
    profile = profile_of(replace(RUN, hosts=[host(batch_size=size)]), recorded(LEVELS))
    assert profile is not None
    assert (profile.input_size, profile.parameters) == (None, (("batch_size", size),))


def test_runs_of_which_too_little_is_known_have_no_profile() -> None:
    assert profile_of(replace(RUN, app=None), recorded(LEVELS)) is None
    assert profile_of(RUN, recorded(None)) is None
    assert profile_of(RUN, recorded(LEVELS, LEVELS)) is None
    assert profile_of(RUN, recorded(bytes([255] * 9))) is None
    assert profile_of(replace(RUN, gpu_type=None, device_facts=None), recorded(LEVELS)) is None
    assert profile_of(RUN, replace(recorded(LEVELS), devices=None)) is None


class Answers:
    """A client whose database has these runs."""

    def __init__(self, *runs: Run) -> None:
        self._runs = runs
        self.asked: list[dict[str, object]] = []

    def all_runs(self, **filters: object) -> list[Run]:
        self.asked.append(filters)
        return list(RunPage(runs=self._runs, cursor=None).runs)

    def run(self, job: str) -> list[Run]:
        return [run for run in self._runs if run.id == job]

    def timelines(self, job: str) -> list[RunTimeline]:
        return [recorded(LEVELS)] if self.run(job) else []


def test_only_finished_runs_on_one_whole_gpu_are_asked_for() -> None:
    client = Answers(
        RUN,
        replace(RUN, id="18", n_gpus=0.5),
        replace(RUN, id="19", n_gpus=2.0),
        replace(RUN, id="20", full=False),
    )
    found = list(recorded_profiles(client, since_s=5))  # type: ignore[arg-type]
    assert len(found) == 1
    assert client.asked == [{"states": ("COMPLETED",), "since_s": 5}]
