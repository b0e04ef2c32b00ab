"""`slurm-gpu diagnose ID` prints the verdict on a job from the data of slurm-gpudbd."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from slurm_gpu.wire import Host
from slurm_gpu.wire.answers.runs import DeviceTimeline
from tests.cli.conftest import START_S, CommandLine, make_record, make_run
from tests.cli.diagnosed import BEGINS_S, add_job, add_running_job
from tests.diagnose.test_steps import a_table, a_training
from tests.diagnose.training import Training

_DOCS = Path(__file__).resolve().parents[2] / "docs"


def make_host(**more) -> Host:
    return Host(
        cluster="neuron",
        job_id=17,
        restart=0,
        prolog_s=START_S,
        node="n1",
        boot_id="b",
        segment="0" * 16,
        seq=1,
        final=True,
        first_s=START_S,
        last_s=START_S + 3600,
        **more,
    )


def a_slow_gpu() -> Training:
    training = Training(n_bins=200, width_s=16.0)
    training.clock[9, 100:] *= 0.8
    return training


def test_a_slow_gpu_is_named_with_its_node_and_time(slurm_gpu: CommandLine):
    add_job(slurm_gpu, a_slow_gpu())
    assert slurm_gpu("diagnose", "17") == 1
    assert "Job 17: slow or failing (clock), confidence" in slurm_gpu.out
    assert "  who       n2 GPU 1\n" in slurm_gpu.out
    assert "  since     2026-11-21 19:4" in slurm_gpu.out
    assert "n2 GPU 1: SM clock 76%, its 15 peers 95%\n" in slurm_gpu.out
    assert "sbatch --exclude" in slurm_gpu.out


def test_a_healthy_job_exits_with_0(slurm_gpu: CommandLine):
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    assert slurm_gpu("diagnose", "17") == 0
    assert "Job 17: healthy" in slurm_gpu.out


@pytest.mark.parametrize(("n_earlier", "is_slow"), [(6, True), (3, False)])
def test_a_gpu_without_peers_is_compared_with_earlier_runs(
    slurm_gpu: CommandLine, n_earlier: int, is_slow: bool
):
    database = slurm_gpu.database
    runs, timelines = [], []
    for number in range(n_earlier + 1):
        training = Training(n=1, n_bins=200, width_s=16.0)
        training.clock *= 0.7 if number == n_earlier else 1.0
        add_job(slurm_gpu, training)
        own = {"id": str(17 - n_earlier + number), "submit_s": START_S - 9000 + number}
        runs.append(structs.replace(database.runs[0], app="PyTorch", gpu_type="h100", **own))
        timelines.append(replace(database.run_timelines[0], submit_s=own["submit_s"]))
    database.runs, database.run_timelines = runs, timelines
    slurm_gpu("diagnose", "17")
    assert ("SM clock 66%, compared with 95% in 6 earlier runs" in slurm_gpu.out) is is_slow
    filters = {"user": runs[-1].user, "app": "PyTorch", "gpu_type": "h100", "states": ("COMPLETED",)}
    assert filters.items() <= database.asked.items()


@pytest.mark.parametrize(
    ("state", "app", "verdict"),
    [
        ("CANCELLED", "PyTorch", "inconclusive (stalled at its end)"),
        ("TIMEOUT", None, "inconclusive (stalled at its end)"),
        ("COMPLETED", "PyTorch", "healthy"),
        ("CANCELLED", "vLLM", "healthy"),  # a server without requests
    ],
)
def test_a_job_that_ended_while_stalled_is_not_called_healthy(
    slurm_gpu: CommandLine, state: str, app: str | None, verdict: str
):
    training = Training(n_bins=200, width_s=16.0)
    training.runs[-20:] = False
    add_job(slurm_gpu, training)
    run = slurm_gpu.database.runs[0]
    slurm_gpu.database.runs = [structs.replace(run, state=state, app=app, end_s=BEGINS_S + 3200)]
    slurm_gpu("diagnose", "17")
    assert f"Job 17: {verdict}" in slurm_gpu.out


def test_json_has_the_documented_keys(slurm_gpu: CommandLine):
    add_job(slurm_gpu, a_slow_gpu())
    slurm_gpu("diagnose", "17", "--json")
    verdict = json.loads(slurm_gpu.out)
    assert verdict["verdict"]["culprits"] == [{"node": "n2", "device": "GPU-009", "rank": None}]
    text = (_DOCS / "diagnose.md").read_text()
    keys = {
        *verdict,
        *verdict["verdict"],
        *verdict["verdict"]["evidence"][0],
        *verdict["verdict"]["culprits"][0],
    }
    assert all(f"`{key}`" in text for key in keys)


def test_a_job_with_a_node_without_data_is_not_called_healthy(slurm_gpu: CommandLine):
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    slurm_gpu.database.runs = [structs.replace(run, n_gpus=24.0) for run in slurm_gpu.database.runs]
    assert slurm_gpu("diagnose", "17") == 0
    assert "Job 17: inconclusive" in slurm_gpu.out
    assert "only 16 of 24 GPUs have records" in slurm_gpu.out
    assert "100% coverage from 16 of its 24 GPUs\n" in slurm_gpu.out


def test_coverage_counts_only_gpus_with_data(slurm_gpu: CommandLine):
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    (run_timeline,) = slurm_gpu.database.run_timelines
    verdict = [item for item in run_timeline.devices or () if item.node == "n1"]
    slurm_gpu.database.run_timelines = [replace(run_timeline, devices=tuple(verdict))]
    assert slurm_gpu("diagnose", "17") == 0
    assert "100% coverage from 8 of its 16 GPUs\n" in slurm_gpu.out
    assert "8 GPUs on n2: no data" in slurm_gpu.out


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n_gpus": 0.0}, "job 17 has no GPUs"),
        ({"start_s": None, "end_s": None, "n_gpus": None}, "job 17 has not started yet"),
        ({"start_s": None, "n_gpus": None, "n_gpus_requested": 0.0}, "job 17 has no GPUs"),
        ({"start_s": None, "n_gpus": None}, "job 17 never started"),
        ({"end_s": None, "elapsed_s": 120}, "job 17 has no GPU data yet; try again in a minute"),
        (
            {"end_s": None},
            "no node has reported GPUs of job 17, which has run for 1h00m: run slurm-gpu doctor as",
        ),
        ({}, "job 17 has no GPU data"),
    ],
)
def test_a_job_without_data_is_an_error_with_a_reason(
    slurm_gpu: CommandLine, more: dict[str, object], why: str
):
    slurm_gpu.database.runs = [make_run(devices=(), **more)]
    assert slurm_gpu("diagnose", "17") == 2
    assert why in slurm_gpu.err


def test_throttled_time_is_read_from_the_records(slurm_gpu: CommandLine):
    add_job(slurm_gpu, a_slow_gpu(), throttle_s={"sw_power_cap": 3000.0, "hw_thermal_slowdown": 0.0})
    run = slurm_gpu.database.runs[0]
    hot = make_record("GPU-009", node="n2", throttle_s={"hw_thermal_slowdown": 1800.0})
    devices = tuple(hot if record.device == "GPU-009" else record for record in run.devices or ())
    slurm_gpu.database.runs = [make_run(devices=devices, device_facts=run.device_facts)]
    assert slurm_gpu("diagnose", "17") == 1
    assert "(throttled)" in slurm_gpu.out
    assert "throttled by heat or power supply 50%, its 15 peers 0.0%" in slurm_gpu.out


@pytest.mark.parametrize("silent", ["n1", "n2"])
def test_the_silence_of_a_node_is_no_change(slurm_gpu: CommandLine, silent: str):
    """Records of a running job arrive every few minutes, so one node's data may end five minutes earlier."""
    add_job(slurm_gpu, a_slow_gpu(), final=False)
    slurm_gpu.database.runs = [structs.replace(run, end_s=None) for run in slurm_gpu.database.runs]
    slurm_gpu("diagnose", "17", "--json")
    whole = json.loads(slurm_gpu.out)["verdict"]
    (course,) = slurm_gpu.database.run_timelines
    devices = [_until(item, -19) if item.node == silent else item for item in course.devices or ()]
    slurm_gpu.database.run_timelines = [replace(course, devices=devices)]
    assert slurm_gpu("diagnose", "17", "--json") == 1
    cut = json.loads(slurm_gpu.out)["verdict"]
    for key in ("cause", "kind", "culprits", "since_s", "until_s", "coverage"):
        assert cut[key] == whole[key], key
    assert cut["until_s"] is None


def _until(item: DeviceTimeline, end: int) -> DeviceTimeline:
    """Return the timeline without its last bins."""
    assert item.timeline is not None
    series = {name: levels[:end] for name, levels in item.timeline.series.items()}
    return replace(item, timeline=replace(item.timeline, series=series))


def test_shared_gpus_are_not_judged(slurm_gpu: CommandLine):
    add_job(slurm_gpu, a_slow_gpu(), granted_mgpu=250)
    assert slurm_gpu("diagnose", "17") == 0
    assert "inconclusive" in slurm_gpu.out
    assert "shared with other jobs" in slurm_gpu.out


def test_timings_of_steps_are_read_from_parquet(slurm_gpu: CommandLine, tmp_path: Path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    forward, backward = a_training()
    forward[:, 3] *= 2
    table = a_table(forward, backward)
    columns = {**table, "optype": pa.array(list(table["optype"])).dictionary_encode()}
    parquet.write_table(pa.table(columns), tmp_path / "steps.parquet")
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    assert slurm_gpu("diagnose", "17", "--steps", str(tmp_path / "steps.parquet")) == 1
    assert "workload imbalance (pipeline stage)" in slurm_gpu.out
    assert "most work: stage 3; no GPU is at fault" in slurm_gpu.out
    (tmp_path / "no.parquet").write_text("no")
    assert slurm_gpu("diagnose", "17", "--steps", str(tmp_path / "no.parquet")) == 2
    assert "no.parquet: cannot be read as Parquet (names of CSV files end in .csv): " in slurm_gpu.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("18",), "no job 18"),
        (("17", "--groups", "pp=2,pp=4"), "--groups: pp is given twice"),
        (("17", "--groups", "3-0"), "--groups: 3-0 begins with its last rank; write 0-3"),
        (("17", "--groups", "0-16"), "--groups: 0-16 is not among the ranks 0 to 15"),
        (("17", "--groups", "pp=3"), "--groups pp=3: 3 pipeline stages do not divide 16 ranks"),
        (("17", "--steps", "/nowhere.parquet"), "does not exist"),
    ],
)
def test_invalid_arguments_are_explained(slurm_gpu: CommandLine, argv, message):
    add_job(slurm_gpu, a_slow_gpu())
    assert slurm_gpu("diagnose", *argv) == 2
    assert message in slurm_gpu.err


def test_invalid_groups_are_refused_before_waiting_for_nodes(slurm_gpu: CommandLine):
    add_running_job(slurm_gpu, 4.0, 10.0)
    assert slurm_gpu("diagnose", "17", "--groups", "pp=3") == 2
    assert slurm_gpu.err.startswith("slurm-gpu: --groups pp=3: 3 pipeline stages do not divide 16")
    assert slurm_gpu.database.windows_asked == 0


def test_another_users_job_is_not_diagnosed(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(full=False, devices=None)]
    assert slurm_gpu("diagnose", "17") == 2
    assert "belongs to another user" in slurm_gpu.err


def test_a_page_is_written_atomically_and_only_its_owner_can_read_it(slurm_gpu: CommandLine, tmp_path: Path):
    add_job(slurm_gpu, a_slow_gpu())
    assert slurm_gpu("diagnose", "17", "--html", str(tmp_path / "page.html")) == 1
    page = tmp_path / "page.html"
    assert page.stat().st_mode & 0o777 == 0o600
    assert "slow or failing" in page.read_text("utf-8")
    assert "slow or failing" in slurm_gpu.out
    assert str(page) in slurm_gpu.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "slurm-gpu.yaml"]


def test_an_unwritable_page_is_reported(slurm_gpu: CommandLine, tmp_path: Path):
    add_job(slurm_gpu, a_slow_gpu())
    assert slurm_gpu("diagnose", "17", "--html", f"/proc/{os.getpid()}/page.html") == 3
    assert "cannot be written: No such file" in slurm_gpu.err


def test_an_invalid_page_path_is_refused_before_waiting_for_nodes(slurm_gpu: CommandLine, tmp_path: Path):
    add_running_job(slurm_gpu, 4.0, 10.0)
    os.mkfifo(tmp_path / "pipe")
    for file, message in (
        (tmp_path / "none" / "page.html", f"directory {tmp_path}/none does not exist"),
        (tmp_path / "pipe", "not a regular file"),
        ("/dev/null", "--html /dev/null: not a regular file"),
        ("", "not a regular file"),
    ):
        assert slurm_gpu("diagnose", "17", "--html", str(file)) == 2
        assert message in slurm_gpu.err
    assert slurm_gpu.database.windows_asked == 0
    assert Path("/dev/null").is_char_device()


def test_stages_come_from_the_arguments_of_the_program(slurm_gpu: CommandLine):
    add_job(slurm_gpu, Training(n_bins=200, width_s=16.0))
    run = slurm_gpu.database.runs[0]
    host = make_host(app="Megatron-LM", app_params={"pipeline_parallel": "2", "tensor_parallel": "4"})
    slurm_gpu.database.runs = [structs.replace(run, app="Megatron-LM", hosts=(host,))]
    assert slurm_gpu("diagnose", "17") == 0
    assert "compared  within stage 0: 8, stage 1: 8 GPUs; arguments of Megatron-LM" in slurm_gpu.out
    other = make_host(app="Megatron-LM", app_params={"pipeline_parallel": "3"})
    slurm_gpu.database.runs = [structs.replace(run, app="Megatron-LM", hosts=(other,))]
    assert slurm_gpu("diagnose", "17", "--json") == 0
    assert json.loads(slurm_gpu.out)["verdict"]["groups_by"] == "no groups with different roles were found"


def add_job_on_two_models(slurm_gpu: CommandLine):
    """Add a job on two nodes: the second node's GPUs are faster and wait for the first node's."""
    training = Training(n_bins=200, width_s=16.0)
    training.clock[8:] = 0.8
    add_job(slurm_gpu, training)
    (run,) = slurm_gpu.database.runs
    names = {w.device: "NVIDIA A100" if w.node == "n1" else "NVIDIA H100" for w in training.workers}
    facts = {uuid: replace(item, name=names[uuid]) for uuid, item in (run.device_facts or {}).items()}
    slurm_gpu.database.runs = [structs.replace(run, device_facts=facts)]


def test_gpus_are_compared_with_those_of_the_same_model(slurm_gpu: CommandLine):
    add_job_on_two_models(slurm_gpu)
    assert slurm_gpu("diagnose", "17") == 0
    assert "who " not in slurm_gpu.out
    assert "compared  within NVIDIA A100: 8, NVIDIA H100: 8 GPUs; models of the GPUs" in slurm_gpu.out


def test_stages_are_divided_by_gpu_model(slurm_gpu: CommandLine):
    add_job_on_two_models(slurm_gpu)
    (run,) = slurm_gpu.database.runs
    host = make_host(app="Megatron-LM", app_params={"pipeline_parallel": 4, "tensor_parallel": 1})
    slurm_gpu.database.runs = [structs.replace(run, hosts=(host,), app="Megatron-LM")]
    slurm_gpu("diagnose", "17", "--json")
    groups = json.loads(slurm_gpu.out)["verdict"]["groups"]
    assert [(name, len(members)) for name, members in groups.items()] == [
        ("stage 0, NVIDIA A100", 4),
        ("stage 1, NVIDIA A100", 4),
        ("stage 2, NVIDIA H100", 4),
        ("stage 3, NVIDIA H100", 4),
    ]


def test_a_suspended_job_is_not_reported_as_hanging(slurm_gpu: CommandLine):
    training = Training(n_bins=200, width_s=16.0)
    training.runs[150:] = False
    add_job(slurm_gpu, training)
    (run,) = slurm_gpu.database.runs
    for state, code in (("RUNNING", 1), ("SUSPENDED", 0)):
        slurm_gpu.database.runs = [structs.replace(run, state=state, end_s=None)]
        assert slurm_gpu("diagnose", "17") == code
    assert "but       it is suspended" in slurm_gpu.out


def test_control_characters_quoted_from_a_file_are_replaced(slurm_gpu: CommandLine, tmp_path: Path):
    add_job(slurm_gpu, a_slow_gpu())
    for number, head in enumerate(("rank,step", "\x1b[2Jrank,step")):
        (tmp_path / f"{number}.csv").write_text(f"{head}\n")
    assert slurm_gpu("diagnose", "17", "--steps", str(tmp_path)) == 2
    assert "\x1b" not in slurm_gpu.err
    assert "columns �[2Jrank,step, but other files have rank,step" in slurm_gpu.err
