"""sbatch command lines are parsed as sbatch parses them, as far as the policy depends on them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from slurm_gpu.errors import UsageError
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.slurm.job_desc import INFINITE


def desc(*words: str, environ: dict[str, str] | None = None) -> dict[str, object]:
    return dict(parse_command(["sbatch", *words], environ or {}).description(1001, "alice"))


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--gpus=2"], "tres_per_job", "gres/gpu:2"),
        (["-G", "a100:2"], "tres_per_job", "gres/gpu:a100:2"),
        (["-Ga100:1,v100:1"], "tres_per_job", "gres/gpu:a100:1,gres/gpu:v100:1"),
        (["--gpus=a100"], "tres_per_job", "gres/gpu:a100"),
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
        ([], "time_limit", None),
        (["--array=0-9%4"], "array_inx", "0-9%4"),
        (["-A", "vision"], "account", "vision"),
        (["--part=gpu"], "partition", "gpu"),  # any unambiguous abbreviation
        (["-HQp", "gpu"], "partition", "gpu"),
        (["--exclusive", "--nice", "--mem=4G", "--mail-type", "END", "-q", "high"], "qos", "high"),
        (["--gpus=1", "--gpus=3"], "tres_per_job", "gres/gpu:3"),
        # Values that sbatch of Slurm 22.05 fills in.
        ([], "min_cpus", 1),
        (["-n4", "-c2"], "min_cpus", 8),
        (["-n4", "-c2"], "pn_min_cpus", 2),
        (["-N2", "--ntasks-per-node=3"], "min_cpus", 6),
        (["-N2"], "min_cpus", 2),
        (["--mincpus=3"], "pn_min_cpus", 3),
        (["--cpus-per-gpu=8"], "cpus_per_tres", "gres/gpu:8"),
        (["--mem=4G"], "min_mem_per_node", 4096),
        (["--mem=500"], "min_mem_per_node", 500),
        (["--mem=0"], "min_mem_per_node", 0),
        (["--mem-per-cpu=1536M"], "min_mem_per_cpu", 1536),
        (["--mem-per-gpu=1t"], "mem_per_tres", "gres/gpu:1048576"),
    ],
)
def test_options(words: list[str], field: str, value: object) -> None:
    assert desc(*words, "--wrap=true").get(field) == value


def test_the_command_line_overrides_the_environment_and_the_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n# a comment\n\n#SBATCH --gpus=1 --time=10 # not --gpus=9\n"
        "#SBATCH -p 'gpu' -A nlp\nsrun true\n#SBATCH --gpus=7\n"
    )
    read = desc(
        "-t", "30", str(script), "--gpus=99", environ={"SBATCH_TIMELIMIT": "20", "SBATCH_PARTITION": "long"}
    )
    assert (read["tres_per_job"], read["time_limit"], read["partition"], read["account"]) == (
        "gres/gpu:1",
        30,
        "long",
        "nlp",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus=1"], "no job script"),
        (
            ["--nosuch", "--wrap=true"],
            "--nosuch is not a known option of sbatch; leave it out",
        ),
        (["--partion=x", "--wrap=true"], "--partion is not a known option .* did you mean --partition"),
        (["--pty", "--wrap=true"], "--pty is not a known option of sbatch"),
        (["--gpu=1", "--wrap=true"], "--gpu could be --gpu-bind or --gpu-freq or --gpus"),
        (["-t", "soon", "--wrap=true"], "--time: 'soon' is not a Slurm time"),
        (["-N", "many", "--wrap=true"], "--nodes: 'many' must be a number or a range"),
        (["-n", "-4", "--wrap=true"], "--ntasks: '-4' must be a whole number of 1 or more"),
        (["--wrap=true", "--gpus"], "--gpus needs a value"),
        (["/nonexistent/job.sh"], "/nonexistent/job.sh cannot be read"),
        (["-Z", "--wrap=true"], "-Z is not a known option of sbatch"),
    ],
)
def test_a_command_that_cannot_be_judged_is_an_error(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        desc(*words)


@pytest.mark.parametrize("word", ["qsub", "squeue", "17"])
def test_other_commands_are_not_mistaken_for_scripts(word: str) -> None:
    with pytest.raises(
        UsageError,
        match=rf"'{word}' is neither a command \(sbatch, srun, salloc\) nor an existing job script",
    ):
        parse_command([word, "job.sh"], {})


TYPES = {"a100", "h100"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus=-1"], "--gpus: '-1' must be a number, such as 2 or a100:2 (GPU types here: a100, h100)"),
        (["--gpus=foo"], "--gpus: 'foo' must be a number, such as 2 or"),
        (["--gpus="], "--gpus: '' must be a number"),
        (["--gpus-per-task=1.5"], "--gpus-per-task: '1.5' must be a number"),
        (["--gres=gpu:-1"], "--gres: 'gpu:-1' must be a number, such as gpu:2 or gpu:a100:2 (GPU types"),
        (["--gres=gpu:"], "--gres: 'gpu:' must be NAME:NUMBER"),
        (["--gres=shard:x:y"], "--gres: 'shard:x:y' must be a number, such as shard:2"),
        (["--mem=4GG"], "--mem: '4GG' must be an amount of memory, such as 4G or 500M"),
        (["--array=a-b"], "--array: 'a-b' must be indexes, such as 0-9"),
        (["-N", "3-1"], "--nodes: '3-1' must be a number or a range"),
        (["-n0"], "--ntasks: '0' must be a whole number of 1 or more"),
        (["-c0"], "--cpus-per-task: '0' must be a whole number of 1 or more"),
    ],
)
def test_values_that_slurm_refuses_are_errors(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_command(["sbatch", *words, "--wrap=true"], {}).description(1001, "alice", TYPES)


@pytest.mark.parametrize("value", ["2", "A100:2", "h100:1,a100:1", "a100", "2k"])
def test_values_that_slurm_accepts_are_accepted(value: str) -> None:
    words = ["sbatch", f"--gpus={value}", f"--gres=gpu:{value.split(',')[0]},tmpfs:3G", "--wrap=true"]
    parse_command(words, {}).description(1001, "alice", TYPES)


def test_srun_and_salloc_have_no_script_and_their_own_options() -> None:
    srun = parse_command(["srun", "--pty", "-l", "-G", "3", "-W", "5", "bash", "-i"], {"SLURM_QOS": "high"})
    desc = srun.description(1001, "alice")
    assert (desc["tres_per_job"], desc["qos"], desc["script"], desc["argc"]) == (
        "gres/gpu:3",
        "high",
        None,
        2,
    )
    salloc = parse_command(
        ["salloc", "--gpus=3", "--no-shell"], {"SALLOC_TIMELIMIT": "5", "SBATCH_GPUS": "1"}
    )
    desc = salloc.description(1001, "alice")
    assert (desc["tres_per_job"], desc["time_limit"], desc["script"], desc["argc"]) == (
        "gres/gpu:3",
        5,
        None,
        0,
    )


def test_fields_for_a_sites_own_script_are_filled_in(tmp_path: Path) -> None:
    """Scripts of `chain:` may use these fields; the policy itself does not."""
    words = ["-Jtrain", "--comment=x y", "-L", "matlab:2", "-d", "afterok:7", "-x", "n3", "-C", "zone1&a100"]
    found = desc(*words, "--wckey=w", "--reservation=r", "-wn1", "--wrap=python t.py")
    fields = ("name", "comment", "licenses", "dependency", "exc_nodes", "features", "wckey", "req_nodes")
    assert [found[field] for field in fields] == [
        "train",
        "x y",
        "matlab:2",
        "afterok:7",
        "n3",
        "zone1&a100",
        "w",
        "n1",
    ]
    assert found["script"] == "#!/bin/sh\n# This script was created by sbatch --wrap.\n\npython t.py\n"
    job = tmp_path / "job.sh"
    job.write_text("#!/bin/bash\n#SBATCH --comment=c\nmodule load cuda\n")
    found = desc(str(job))
    assert (found["name"], found["comment"], found["script"]) == ("job.sh", "c", job.read_text())
    assert desc("--wrap=true")["name"] == "wrap"
    assert desc("--wrap=true", environ={"SBATCH_JOB_NAME": "night"})["name"] == "night"
    assert desc("--wrap=true", environ={"SBATCH_RESERVATION": "sg_7"})["reservation"] == "sg_7"


def test_a_script_can_be_read_from_standard_input() -> None:
    request = parse_command(["sbatch", "-t", "5"], {}, io.StringIO("#!/bin/sh\n#SBATCH --gpus=2 -t 9\n"))
    assert request.options == {"gpus": "2", "time": "5", "job-name": "sbatch"}
    with pytest.raises(UsageError, match="no job script"):
        parse_command(["sbatch", "-t", "5"], {}, io.StringIO(""))


@pytest.mark.parametrize(
    "words", [["sbatch", "-n1", ":", "-n2", "job.sh"], ["srun", "-n1", "a", ":", "-n2", "b"]]
)
def test_het_jobs_on_the_command_line_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="heterogeneous"):
        parse_command(words, {})


def test_het_jobs_in_a_script_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gpus=1\n#SBATCH hetjob\n#SBATCH --gpus=2\n")
    with pytest.raises(UsageError, match="heterogeneous"):
        desc(str(script))


@pytest.mark.parametrize(
    ("words", "shared"), [([], None), (["--exclusive"], 0), (["--exclusive=user"], 2), (["-s"], 1)]
)
def test_the_sharing_of_nodes(words: list[str], shared: int) -> None:
    assert desc(*words, "--wrap=true").get("shared") == shared
