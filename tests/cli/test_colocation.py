"""`slurm-gpu colocation` trains a model, compares it with other planners, and plans with the model file."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.cli.colocation.learned import measured_of
from slurm_gpu.colocation import trainer
from slurm_gpu.colocation.learned.job_array import script
from slurm_gpu.colocation.learned.models import read_any
from slurm_gpu.colocation.tables.pair_file import write_csv
from slurm_gpu.controller.colocation.serving import Planners
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.policy.lua.installed import ColocationInForce
from tests.cli.conftest import CommandLine

APPLICATIONS = ("light", "heavy", "loner")
SPEEDS = {
    ("light", "light"): (1.0, 1.0),
    ("light", "heavy"): (0.97, 0.96),
    ("light", "loner"): (0.5, 0.5),
    ("heavy", "heavy"): (0.6, 0.6),
    ("heavy", "loner"): (0.4, 0.4),
    ("loner", "loner"): (0.4, 0.4),
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "speeds.json"
    path.write_text(
        json.dumps(
            {
                "format": "slurm-gpu speeds 1",
                "gpu_model": "card",
                "applications": {name: {"alone_per_s": 1.0} for name in APPLICATIONS},
                "together": [
                    {"applications": list(pair), "speeds": list(speeds)} for pair, speeds in SPEEDS.items()
                ],
            }
        )
    )
    return path


@pytest.fixture
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for one epoch of each kind; tests/colocation tests the result of longer training."""
    usual = trainer.settings_of

    def short(name: str, *, seed: int = 0, again: bool = False) -> trainer.TrainingSettings:
        return replace(
            usual(name, seed=seed, again=again),
            taught_epochs=1,
            taught_queues=4,
            epochs=1,
            queues=2,
            plays=4,
            judged_queues=4,
        )

    monkeypatch.setattr(trainer, "settings_of", short)


# The model file, which the first test that needs it creates for all tests.
_TRAINED: list[bytes] = []


@pytest.fixture
def model(slurm_gpu: CommandLine, table: Path, tmp_path: Path, short_training: None) -> Path:
    out = tmp_path / "model.npz"
    if _TRAINED:
        out.write_bytes(_TRAINED[0])
        return out
    assert slurm_gpu("colocation", "train", str(table), "--out", str(out)) == 0
    assert slurm_gpu.out == f"{out}\n"
    assert "epochs in" in slurm_gpu.err
    _TRAINED.append(out.read_bytes())
    return out


def test_applications_left_out_of_the_training_are_counted(
    slurm_gpu: CommandLine, table: Path, tmp_path: Path, short_training: None, monkeypatch: pytest.MonkeyPatch
):
    n = len(json.loads(table.read_text())["applications"])
    monkeypatch.setattr(trainer, "MOST_APPLICATIONS", n - 1)
    assert slurm_gpu("colocation", "train", str(table), "--out", str(tmp_path / "some.npz")) == 0
    message = f"the table has {n} applications: the planner is trained on {n - 1} of them, drawn at random"
    assert message in slurm_gpu.err


def test_a_model_records_its_training_data_and_versions(model: Path, table: Path):
    data = read_any(model).provenance
    assert data["data"]["file"] == table.name
    assert data["data"]["gpu_model"] == "card"
    assert data["most_together"] == 2
    assert data["cap"] is None
    assert {"slurm_gpu", "python", "numpy"} == set(data["versions"])
    assert data["score"] < 1


def test_planners_are_compared(slurm_gpu: CommandLine, table: Path, model: Path):
    argv = ("colocation", "evaluate", str(table), "--lists", "2", "--jobs", "8", "--model", str(model))
    assert slurm_gpu(*argv, "--planners", "sjf, greedy,dqngpu") == 0
    lines = slurm_gpu.out.splitlines()
    assert [line.split()[0] for line in lines] == ["planner", "sjf", "greedy", "dqngpu"]
    assert lines[1].split()[1] == "1.000"
    assert slurm_gpu(*argv, "--planners", "sjf,dqngpu", "--json") == 0
    data = json.loads(slurm_gpu.out)
    ours = data["planners"][1]
    assert data["gpu_model"] == "card"
    assert ours["planner"] == "dqngpu"
    assert ours["gap"] >= 0
    assert ours["ratio_max"] <= 1
    assert ours["out_of_memory"] == 0


def test_at_80_columns_whole_columns_are_left_out(
    slurm_gpu: CommandLine, table: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    argv = (
        "colocation",
        "evaluate",
        str(table),
        "--lists",
        "1",
        "--jobs",
        "4",
        "--planners",
        "sjf,annealing",
    )
    assert slurm_gpu(*argv) == 0
    header, *lines = re.sub(r"\x1b\[[0-9;]*m", "", slurm_gpu.out).splitlines()
    assert max(map(len, (header, *lines))) <= 80
    assert header.split()[-1] == "ms_p99"
    assert [line.split()[0] for line in lines] == ["sjf", "annealing"]
    assert slurm_gpu.err == "columns not shown: ms_p50; use a wider terminal or --json\n"


def test_with_a_cap_no_job_is_slower(slurm_gpu: CommandLine, table: Path, model: Path):
    argv = ("colocation", "evaluate", str(table), "--lists", "2", "--jobs", "8", "--cap", "1.05", "--json")
    assert slurm_gpu(*argv, "--planners", "dqngpu", "--model", str(model)) == 0
    assert json.loads(slurm_gpu.out)["planners"][0]["worst_slowdown"] <= 1.05 + 1e-9


def test_a_plan_lists_the_co_runners_of_each_job(
    slurm_gpu: CommandLine, table: Path, model: Path, tmp_path: Path
):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("application,seconds\nlight,100\nheavy,100\nlight,100\nheavy,100\nloner,50\n")
    argv = ("colocation", "plan", str(table), str(jobs), "--planner", "annealing")
    assert slurm_gpu(*argv) == 0
    assert "5 jobs planned by annealing: " in slurm_gpu.out
    assert "Price saved, cost 1 (1/2 of a g4dn.4xlarge instead of g3.xlarge): " in slurm_gpu.out
    assert slurm_gpu(*argv, "--json") == 0
    data = json.loads(slurm_gpu.out)
    assert data["one_by_one_s"] == pytest.approx(450)
    by_job = {one["job"]: one for one in data["jobs"]}
    assert by_job[5]["co_runners"] == []
    assert by_job[5]["memory_mib"] is None
    assert 5 not in by_job[2]["co_runners"]
    assert by_job[2]["co_runners"]
    assert slurm_gpu("colocation", "plan", str(table), str(jobs), "--model", str(model)) == 0
    assert "5 jobs planned by dqngpu: " in slurm_gpu.out


@pytest.mark.parametrize(
    ("planner", "rc", "message"),
    [
        ("annealing", 0, "1 job planned by annealing: 100 s"),
        (
            "lp",
            3,
            "the Python module scipy.optimize is not installed: install slurm-gpu-learn, or",
        ),
        (
            "blossom",
            3,
            "networkx is not installed: install slurm-gpu[colocation] with pip",
        ),
    ],
)
def test_a_plan_needs_no_more_than_its_planner(
    table: Path, tmp_path: Path, planner: str, rc: int, message: str
):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("application,seconds\nlight,100\n")
    program = (
        "import sys; sys.modules |= dict.fromkeys(('scipy', 'networkx', 'sklearn', 'torch')); "
        "from slurm_gpu.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "colocation", "plan", str(table), str(jobs), "--planner", planner],
        capture_output=True,
        text=True,
        check=False,
    )
    assert message in done.stdout + done.stderr
    assert done.returncode == rc


def test_planners_that_need_use_over_time_print_a_warning(
    slurm_gpu: CommandLine, table: Path, tmp_path: Path, short_training: None
):
    argv = ("colocation", "train", str(table), "--out", str(tmp_path / "some.npz"))
    assert slurm_gpu(*argv, "--planner", "deeprm_max") == 0
    assert "deeprm_max needs the GPU use over time, which a table of speeds does not contain" in slurm_gpu.err
    assert slurm_gpu(*argv) == 0
    assert "looks at" not in slurm_gpu.err


def test_training_needs_torch_only_for_another_device(
    slurm_gpu: CommandLine, table: Path, tmp_path: Path, short_training: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "slurm_gpu.colocation.learned.torch_gradients", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    argv = ("colocation", "train", str(table), "--out", str(tmp_path / "some.npz"))
    assert slurm_gpu(*argv, "--device", "cuda") == 3
    assert "--device cuda: needs torch, which no package includes" in slurm_gpu.err
    assert slurm_gpu(*argv) == 0
    assert (tmp_path / "some.npz").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,s\n", "the columns 'name,s' must be 'application,seconds'"),
        ("application,seconds\nheavy,0\n", "jobs.csv:2:1: seconds '0' must be a number of seconds"),
        ("application,seconds\nheavy\n", "jobs.csv:2:1: the line has 1 cells, but the first line has 2"),
        (
            "application,seconds\n\nheavy,5,7\n",
            "jobs.csv:3:1: the line has 3 cells, but the first line has 2",
        ),
        ("application,seconds\nheavy,1e300\n", "must be a number of seconds from 0.001 to 10000000000"),
        ("application,seconds\nheavy,1h\n", "seconds '1h' must be a number of seconds"),
        ('application,seconds\n"heavy,5\n', "is not CSV: unexpected end of data"),
        ("", "the columns '' must be 'application,seconds'"),
        ("application,seconds\nother,5\n", "application 'other' is not in the table, which has light, heavy"),
        ("application,seconds\n", "the file has no jobs"),
    ],
)
def test_invalid_jobs_are_reported_with_their_line(
    slurm_gpu: CommandLine, table: Path, tmp_path: Path, text: str, message: str
):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(text)
    assert slurm_gpu("colocation", "plan", str(table), str(jobs)) == 2
    assert message in slurm_gpu.err


def test_jobs_are_read_as_spreadsheets_write_them(slurm_gpu: CommandLine, table: Path, tmp_path: Path):
    jobs = tmp_path / "jobs.csv"
    jobs.write_bytes(b"\xef\xbb\xbfapplication,seconds\r\n'light,100\r\n")
    assert slurm_gpu("colocation", "plan", str(table), str(jobs)) == 0
    assert "1 job planned by annealing: 100 s, without sharing 100 s" in slurm_gpu.out
    jobs.write_bytes(b"application,seconds\nl\xe4ght,100\n")
    assert slurm_gpu("colocation", "plan", str(table), str(jobs)) == 2
    assert f"{jobs}: is not UTF-8 text (byte " in slurm_gpu.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--planners", "best"), "unknown planner 'best'; planners: sjf, "),
        (("--planners", "deeprm_max"), "planner deeprm_max needs a model: write one with"),
        (("--gpu-model", "other"), "has no GPU model 'other'; available: card"),
        (("--jobs", "151", "--together", "3"), "--jobs 151: with --together 3, the limit is 150"),
    ],
)
def test_invalid_options_of_evaluate_are_reported(
    slurm_gpu: CommandLine, table: Path, options: tuple[str, ...], message: str
):
    assert slurm_gpu("colocation", "evaluate", str(table), *options) == 2
    assert message in slurm_gpu.err


def test_a_table_with_missing_speeds_is_refused(slurm_gpu: CommandLine, table: Path):
    data = json.loads(table.read_text())
    data["together"].pop()
    table.write_text(json.dumps(data))
    assert slurm_gpu("colocation", "evaluate", str(table)) == 2
    assert "card: no speed of 'loner' with 'loner'; measure it, or predict it" in slurm_gpu.err


def test_missing_speeds_are_predicted_on_request(slurm_gpu: CommandLine, table: Path, tmp_path: Path):
    data = json.loads(table.read_text())
    data["together"] = data["together"][:2]
    table.write_text(json.dumps(data))
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("application,seconds\nlight,100\nheavy,100\n")
    argv = ("colocation", "plan", str(table), str(jobs), "--json")
    assert slurm_gpu(*argv) == 2
    assert "no speed of 'light' with 'loner' (and 5 more of 9)" in slurm_gpu.err
    assert slurm_gpu(*argv, "--predict") == 0
    assert f"6 speeds of 9 are not in {table}, and are predicted" in slurm_gpu.err
    assert [one["speed"] for one in json.loads(slurm_gpu.out)["jobs"]] == pytest.approx(
        [0.97, 0.97], abs=0.02
    )


@pytest.mark.parametrize(
    ("options", "rc", "message"),
    [
        (("--device", "abacus"), 2, "--device abacus: torch cannot use this device: "),
        (("--device", "meta"), 2, "--device meta: torch cannot use this device: "),
        (("--cap", "nan"), 2, "--cap nan: it must be a number above 1"),
        (
            ("--out", "nowhere/model.npz"),
            3,
            "nowhere/model.npz: cannot be written: nowhere is not a writable directory",
        ),
        (("--checkpoint", "nowhere/file"), 3, "nowhere/file: cannot be written: "),
        (("--sbatch", "2", "--gpu-model", "other"), 2, "has no GPU model 'other'; available: card"),
        (("--sbatch", "2", "--start", "nowhere.npz"), 2, "nowhere.npz: cannot be read: No such file"),
    ],
)
def test_invalid_options_of_train_are_reported_before_the_training(
    slurm_gpu: CommandLine, table: Path, options: tuple[str, ...], rc: int, message: str
):
    if "--device" in options:
        pytest.importorskip("torch")
    assert slurm_gpu("colocation", "train", str(table), *options) == rc
    assert message in slurm_gpu.err
    assert slurm_gpu.out == ""


def test_if_better_keeps_the_better_of_two_models(slurm_gpu: CommandLine, table: Path, model: Path):
    before = model.read_bytes()
    argv = ("colocation", "train", str(table), "--out", str(model), "--if-better")
    assert slurm_gpu(*argv) == 0
    assert "the existing model is at least as good, and is kept" in slurm_gpu.err
    assert model.read_bytes() == before
    assert slurm_gpu(*argv, "--cap", "1.05") == 0
    assert model.read_bytes() != before
    model.write_bytes(before[:-100])  # a truncated file, or a file of an older version
    assert slurm_gpu(*argv) == 0
    assert read_any(model).kind == "dqngpu"


def test_training_can_start_from_an_existing_model(slurm_gpu: CommandLine, table: Path, model: Path):
    again = model.with_name("again.npz")
    argv = ("colocation", "train", str(table), "--out", str(again), "--start", str(model))
    assert slurm_gpu(*argv) == 0
    assert read_any(again).provenance["score_after_imitation"] is None


def test_each_task_of_an_array_has_its_own_seed_and_checkpoint(slurm_gpu: CommandLine, table: Path):
    assert slurm_gpu("colocation", "train", str(table), "--sbatch", "4", "--cap", "1.1", "--predict") == 0
    text = slurm_gpu.out
    assert text.startswith("#!/bin/sh\n")
    assert "#SBATCH --array=0-3\n" in text
    assert f"colocation train {table} " in text
    assert "--cap 1.1 --predict --seed $SLURM_ARRAY_TASK_ID --checkpoint " in text
    assert slurm_gpu("colocation", "train", str(table), "--sbatch", "4", "--seed", "1") == 2


def test_an_array_quotes_any_path(tmp_path: Path):
    arguments = tmp_path / "seen"
    program = tmp_path / "a program"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {arguments}\n')
    program.chmod(0o755)
    text = script([str(program), "a b; touch $HOME"], tmp_path / "o u't.npz", 2)
    done = subprocess.run(
        ["sh"],
        input=text,
        text=True,
        check=False,
        env={"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "1", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0
    out = tmp_path / "o u't.npz"
    assert arguments.read_text().split("|")[:-1] == [
        "a b; touch $HOME",
        "--seed",
        "1",
        "--checkpoint",
        f"{out}.70.seed1",
        "--out",
        str(out),
        "--if-better",
    ]


def test_speeds_learned_by_slurm_gpuctld_train_a_planner_that_it_then_uses(
    slurm_gpu: CommandLine, short_training: None, tmp_path: Path
):
    store = ColocationStore()
    for key in ("alice/train", "bert"):
        store.ran_alone(key, 100, 0.3, 0.5)
    for one, other in (("alice/train", "bert"), ("bert", "alice/train"), ("bert", "bert")):
        store.ran_with(one, other, 0.8)
    write_csv(tmp_path / "learned.csv", [measured_of(store, "card")])
    model = tmp_path / "model.npz"
    policy = ColocationInForce("enforce", "throughput", None, 2, 0.75, 300, planner="dqngpu", model=model)
    planners = Planners()
    assert planners.server("gpu", policy, store, store.profiles).name == "annealing"
    train = ("colocation", "train", "--predict", str(tmp_path / "learned.csv"), "--out", str(model))
    assert slurm_gpu(*train) == 0
    assert planners.server("gpu", policy, store, store.profiles).name == "dqngpu"
    # Training continues with a new kind of job, and the new planner is used at once.
    store.ran_alone("md", 50, 0.2, 0.9)
    store.ran_with("md", "bert", 0.7), store.ran_with("bert", "md", 0.9)
    write_csv(tmp_path / "learned.csv", [measured_of(store, "card")])
    before = planners.server("gpu", policy, store, store.profiles).planner
    assert slurm_gpu(*train, "--start", str(model)) == 0
    server = planners.server("gpu", policy, store, store.profiles)
    assert server.name == "dqngpu"
    assert server.planner is not before
