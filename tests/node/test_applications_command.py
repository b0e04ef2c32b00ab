"""`slurm-gpud applications` shows each recognised application, the reason, and all errors in the rules."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.node.application.command import (
    ProcessVerdict,
    best_of,
    exit_code,
    explained_job,
    without_slurms_own,
)
from slurm_gpu.node.application.evidence import ProcessEvidence
from slurm_gpu.node.application.recognition import recognise
from slurm_gpu.node.application.rules import check_rules
from slurm_gpu.node.main import main
from slurm_gpu.node.process.procfs import Processes

RULES = """
version: 1
applications:
  Waiting:
    field: patience
    priority: 60
    any: [{executable: 'python*', arguments: 'sys\\.stdin'}]
    parameters: {batch_size: '--batch-size (\\d{1,5})'}
  Python:
    any: [{executable: 'python*'}]
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "applications.yaml"
    path.write_text(RULES)
    return path


def test_the_application_of_a_process_is_explained(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, "--batch-size", "32", "--password", "hunter2"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        site = str(rules.parent / "slurm-gpu.yaml")
        assert main(["applications", "--pid", str(run.pid), "--config", site]) == 0
        output = capsys.readouterr().out
        assert main(["applications", "--pid", str(run.pid), "--json", "--rules", str(rules)]) == 0
        (verdict,) = json.loads(capsys.readouterr().out)
        run.communicate()
    assert f"{run.pid}  Waiting (patience)\n" in output
    assert "because      executable python" in output
    assert f"{rules}:4:3, priority 60" in " ".join(output.split())
    assert "parameters   batch_size=32\n" in output
    assert "passed over  Python (50)\n" in output
    assert "hunter2" not in output
    assert verdict["app"] == "Waiting"
    assert verdict["app_params"] == {"batch_size": "32"}
    assert verdict["container"] is False


def test_an_unrecognised_process_is_shown_with_its_traces(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        # When the process answers, its libraries are mapped.
        run.stdin.write(b"?")
        assert run.stdout.read(1) == b"?"
        assert main(["applications", "--rules", str(rules), "--pid", str(run.pid)]) == 1
        run.kill()
    output = capsys.readouterr().out
    assert "not recognised" in output
    assert "libc.so.6" in output


def test_a_process_that_has_exited(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["true"]) as run:
        pass
    pids = [str(run.pid), str(os.getpid())]
    assert main(["applications", "--rules", str(rules), "--pid", *pids]) == 3
    assert "cannot be read" in capsys.readouterr().out


def test_the_best_process_determines_the_job_s_application() -> None:
    rules = check_rules(parse_yaml(RULES, "rules.yaml"))
    nothing, python, waiting = (
        ProcessVerdict(pid, evidence, recognise(evidence, rules, lambda _: None))
        for pid, evidence in enumerate(
            (
                ProcessEvidence(pid=0, executable="bash"),
                ProcessEvidence(pid=1, executable="python3"),
                ProcessEvidence(pid=2, executable="python3", arguments="sys.stdin"),
            )
        )
    )
    gone = ProcessVerdict(3, None)
    lines = [line for lines in explained_job([nothing, python, python, waiting, gone]) for line in lines]
    assert lines[0] == "      2  Waiting (patience)"
    assert lines[-1] == "         others       2 × Python, 1 × bash (not recognised), 1 × gone"
    assert exit_code([best_of([nothing, waiting])]) == 0
    assert exit_code([best_of([gone, nothing])]) == 1
    assert exit_code([best_of([gone])]) == 3


class Owned(Processes):
    """Processes with a known owner only; processes that are not listed have exited."""

    def __init__(self, uids: Mapping[int, int]) -> None:
        super().__init__()
        self._uids = uids

    def uid(self, pid: int) -> int:
        if pid not in self._uids:
            raise FileNotFoundError
        return self._uids[pid]


def test_slurm_s_own_processes_are_not_the_application() -> None:
    processes = Owned({5: 0, 6: 0, 7: 1001, 8: 1001})
    assert without_slurms_own(processes, [5, 6, 7, 8]) == [7, 8]
    assert without_slurms_own(processes, [5, 6, 9]) == [5, 6, 9]  # process 9 has exited


def test_a_job_not_on_this_node_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["applications", "--job", "987654321", "--node", "n1"]) == 3
    assert capsys.readouterr().err == "job 987654321 has no process in a cgroup on node n1\n"


def test_checking_the_rules(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["applications", "--check", "--rules", str(rules)]) == 0
    assert "2 applications, 2 alternatives, no errors" in capsys.readouterr().out
    assert main(["applications", "--check", "--json", "--rules", str(rules)]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["path"] == str(rules)
    waiting = {"app": "Waiting", "app_field": "patience", "priority": 60, "rule": f"{rules}:4:3", "traces": 1}
    assert output["applications"][0] == waiting
    assert output["applications"][1]["app"] == "Python"
    rules.write_text(RULES.replace("priority: 60", "priority: high").replace("any: [{exec", "all: [{exec"))
    assert main(["applications", "--check", "--rules", str(rules)]) == 2
    mistakes = capsys.readouterr().err.splitlines()
    assert mistakes[0].startswith(f"{rules}:5:5: applications.Waiting lacks any")
    assert any(f"{rules}:6:15: priority: 'high' must be a whole number" in line for line in mistakes)
    assert main(["applications", "--check", "--rules", str(rules.parent / "none.yaml")]) == 2


def test_the_shipped_rules_are_checked_where_a_site_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["applications", "--check", "--config", "/nonexistent/slurm-gpu.yaml"]) == 0
    assert "molecular dynamics" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--pid", "x"], ["--pid", "0"], ["--check", "--pid", "1"], ["--pdi"]])
def test_wrong_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["applications", *words])
    assert caught.value.code == 2


@pytest.mark.parametrize("job", ["10_1", "3+0"])
def test_an_array_task_id_is_rejected_with_a_hint(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["applications", "--job", job])
    assert stopped.value.code == 2
    output = capsys.readouterr().err
    assert f"'{job}' has its own job ID on a node; get it with `squeue -j {job} -o '%i %A'`" in output


@pytest.mark.parametrize("address", ["1.2.3", "n1", ""])
def test_an_invalid_source_address_is_rejected(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--source-address", address])
    assert stopped.value.code == 2
    assert f"'{address}' is not an address such as 192.0.2.17" in capsys.readouterr().err
