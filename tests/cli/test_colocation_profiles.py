"""`slurm-gpu colocation profiles` and `nearest` collect profiles and find the nearest for a new job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_gpu.client.database_client import DeviceTimeline, RunTimeline
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.profiles.profile_file import read_profiles, write_profiles_csv, write_profiles_json
from slurm_gpu.wire import DeviceFacts, Timeline
from tests.cli.conftest import CommandLine, make_run
from tests.cli.test_job_detail import make_host

CARD = "NVIDIA A100-SXM4-80GB"
SMALL = ApplicationProfile(
    "resnet",
    CARD,
    (ProfilePhase(seconds=10, util=0.1), ProfilePhase(seconds=90, util=0.8, memory_mib=9000)),
    "training",
    64,
)
LARGE = ApplicationProfile(
    "resnet", CARD, (ProfilePhase(seconds=300, util=0.95, memory_mib=30000),), "training", 512
)
OTHER = ApplicationProfile("vgg", CARD, (ProfilePhase(seconds=50, util=0.9),), "training", 64)


@pytest.fixture
def recorded(slurm_gpu: CommandLine) -> CommandLine:
    """Add one run of GROMACS on a whole GPU."""
    facts = DeviceFacts(uuid="GPU-1", node="n1", at_s=0, name=CARD, memory_mib=80000.0)
    host = make_host(app_params={"atoms": "5000"})
    run = make_run(
        n_gpus=1.0,
        app="GROMACS",
        app_field="molecular dynamics",
        device_facts={"GPU-1": facts},
        hosts=(host,),
    )
    timeline = Timeline(width_s=360, start_s=run.start_s or 0, series={"util": bytes([125] * 10)})
    device = DeviceTimeline(node="n1", device="GPU-1", timeline=timeline)
    slurm_gpu.database.runs = [run, make_run(id="18", job_id=18)]
    slurm_gpu.database.run_timelines = [
        RunTimeline(id="17", job_id=17, submit_s=run.submit_s, devices=(device,))
    ]
    return slurm_gpu


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    write_profiles_csv(tmp_path / "a.csv", [SMALL, OTHER])
    write_profiles_json(tmp_path / "b.json", [LARGE])
    return tmp_path / "a.csv", tmp_path / "b.json"


@pytest.mark.parametrize("name", ["out.csv", "out.json"])
def test_recorded_runs_and_files_become_one_file(
    recorded: CommandLine, files: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    assert recorded("colocation", "profiles", str(out), *map(str, files), "--since", "7d") == 0
    assert recorded.out == f"{out}\n"
    assert recorded.err == "4 profiles of 4 runs\n"
    found = {one.application: one for one in read_profiles(out)}
    assert set(read_profiles(out)) >= {SMALL, LARGE, OTHER}
    assert (found["GROMACS"].gpu_model, found["GROMACS"].input_size) == (CARD, 5000)
    assert found["GROMACS"].phases == (ProfilePhase(seconds=3600, util=0.5),)


def test_files_only_merges_files_without_a_database(
    slurm_gpu: CommandLine, files: tuple[Path, Path], tmp_path: Path
) -> None:
    out = str(tmp_path / "out.json")
    assert slurm_gpu("colocation", "profiles", out, *map(str, files), "--files-only") == 0
    assert not slurm_gpu.database.asked
    assert set(read_profiles(tmp_path / "out.json")) == {SMALL, LARGE, OTHER}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("out.txt",), "ends in .csv or .json"),
        (("out.csv",), "no run since 30d has a profile"),
        (("out.csv", "--since", "soon"), "--since soon: use a date"),
        (("out.csv", "--files-only"), "--files-only requires FILES"),
        (("out.csv", "nowhere.csv"), "nowhere.csv: cannot be read"),
    ],
)
def test_invalid_options_of_profiles_are_reported(
    slurm_gpu: CommandLine, argv: tuple[str, ...], message: str
) -> None:
    assert slurm_gpu("colocation", "profiles", *argv) == 2
    assert message in slurm_gpu.err


def nearest(slurm_gpu: CommandLine, files: tuple[Path, Path], *argv: str) -> dict[str, object]:
    out = str(files[0].with_name("all.json"))
    assert slurm_gpu("colocation", "profiles", out, *map(str, files), "--files-only") == 0
    assert slurm_gpu("colocation", "nearest", out, *argv, "--json") == 0, slurm_gpu.err
    found: dict[str, object] = json.loads(slurm_gpu.out)
    return found


@pytest.mark.parametrize(
    ("argv", "application", "size", "distance"),
    [
        (("resnet", "--gpu-model", CARD, "--kind", "training", "--input-size", "64"), "resnet", 64, 0),
        (("resnet", "--gpu-model", CARD, "--input-size", "256"), "resnet", 512, 1),
        (("resnet", "--gpu-model", "H200", "--input-size", "64"), "resnet", 64, 0.5),
        (("alexnet", "--gpu-model", CARD, "--kind", "training", "--input-size", "512"), "resnet", 512, 8),
    ],
)
def test_an_unknown_job_gets_the_nearest_profile(
    slurm_gpu: CommandLine,
    files: tuple[Path, Path],
    argv: tuple[str, ...],
    application: str,
    size: float,
    distance: float,
) -> None:
    found = nearest(slurm_gpu, files, *argv)
    profile = found["profile"]
    assert isinstance(profile, dict)
    assert (profile["application"], profile["input_size"], found["distance"]) == (application, size, distance)


def test_the_distance_and_the_phases_are_printed(slurm_gpu: CommandLine, files: tuple[Path, Path]) -> None:
    argv = ("resnet", "--gpu-model", CARD, "--input-size", "32")
    assert slurm_gpu("colocation", "nearest", str(files[0]), *argv) == 0
    lines = slurm_gpu.out.splitlines()
    assert lines[0] == f"resnet on {CARD}: training, input 64, 1 run"
    assert lines[1].startswith("Distance 1: the same application with a different input")
    assert lines[3].split() == ["phase", "seconds", "util", "memory", "sm", "pcie"]
    assert [line.split() for line in lines[4:]] == [
        ["1", "10", "10%", "–", "–", "–"],
        ["2", "90", "80%", "9000M", "–", "–"],
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--parameter", "dtype"), "write NAME=VALUE, and each name only once"),
        (("--parameter", "a=1", "--parameter", "a=2"), "write NAME=VALUE, and each name only once"),
        (("--input-size", "nan"), "--input-size nan: it must be a number"),
        (("--input-size", "-3"), "-3.0 is not in the range"),
    ],
)
def test_invalid_inputs_are_reported(
    slurm_gpu: CommandLine, files: tuple[Path, Path], argv: tuple[str, ...], message: str
) -> None:
    assert slurm_gpu("colocation", "nearest", str(files[0]), "resnet", "--gpu-model", CARD, *argv) == 2
    assert message in slurm_gpu.err


def test_the_needed_number_of_shards_is_printed(slurm_gpu: CommandLine, files: tuple[Path, Path]) -> None:
    out = str(files[0].with_name("whole.json"))
    whole = ApplicationProfile(
        "bert", CARD, (ProfilePhase(seconds=90, util=0.8, memory_mib=9000),), "training", 64
    )
    write_profiles_json(Path(out), [whole, SMALL])
    argv = ("colocation", "nearest", out, "bert", "--gpu-model", CARD, "--shards", "8", "--gpu-memory", "80G")
    assert slurm_gpu(*argv) == 0
    assert slurm_gpu.out.splitlines()[-1] == (
        "The job needs 2 of 8 shards, for at most 9000 MiB plus 25% headroom, on a GPU with 81920 MiB: "
        "sbatch --gres=shard:2"
    )
    assert slurm_gpu(*argv, "--input-size", "128", "--json") == 0
    assert json.loads(slurm_gpu.out)["shards"] == {
        "needed": None,
        "of": 8,
        "why": "the profile has a smaller input, 64",
    }
    assert slurm_gpu(*argv, "--input-size", "128") == 0
    assert slurm_gpu.out.splitlines()[-1].startswith(
        "The number of shards (of 8) that the job needs is unknown"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("--shards", "8"),
            "--shards and --gpu-memory require each other, as in --shards 8 --gpu-memory 80G",
        ),
        (("--gpu-memory", "80G"), "--shards and --gpu-memory require each other"),
        (("--shards", "8", "--gpu-memory", "80"), "--gpu-memory: '80' is not an amount of memory"),
        (("--shards", "8", "--gpu-memory", "0G"), "--gpu-memory 0G: no GPU has this much memory"),
        (("--shards", "0", "--gpu-memory", "80G"), "'--shards': 0 is not in the range 1<=x<=1024"),
    ],
)
def test_shards_and_gpu_memory_are_required_together(
    slurm_gpu: CommandLine, files: tuple[Path, Path], argv: tuple[str, ...], message: str
) -> None:
    assert slurm_gpu("colocation", "nearest", str(files[0]), "resnet", "--gpu-model", CARD, *argv) == 2
    assert message in slurm_gpu.err


def test_files_without_a_profile_are_named(slurm_gpu: CommandLine, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    write_profiles_csv(empty, [])
    out = str(tmp_path / "out.csv")
    assert slurm_gpu("colocation", "profiles", out, str(empty), "--files-only") == 2
    assert f"{empty}: no profiles found" in slurm_gpu.err
