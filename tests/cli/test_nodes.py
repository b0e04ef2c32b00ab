"""`slurm-gpu nodes` works with the recorded Slurm, including as a process on a terminal and in a pipe."""

import csv
import dataclasses
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from slurm_gpu.client.database_client import NodeReport
from slurm_gpu.wire import DeviceFacts, Live, LiveDevice
from slurm_gpu.wire.answers.verdicts import ReportedSuspect, Verdicts
from tests.cli.conftest import START_S, CommandLine
from tests.slurm.recorded import DATA

_ROOT = Path(__file__).resolve().parents[2]


def test_the_jobs_of_each_gpu_are_listed(slurm_gpu: CommandLine):
    assert slurm_gpu("nodes", "--json") == 0
    nodes = {node["node"]: node for node in json.loads(slurm_gpu.out)["nodes"]}
    n1, n3 = nodes["n1"], nodes["n3"]
    assert (n1["gpus"], n1["gpus_free"], n1["cpus_free"]) == ({"a100": 4}, 0, 29)
    by_user = {(job["user"], *job["gpus"]) for job in n1["jobs"]}
    assert by_user == {("alice", 1, 2), ("alice", 3), ("bob", 0)}
    (shards,) = (job for job in n3["jobs"] if job["shared_gpus"])
    assert (shards["user"], shards["shared_gpus"], shards["gpus"]) == ("alice", [3], [])
    # The four GPUs have 16 shards; 4 are in use and 4 belong to a GPU that is allocated whole.
    assert (n3["gpus_free"], n3["shards_free"]) == (2, 8)


def test_nothing_is_free_on_a_drained_node(slurm_gpu: CommandLine):
    slurm_gpu("nodes", "--json")
    (n4,) = (node for node in json.loads(slurm_gpu.out)["nodes"] if node["node"] == "n4")
    assert (n4["in_service"], n4["reason"], n4["cpus"], n4["cpus_free"]) == (False, "disk is full", 16, 0)


def test_the_table_shows_the_jobs_of_each_gpu(slurm_gpu: CommandLine):
    slurm_gpu("nodes")
    assert "GPU 1-2 alice 25 (6d23h)" in slurm_gpu.out
    assert "GPU 3 (all shards) alice 32" in slurm_gpu.out
    assert "CPUs alice 34 (no limit)" in slurm_gpu.out
    assert "mixed+drain: disk is full" in slurm_gpu.out


def test_free_gpus_and_reasons_of_pending_jobs_are_summed_below(slurm_gpu: CommandLine):
    slurm_gpu("nodes")
    table, _, totals = slurm_gpu.out.partition("\n\n")
    assert "n1" in table
    assert totals.splitlines() == [
        "a100: 1 of 8 GPUs free",
        "v100: 2 of 4 GPUs free",
        "waiting: 32 jobs for 41 GPUs (30 BeginTime, 1 JobHeldUser, 1 Resources)",
    ]


def test_one_pending_job_is_shown_in_the_singular(slurm_gpu: CommandLine):
    waiting = [job for job in slurm_gpu.site.slurm.jobs() if job.state == "PENDING"]
    one = dataclasses.replace(
        waiting[0], reason="Priority", n_tasks=1, tres_requested={"gres/gpu": 1.0}, start_s=None
    )
    slurm_gpu.site.slurm.jobs = lambda job_ids=None: [one]  # type: ignore[method-assign]
    slurm_gpu("nodes")
    assert slurm_gpu.out.splitlines()[-1] == "waiting: 1 job for 1 GPU (1 Priority)"


def test_a_gpu_with_some_shards_in_use_is_shown_as_partly_used(slurm_gpu: CommandLine):
    changed = [
        dataclasses.replace(job, tres_allocated={"gres/shard": 3.0}) if job.job_id == 32 else job
        for job in slurm_gpu.site.slurm.jobs()
    ]
    slurm_gpu.site.slurm.jobs = lambda job_ids=None: changed  # type: ignore[method-assign]
    slurm_gpu("nodes")
    assert "GPU 3 (some shards) alice 32" in slurm_gpu.out


def test_a_job_that_does_not_run_is_marked(slurm_gpu: CommandLine):
    jobs = slurm_gpu.site.slurm.jobs()
    states = {25: "SUSPENDED", 32: "COMPLETING"}
    changed = [dataclasses.replace(job, state=states.get(job.job_id, job.state)) for job in jobs]
    slurm_gpu.site.slurm.jobs = lambda job_ids=None: changed  # type: ignore[method-assign]
    slurm_gpu("nodes")
    assert "GPU 1-2 alice 25 (suspended)" in slurm_gpu.out
    assert "GPU 3 (all shards) alice 32 (completing)" in slurm_gpu.out
    slurm_gpu("nodes", "--json")
    jobs = [job for node in json.loads(slurm_gpu.out)["nodes"] for job in node["jobs"]]
    assert {job["job_id"]: job["state"] for job in jobs if job["job_id"] in (25, 32, 34)} == {
        25: "suspended",
        32: "completing",
        34: "running",
    }


def test_components_of_a_heterogeneous_job_have_slurms_names(slurm_gpu: CommandLine):
    slurm_gpu("nodes")
    assert "GPU 0 bob 35+0 (" in slurm_gpu.out
    slurm_gpu("nodes", "--json")
    ids = {job["id"]: job["job_id"] for node in json.loads(slurm_gpu.out)["nodes"] for job in node["jobs"]}
    assert (ids["35+0"], ids["35+1"]) == (35, 36)


def test_filters(slurm_gpu: CommandLine):
    slurm_gpu("nodes", "--free", "--csv")
    assert [row["node"] for row in csv.DictReader(io.StringIO(slurm_gpu.out))] == ["n2", "n3"]
    slurm_gpu("nodes", "--partition", "cpu", "--csv")
    (row,) = csv.DictReader(io.StringIO(slurm_gpu.out))
    assert (row["node"], row["gpus"], row["in_service"]) == ("n4", "0", "False")


def test_an_unknown_partition_is_an_error(slurm_gpu: CommandLine):
    assert slurm_gpu("nodes", "--partition", "gpus") == 2
    assert slurm_gpu.err == (
        "slurm-gpu: --partition gpus: no node is in this partition; the partitions are cpu, gpu\n"
    )
    assert slurm_gpu("nodes", "--partition", "cpu", "--free") == 0
    assert slurm_gpu.err == "no nodes match\n"


def test_csv_has_the_keys_of_json(slurm_gpu: CommandLine):
    slurm_gpu("nodes", "--json")
    keys = set(json.loads(slurm_gpu.out)["nodes"][0])
    slurm_gpu("nodes", "--csv")
    rows = {row["node"]: row for row in csv.DictReader(io.StringIO(slurm_gpu.out))}
    assert set(rows["n1"]) == keys | {"gpu_types"}
    assert (rows["n1"]["gpus"], rows["n1"]["gpus_allocated"], rows["n1"]["gpu_types"]) == ("4", "4", "a100")
    assert (rows["n3"]["features"], rows["n4"]["reason"]) == ("zone2", "disk is full")


def test_live_values_of_gpus_are_shown_with_their_jobs(slurm_gpu: CommandLine):
    def facts(uuid: str, index: int) -> DeviceFacts:
        return DeviceFacts(uuid=uuid, node="n1", at_s=5, index=index)

    busy = LiveDevice(util_pct=97.0, mem_used_frac=0.4, power_w=300.0)
    idle = LiveDevice(util_pct=0.0, mem_used_frac=0.0, power_w=12.0)
    devices = {"GPU-a": idle, "GPU-b": busy, "GPU-c": LiveDevice(jobs=(7,))}
    slurm_gpu.database.lives = {"n1": Live(at_s=5.0, devices=devices, host={"cpu_pct": 3.0})}
    known_facts = (facts("GPU-b", 0), facts("GPU-a", 1), facts("GPU-c", 2))
    slurm_gpu.database.reports = [NodeReport(node="n1", last_seen_s=5.0, version=None, devices=known_facts)]
    assert slurm_gpu("nodes", "--live") == 0
    lines = {
        line.split()[0]: " ".join(line.split()) for line in slurm_gpu.out.splitlines() if line[:1] == "n"
    }
    assert lines["node"] == "node state GPUs free util % now memory % now W now used by"
    assert lines["n1"].startswith("n1 mixed 0/4 a100 97 0 – 40 0 – 300 12 – GPU")
    assert lines["n2"].split("a100")[1].split()[:3] == ["–", "–", "–"]
    slurm_gpu("nodes", "--live", "--json")
    nodes = {node["node"]: node for node in json.loads(slurm_gpu.out)["nodes"]}
    assert nodes["n1"]["live"]["devices"]["GPU-b"] == {
        "util_pct": 97.0,
        "mem_used_frac": 0.4,
        "power_w": 300.0,
        "jobs": [],
    }
    assert nodes["n2"]["live"] is None
    assert slurm_gpu("nodes", "--live", "--csv") == 2


@pytest.mark.parametrize("n_known", [0, 1])
def test_without_gpu_indexes_no_live_values_are_shown(slurm_gpu: CommandLine, n_known: int):
    devices = {uuid: LiveDevice(util_pct=97.0) for uuid in ("GPU-a", "GPU-b")}
    slurm_gpu.database.lives = {"n1": Live(at_s=5.0, devices=devices, host={})}
    known_facts = (DeviceFacts(uuid="GPU-b", node="n1", at_s=5, index=0),)[:n_known]
    slurm_gpu.database.reports = [NodeReport(node="n1", last_seen_s=5.0, version=None, devices=known_facts)]
    slurm_gpu("nodes", "--live")
    assert "97" not in slurm_gpu.out
    slurm_gpu("nodes", "--live", "--json")
    assert slurm_gpu.out.count("97.0") == 2


def test_on_a_narrow_terminal_values_of_many_gpus_wrap(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    devices = {f"GPU-{n}": LiveDevice(util_pct=100.0 - n, mem_used_frac=0.5) for n in range(8)}
    slurm_gpu.database.lives = {"n1": Live(at_s=5.0, devices=devices, host={})}
    known_facts = tuple(DeviceFacts(uuid=f"GPU-{n}", node="n1", at_s=5, index=n) for n in range(8))
    slurm_gpu.database.reports = [NodeReport(node="n1", last_seen_s=5.0, version=None, devices=known_facts)]
    slurm_gpu("nodes", "--live")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", slurm_gpu.out).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("n1"))
    assert max(map(len, lines)) <= 60
    assert "100 99 98 97 50 50 50 50" in " ".join(lines[at].split())
    assert "96 95 94 93 50 50 50 50" in " ".join(lines[at + 1].split())
    assert slurm_gpu.err == "columns not shown: state; use a wider terminal or --json\n"


def test_without_live_slurm_gpudbd_is_not_queried(slurm_gpu: CommandLine):
    slurm_gpu.site.connect_database = None  # type: ignore[assignment]
    assert slurm_gpu("nodes") == 0


_RECORDED_COMMAND = """\
#!/bin/sh
mark=$(echo "$*" | grep -o '<[0-9a-f]*>' | head -n 1)
case "$(basename "$0") $*" in
"scontrol "*"show node") file=nodes.txt ;;
"scontrol "*"show job") file=jobs.txt ;;
"scontrol "*"show job "*) file=job-${{4#job-}}.txt; eval "file=job-\\${{$#}}.txt" ;;
"squeue "*) file=labels.txt ;;
*) exit 9 ;;
esac
sed "s/<MARK>/$mark/g" {data}/$file
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Slurm's commands print the recordings."""
    for name in ("scontrol", "squeue"):
        command = tmp_path / name
        command.write_text(_RECORDED_COMMAND.format(data=DATA))
        command.chmod(0o755)
    return {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(_ROOT),
    }


_ARGV = [sys.executable, "-m", "slurm_gpu.cli.main", "nodes"]


def _on_terminal(environ: dict[str, str], columns: int) -> str:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(_ARGV, env=environ, stdout=slave, stderr=slave, stdin=slave) as process:
        os.close(slave)
        printed = b""
        while True:
            try:
                printed += (part := os.read(master, 65536))
            except OSError:  # the other end of the terminal was closed
                break
            if not part:
                break
        assert process.wait() == 0
    os.close(master)
    return printed.decode()


def test_at_80_columns_every_line_fits_and_nothing_is_shortened(environ: dict[str, str]):
    printed = _on_terminal({**environ, "NO_COLOR": "1"}, 80)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in printed
    for value in ("81.7G/97.7G", "alice 25", "(all shards)", "mixed+drain:", "disk", "full"):
        assert value in " ".join(printed.split())


@pytest.mark.parametrize(
    ("columns", "left_out"), [(40, "shards, memory, CPUs"), (50, "shards, memory"), (64, None)]
)
def test_on_a_narrower_terminal_whole_columns_are_left_out_and_named(
    environ: dict[str, str], columns: int, left_out: str | None
):
    printed = re.sub(r"\x1b\[[0-9;]*m", "", _on_terminal({**environ, "NO_COLOR": "1"}, columns))
    table, _, remark = printed.partition("columns not shown: ")
    assert remark.partition("\n")[0].strip() == (
        f"{left_out}; use a wider terminal or --json" if left_out else ""
    )
    assert max(map(len, table.splitlines())) <= columns
    words = set(table.split())
    assert {"0/4", "2/4", "alice", "GPU", "1-2", "25"} <= words
    assert ("29/32" in words) == (columns > 40)
    assert ("81.7G/97.7G" in words) == (columns == 64)
    assert "…" not in table


def test_colors_are_used_on_a_terminal_unless_disabled(environ: dict[str, str]):
    assert "\x1b[" in _on_terminal(environ, 80)
    assert "\x1b[3" not in _on_terminal({**environ, "NO_COLOR": "1"}, 80)


def test_in_a_pipe_there_are_no_colors_and_every_row_is_one_line(environ: dict[str, str]):
    done = subprocess.run(_ARGV, env=environ, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout
    assert "n4    mixed+drain: disk is full" in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())


def test_a_closed_pipe_is_no_error(environ: dict[str, str]):
    command = " ".join(_ARGV) + " | head -n 1"
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("node ")
    assert done.stderr == ""


def suspects(*some: ReportedSuspect) -> Verdicts:
    return Verdicts(as_of_s=START_S, watched=9, verdicts=(), suspects=some)


SUSPECT = ReportedSuspect(
    node="n17",
    device="GPU-b",
    jobs=4,
    users=3,
    healthy=1,
    first_s=START_S,
    last_s=START_S + 3600,
    next_step='scontrol update nodename=n17 state=drain reason="slurm-gpu: GPU 3"',
)


def test_suspect_gpus_are_listed_with_the_command_that_drains_their_node(slurm_gpu: CommandLine):
    facts = (DeviceFacts(uuid="GPU-b", node="n17", at_s=5, index=3),)
    slurm_gpu.database.reports = [NodeReport(node="n17", last_seen_s=5.0, version=None, devices=facts)]
    slurm_gpu.database.reported_verdicts = suspects(SUSPECT, replace(SUSPECT, node="n9", device=None))
    assert slurm_gpu("nodes", "--suspect") == 0
    assert slurm_gpu.rows()[1][:6] == ["n17", "3", "(GPU-b)", "4", "3", "1"]
    assert slurm_gpu.rows()[2][:5] == ["n9", "several", "4", "3", "1"]
    assert f"  {SUSPECT.next_step}\n" in slurm_gpu.out
    slurm_gpu("nodes", "--suspect", "--json")
    assert json.loads(slurm_gpu.out)["suspects"][0] == asdict(SUSPECT)


def test_only_named_nodes_are_shown(slurm_gpu: CommandLine):
    assert slurm_gpu("nodes", "n1", "n[3]", "--json") == 0
    assert [node["node"] for node in json.loads(slurm_gpu.out)["nodes"]] == ["n1", "n3"]
    assert slurm_gpu("nodes", "n1") == 0
    assert "of 4 GPUs free" in slurm_gpu.out


@pytest.mark.parametrize(
    ("name", "message"), [("n9", "n9: no such node; the nodes are n[1-"), ("n[1", "n[1")]
)
def test_an_unknown_node_is_reported_with_the_known_ones(slurm_gpu: CommandLine, name: str, message: str):
    assert slurm_gpu("nodes", name) == 2
    assert message in slurm_gpu.err


def test_without_suspects_or_diagnosis_a_remark_is_printed(slurm_gpu: CommandLine):
    slurm_gpu.database.reported_verdicts = suspects()
    assert slurm_gpu("nodes", "--suspect") == 0
    assert (slurm_gpu.out, slurm_gpu.err[:26]) == ("", "no GPU is suspect in jobs ")
    slurm_gpu.database.reported_verdicts = replace(suspects(), as_of_s=None)
    slurm_gpu("nodes", "--suspect")
    assert slurm_gpu.err.startswith("slurm-gpudbd has not checked running jobs yet\n")


@pytest.mark.parametrize("more", ["--free", "--live", "--csv", "--partition=gpu"])
def test_suspect_can_only_be_combined_with_json(slurm_gpu: CommandLine, more: str):
    assert slurm_gpu("nodes", "--suspect", more) == 2
    assert "--suspect can be combined only with --json" in slurm_gpu.err
