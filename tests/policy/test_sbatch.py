"""An sbatch command line is read as sbatch reads it, as far as the policy can see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpu.errors import UsageError
from slurm_gpu.policy.sbatch import parse_sbatch
from slurm_gpu.policy.script import INFINITE, NO_VAL


def desc(*words: str, environ: dict[str, str] | None = None) -> dict[str, object]:
    return dict(parse_sbatch(["sbatch", *words], environ or {}).description(1001, "alice"))


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--gpus=2"], "tres_per_job", "gres/gpu:2"),
        (["-G", "a100:2"], "tres_per_job", "gres/gpu:a100:2"),
        (["-Ga100:1,v100:1"], "tres_per_job", "gres/gpu:a100:1,gres/gpu:v100:1"),
        (["--gres=gpu:2,shard:1"], "tres_per_node", "gres/gpu:2,gres/shard:1"),
        (["--gres", "gres:gpu:2"], "tres_per_node", "gres/gpu:2"),
        (["--gres=none"], "tres_per_node", None),
        (["--gres=shard:1", "--gpus-per-node=2"], "tres_per_node", "gres/shard:1,gres/gpu:2"),
        (["--gpus-per-task=1"], "tres_per_task", "gres/gpu:1"),
        (["-N", "2-4"], "min_nodes", 2),
        (["-N2"], "max_nodes", 2),
        (["--nodes=1k"], "min_nodes", 1024),
        (["-w", "n[1-3]"], "min_nodes", 3),
        (["-n", "8"], "num_tasks", 8),
        (["--ntasks-per-node=4"], "ntasks_per_node", 4),
        (["-t", "90"], "time_limit", 90),
        (["-t", "1-2:30"], "time_limit", 1590),
        (["-t", "0:30"], "time_limit", 1),
        (["-t", "0"], "time_limit", INFINITE),
        (["--time=unlimited"], "time_limit", INFINITE),
        ([], "time_limit", NO_VAL),
        (["--array=0-9%4"], "array_inx", "0-9%4"),
        (["-A", "vision"], "account", "vision"),
        (["--part=gpu"], "partition", "gpu"),  # any beginning that fits one option
        (["-HQp", "gpu"], "partition", "gpu"),
        (["--exclusive", "--nice", "--mem=4G", "--mail-type", "END", "-q", "high"], "qos", "high"),
        (["--gpus=1", "--gpus=3"], "tres_per_job", "gres/gpu:3"),
    ],
)  # fmt: skip
def test_options(words: list[str], field: str, value: object) -> None:
    assert desc(*words, "--wrap=true")[field] == value


def test_command_line_beats_environment_beats_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n# a comment\n\n#SBATCH --gpus=1 --time=10 # not --gpus=9\n"
        "#SBATCH -p 'gpu' -A nlp\nsrun true\n#SBATCH --gpus=7\n"
    )
    read = desc(
        "-t", "30", str(script), "--gpus=99", environ={"SBATCH_TIMELIMIT": "20", "SBATCH_PARTITION": "long"}
    )
    assert (read["tres_per_job"], read["time_limit"], read["partition"], read["account"]) == (
        "gres/gpu:1", 30, "long", "nlp",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus=1"], "no job script"),
        (["--frobnicate", "x", "--wrap=true"], "does not know --frobnicate, nor whether 'x' is its value"),
        (["--gpu=1", "--wrap=true"], "--gpu could be --gpu-bind or --gpu-freq or --gpus"),
        (["-t", "soon", "--wrap=true"], "--time: 'soon' is not a Slurm time"),
        (["-N", "many", "--wrap=true"], "--nodes: 'many' must be a number or a range"),
        (["-n", "-4", "--wrap=true"], "--ntasks: '-4' must be a whole number"),
        (["--wrap=true", "--gpus"], "--gpus needs a value"),
        (["/nonexistent/job.sh"], "/nonexistent/job.sh cannot be read"),
        (["-Z", "--wrap=true"], "-Z is not an option of sbatch that explain knows"),
    ],
)
def test_what_cannot_be_judged_is_said(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        desc(*words)


def test_an_unknown_option_that_stands_alone_is_passed_over_with_a_note() -> None:
    request = parse_sbatch(["sbatch", "--frobnicate=3", "--wrap=true"], {})
    assert request.notes == ("--frobnicate is unknown to explain and was passed over",)


def test_het_jobs_are_not_guessed_at(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gpus=1\n#SBATCH hetjob\n#SBATCH --gpus=2\n")
    with pytest.raises(UsageError, match="heterogeneous"):
        desc(str(script))


@pytest.mark.parametrize(
    ("words", "shared"), [([], 65534), (["--exclusive"], 0), (["--exclusive=user"], 2), (["-s"], 1)]
)
def test_who_has_nodes_to_himself(words: list[str], shared: int) -> None:
    assert desc(*words, "--wrap=true")["shared"] == shared
