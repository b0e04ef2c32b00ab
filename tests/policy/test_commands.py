"""Call `slurm-gpu policy` and `slurm-gpu explain` as admins and users do."""

from __future__ import annotations

import getpass
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.explain.explain import Explanation, explain
from slurm_gpu.policy.lua.bundle import lua_directory
from slurm_gpu.policy.lua.peers import digest_of
from slurm_gpu.policy.lua.script import ZoneDecision
from slurm_gpu.policy.pages.page import ONE_GPU
from slurm_gpu.slurm import submission
from slurm_gpu.slurm.client import QueuedJob, SlurmNode, SlurmSettings

POLICY = """\
version: 1
mode: enforce
groups: {vision: {accounts: [vision]}}
rules:
  - id: share
    for: vision
    per: user
    why: "Four each."
    limits: {gpus_total: 4}
"""

JOB_RULES = """\
version: 1
mode: enforce
groups: {gpu: {partitions: [gpu]}}
rules:
  - id: size
    for: gpu
    per: job
    why: "Large jobs use whole nodes."
    at_least: {gpus: 1, gpus_per_node: {8: 4}}
    exactly: {cpus_per_gpu: 4}
  - id: options
    for: gpu
    per: job
    why: "Other jobs are planned by your time limit."
    options: {time: required, nodelist: forbidden}
"""


@dataclass
class FakeSlurm:
    """A SlurmClient with one queue."""

    conf: Path
    queue: list[QueuedJob] = field(default_factory=list)

    def settings(self) -> SlurmSettings:
        raw = {"JobSubmitPlugins": "lua"}
        return SlurmSettings(
            cluster="c",
            version="22.05.8",
            slurm_user="slurm",
            slurm_user_uid=os.getuid(),
            conf_path=str(self.conf),
            raw=raw,
        )

    def nodes(self) -> list[SlurmNode]:
        return []

    def jobs(self, job_ids: Any = None) -> list[QueuedJob]:
        return self.queue

    def accounting(self, since_s: int, until_s: int | None = None, job_ids: Any = None) -> Any:
        raise AssertionError("these commands do not read Slurm's accounting")


@dataclass
class Cluster:
    root: Path
    slurm: FakeSlurm

    def run(self, *argv: str) -> int:
        site = CommandSite(config_path=self.root / "slurm-gpu.yaml", connect_slurm=lambda: self.slurm)
        return main(argv, site)

    def apply(self) -> int:
        return self.run(
            "policy", "apply", "--state-dir", str(self.root / "state"), "--run-dir", str(self.root / "run")
        )


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (tmp_path / "slurm-gpu.yaml").write_text("cluster: c\n")
    (tmp_path / "policy.yaml").write_text(POLICY)
    for name in ("SLURM_GPU_POLICY", "SLURM_GPU_RUN_DIR", "SLURM_GPU_POLICY_STATE"):
        monkeypatch.delenv(name, raising=False)
    partition = submission.Partition(name="gpu", is_default=True, default_time_s=3600, max_time_s=None)
    monkeypatch.setattr("slurm_gpu.cli.policy.explain.read_partitions", lambda run: [partition])
    monkeypatch.setattr(
        "slurm_gpu.cli.policy.explain.read_user_defaults",
        lambda user, account, run: submission.UserDefaults(account=account or "vision"),
    )
    return Cluster(tmp_path, FakeSlurm(tmp_path / "slurm.conf"))


QUEUE_NOTE = "this host has no current snapshot from slurm-gpuctld, so jobs were counted in Slurm's queue"


def queued(gpus: int, **more: Any) -> QueuedJob:
    return QueuedJob(
        job_id=7,
        array_job_id=None,
        array_task=None,
        n_tasks=1,
        het_job_id=None,
        name="j",
        user="x",
        uid=os.getuid(),
        account="vision",
        qos="normal",
        partition="gpu",
        state="PENDING",
        reason="",
        restarts=0,
        submit_s=1,
        eligible_s=1,
        start_s=None,
        end_s=None,
        time_limit_s=3600,
        n_nodes=1,
        nodes=[],
        tres_requested={"cpu": 1, "gres/gpu": gpus, "gres/gpu:a100": gpus},
        tres_allocated={},
        gpu_index={},
        gres_per_node="",
        features="",
        admin_comment="",
        **more,
    )


def test_check_exits_1_with_all_mistakes(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run("policy", "check") == 0
    (cluster.root / "policy.yaml").write_text(POLICY.replace("vision\n", "visin\n").replace("4}", "x}"))
    assert cluster.run("policy", "check") == 1
    has_advice = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1:3] for line in has_advice] == [["6", "10"], ["9", "26"]]


def test_apply_installs_the_script_and_an_invalid_policy_changes_nothing(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.apply() == 0
    script = cluster.root / "job_submit.lua"
    before = script.read_text()
    (cluster.root / "policy.yaml").write_text(POLICY.replace("4}", "x}"))
    assert cluster.apply() == 2
    assert "policy.yaml:9:26: gpus_total: 'x' must be a number" in capsys.readouterr().err
    assert script.read_text() == before


def test_a_dry_run_installs_nothing(cluster: Cluster) -> None:
    assert cluster.run("policy", "apply", "--dry-run") == 0
    assert not (cluster.root / "job_submit.lua").exists()


def test_show_prints_rules_with_reasons(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run("policy", "show") == 0
    page = capsys.readouterr().out
    assert (
        "share  (for vision: accounts vision)\n    Four each.\n    at most 4 GPUs running and pending" in page
    )
    assert cluster.run("policy", "show", "--json") == 0
    rule = json.loads(capsys.readouterr().out)["rules"][0]
    assert (rule["id"], rule["why"], rule["limits"]) == ("share", "Four each.", {"gpus_total": 4.0})


def test_show_reports_that_slurmctld_uses_another_script(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def first_line(*file: str) -> str:
        capsys.readouterr()
        assert cluster.run("policy", "show", *file) == 0
        return capsys.readouterr().out.splitlines()[0]

    assert (
        first_line() == "Rules for jobs on this cluster"
    )  # no script is installed, so this host cannot compare scripts
    cluster.apply()  # `policy show` does not read this --run-dir
    assert first_line() == "Rules for jobs on this cluster"
    (cluster.root / "policy.yaml").write_text(POLICY.replace("4}", "5}"))
    assert first_line().startswith("Not active as shown: job_submit.lua differs; `slurm-gpu policy apply`")
    other = cluster.root / "other.yaml"
    other.write_text(POLICY.replace("4}", "6}"))
    assert f"`slurm-gpu policy apply {other}` installs {other}" in first_line(str(other))
    capsys.readouterr()
    assert cluster.run("policy", "show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["in_force"] is False
    (cluster.root / "job_submit.lua").write_text("-- ours\n")
    assert first_line().startswith("Not active: job_submit.lua is not slurm-gpu's")


def test_show_explains_the_built_in_rule_on_shards(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("policy", "show")
    page = " ".join(capsys.readouterr().out.split())
    assert f"one-gpu (built in, where GPUs are divided into shards) {ONE_GPU}" in page
    assert f'why = "{ONE_GPU}"' in (lua_directory() / "limits.lua").read_text()


@pytest.mark.parametrize(("mode", "has_advice"), [("enforce", False), ("advise", True)])
def test_show_names_the_rule_on_reservations(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], mode: str, has_advice: bool
) -> None:
    cluster.run("policy", "show", "--json")
    assert json.loads(capsys.readouterr().out)["reservation"] is None
    placement = f"placement: {{mode: {mode}, reservations: {{required_gpus: 64}}}}\n"
    (cluster.root / "slurm-gpu.yaml").write_text(f"cluster: c\n{placement}")
    cluster.run("policy", "show")
    page = " ".join(capsys.readouterr().out.split())
    assert (
        "reservation (built in, set under placement: in slurm-gpu.yaml) Jobs with 64 GPUs or more need a"
        in page
    )
    assert ("Advice only: jobs that violate it are accepted" in page) == has_advice
    cluster.run("policy", "show", "--json")
    assert json.loads(capsys.readouterr().out)["reservation"] == {"required_gpus": 64, "mode": mode}


def test_check_warns_about_accounts_that_are_not_managed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster.root / "policy.yaml").write_text(POLICY + "manages: {accounts: [visions]}\n")
    assert cluster.run("policy", "check") == 0
    assert (
        "policy.yaml:3:30: account 'vision' is not in manages: accounts; did you mean visions?"
        in capsys.readouterr().err
    )
    (cluster.root / "policy.yaml").write_text(POLICY + 'manages: {accounts: ["Vis*"]}\n')
    assert cluster.run("policy", "check") == 0
    assert "is not in manages" not in capsys.readouterr().err


def test_check_warns_about_a_missing_script_of_chain(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    site = cluster.root / "site.lua"
    (cluster.root / "policy.yaml").write_text(POLICY + f"chain: {{after: {site}}}\n")
    assert cluster.run("policy", "check") == 0
    assert f"policy.yaml:{len(POLICY.splitlines()) + 1}:16: after: {site} does not exist" in (
        capsys.readouterr().err
    )
    site.touch()
    assert cluster.run("policy", "check") == 0
    assert capsys.readouterr().err == ""


def test_apply_by_an_ordinary_user_names_the_required_user(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert cluster.apply() == 2
    assert "run it as root or slurm (SlurmUser)" in capsys.readouterr().err
    assert cluster.run("policy", "apply", "--dry-run") == 0


def test_apply_reports_the_script_for_copies_on_other_hosts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, spool = cluster.slurm.settings(), cluster.root / "spool"
    raw = {**settings.raw, "StateSaveLocation": str(spool)}
    monkeypatch.setattr(cluster.slurm, "settings", lambda: replace(settings, raw=raw))
    warning = "warning: on other hosts, explain and quota cannot recognise an old copy of job_submit.lua"
    assert cluster.apply() == 0
    assert f"{warning}: {spool}/slurm-gpu: No such file" in capsys.readouterr().err
    spool.mkdir()
    assert cluster.apply() == 0
    assert warning not in capsys.readouterr().err
    (report,) = (cluster.root / "spool" / "slurm-gpu").iterdir()
    assert json.loads(report.read_text())["digest"] == digest_of(cluster.root / "job_submit.lua")


def test_explain_prints_the_decision_that_sbatch_would_print(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.apply()
    capsys.readouterr()
    ask = ("explain", "--", "sbatch", "--gpus=3", "--wrap=true")
    assert cluster.run(*ask) == 0
    assert capsys.readouterr().out == "accepted\n"
    cluster.slurm.queue = [queued(2)]
    assert cluster.run(*ask) == 1
    assert capsys.readouterr().out.splitlines() == [
        "sbatch: error: Refused by rule share: Four each.",
        "sbatch: error:   GPUs running + pending: used 2, limit 4, requested 3.",
        "sbatch: error:   Try: sbatch --gpus=2 ...",
        "refused",
    ]
    assert cluster.run("explain", "--user", getpass.getuser(), "--json", *ask[1:]) == 1
    assert json.loads(capsys.readouterr().out)["accepted"] is False
    assert (cluster.root / "run" / "decisions.log").read_text() == ""  # explain writes no line


def test_explain_prints_every_considered_limit(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("--as", getpass.getuser(), "--", "sbatch", "--gpus=3", "--wrap=true")
    cluster.apply()
    capsys.readouterr()
    cluster.run("explain", "--rules", *ask)
    printed = capsys.readouterr().out
    assert " ".join(printed.split("\n")[0].split()) == "rule limit of used limit requested verdict"
    cluster.run("explain", "--json", *ask)
    considered = json.loads(capsys.readouterr().out)["considered"]
    assert considered
    assert all(one["rule"] in printed and one["label"] in printed for one in considered)


def test_minimums_and_options_are_checked_shown_and_explained(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster.root / "policy.yaml").write_text(JOB_RULES)
    assert cluster.run("policy", "check") == 0
    assert capsys.readouterr().out.endswith(": no errors; rules: 2, groups: 1\n")
    cluster.run("policy", "show")
    assert capsys.readouterr().out.splitlines()[2:12] == [
        "size  (for gpu: partitions gpu)",
        "    Large jobs use whole nodes.",
        "    at least 1 GPU per job",
        "    at least 4 GPUs per node from 8 GPUs on per job",
        "    exactly 4 CPUs per GPU per job",
        "",
        "options  (for gpu: partitions gpu)",
        "    Other jobs are planned by your time limit.",
        "    Jobs must set --time.",
        "    Jobs must not set --nodelist.",
    ]
    cluster.apply()
    capsys.readouterr()
    words = ("sbatch", "--gpus=8", "-N2", "--wrap=true")
    assert cluster.run("explain", "--rules", "--as", getpass.getuser(), "--", *words) == 1
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "rule limit of used limit requested verdict",
        "size GPUs in one job at least 1 8 fits",
        "size GPUs on each node at least 4 1 violates (enforce)",
        "size CPUs per GPU 4 0.25 fits",
        "size CPUs per GPU at least 4 0.25 violates (enforce)",
        "options option nodelist forbidden not set fits",
        "options option time required not set violates (enforce)",
        "sbatch: error: Refused by rule size: Large jobs use whole nodes.",
        "sbatch: error: GPUs on each node: at least 4, requested 1.",
        "sbatch: error: Without --gpus-per-node, Slurm may place a single GPU on a node.",
        "sbatch: error: CPUs per GPU: at least 4, requested 0.25.",
        "sbatch: error: Refused by rule options: Other jobs are planned by your time limit.",
        "sbatch: error: This rule requires --time.",
        "sbatch: error: Try: sbatch --gpus-per-node=4 --cpus-per-gpu=4 --time=01:00:00 ...",
        "refused",
    ]


def test_explain_accepts_srun_and_rejects_invalid_options(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.apply()
    assert cluster.run("explain", "--", "srun", "--gpus=5", "hostname") == 1
    assert "srun: error:   Try: srun --gpus=4 ..." in (capsys.readouterr().out.splitlines())
    assert cluster.run("explain", "--", "sbatch", "--gpus=1.5", "--wrap=true") == 2
    assert "--gpus: '1.5' must be a number, such as 2" in capsys.readouterr().err


def test_explain_reports_refusals_by_slurm_itself(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.apply()
    capsys.readouterr()
    ask = ("explain", "--", "sbatch", "--gpus=1", "--partition=gpuu", "--wrap=true")
    assert cluster.run(*ask) == 1
    reason = "--partition: 'gpuu' is not a partition of this cluster; did you mean gpu? available: gpu"
    assert capsys.readouterr().out.splitlines() == [
        f"sbatch: error: Slurm itself would refuse the job: {reason}",
        "refused",
    ]
    assert cluster.run("explain", "--json", *ask[1:]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["accepted"], answer["messages"], answer["slurm"]) == (False, [], [reason])
    assert cluster.run("explain", "--", "qsub", "job.sh") == 2
    assert "'qsub' is neither a command (sbatch, srun, salloc) nor" in capsys.readouterr().err


ROUTES = """\
version: 1
groups: {all: {}}
rules:
  - {id: short, for: all, per: job, why: "Soon.", mode: fit,
     jobs: {at_most: {walltime: 1h}}, set: {partition: %s}}
  - {id: later, for: all, per: job, why: "Perhaps.", set: {qos: low}}
"""


def test_explain_shows_changes_and_checks_the_changed_job(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ("sbatch", "--gpus=1", "--mem=8G", "--time=1:00:00", "--partition=gpu", "--wrap=true")
    partitions = [
        submission.Partition(name="gpu", is_default=True, default_time_s=3600, max_time_s=None),
        submission.Partition(name="debug", is_default=False, default_time_s=60, max_time_s=None),
    ]
    partitions[1] = replace(partitions[1], max_memory_per_node_mib=4096)
    monkeypatch.setattr("slurm_gpu.cli.policy.explain.read_partitions", lambda run: partitions)
    answers = []
    for partition in ("gpu", "debug"):
        (cluster.root / "policy.yaml").write_text(ROUTES % partition)
        cluster.apply()
        capsys.readouterr()
        cluster.run("explain", "--json", "--", *job)
        answers.append(json.loads(capsys.readouterr().out))
    change = {"rule": "short", "mode": "fit", "option": "--partition=debug", "was": "gpu"}
    other = {"rule": "later", "mode": "observe", "option": "--qos=low", "was": None}
    assert [answer["changes"] for answer in answers] == [[other], [change, other]]
    assert answers[1]["messages"] == ["Rule short sets --partition=debug (was gpu): Soon."]
    assert answers[1]["notes"][-1] == "rule later would set --qos=low (mode: observe)"
    # The changed job, not the one that the user submitted, is what Slurm checks.
    assert [any("at most 4G per node" in note for note in one["notes"]) for one in answers] == [False, True]


@pytest.mark.parametrize(("n_gpus", "n_notes"), [(1, 1), (5, 0)])
def test_only_accepted_jobs_are_said_to_wait_indefinitely(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    n_gpus: int,
    n_notes: int,
) -> None:
    partition = submission.Partition(name="gpu", is_default=True, default_time_s=60, max_time_s=60)
    monkeypatch.setattr("slurm_gpu.cli.policy.explain.read_partitions", lambda run: [partition])
    cluster.apply()
    capsys.readouterr()
    cluster.run("explain", "--", "sbatch", f"--gpus={n_gpus}", "--time=60", "--wrap=true")
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == ("accepted" if n_notes else "refused")
    assert printed.err.count("let it wait indefinitely: partition gpu allows at most") == n_notes


def test_explain_describes_the_zone_of_an_accepted_job_only(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_zone(*arguments: Any) -> Explanation:
        found = explain(*arguments)
        return replace(found, verdict=replace(found.verdict, placed=ZoneDecision("enforce", (("zone2", 7),))))

    monkeypatch.setattr("slurm_gpu.cli.policy.judgement.explain", with_zone)
    cluster.apply()
    capsys.readouterr()
    note = "note: To keep its nodes close together, the job is kept in one zone: zone2\n"
    for n_gpus, printed in ((1, note), (5, "")):
        cluster.run("explain", "--", "sbatch", f"--gpus={n_gpus}", "--wrap=true")
        assert capsys.readouterr().err == f"note: {QUEUE_NOTE}\n{printed}"


def test_explain_counts_a_range_of_nodes_by_its_maximum(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.apply()
    ask = ("explain", "--", "sbatch", "--gres=gpu:1", "--wrap=true")
    assert cluster.run(*ask, "-N2-5") == 1
    assert "used 0, limit 4, requested 5" in capsys.readouterr().out
    cluster.slurm.queue = [queued(1, most_nodes=4, tres_per_node="gres:gpu:1")]
    assert cluster.run(*ask) == 1
    assert "used 4, limit 4, requested 1" in capsys.readouterr().out


def test_explain_without_a_policy_says_what_is_missing(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("explain", "--", "sbatch", "--wrap=true") == 3
    script = cluster.root / "job_submit.lua"
    reason = f"the policy is not known on this host, because {script}"
    assert capsys.readouterr().err == f"slurm-gpu: {reason} does not exist\n"
    script.write_text("function slurm_job_submit() return 0 end\n")
    assert cluster.run("explain", "--", "sbatch", "--wrap=true") == 3
    assert capsys.readouterr().err == f"slurm-gpu: {reason} was not written by slurm-gpu\n"


def test_the_example_policy_is_valid() -> None:
    example = Path(__file__).resolve().parents[2] / "etc" / "policy.yaml"
    assert main(["policy", "check", str(example)]) == 0


def test_while_slurmdbd_is_down_explain_names_its_assumptions(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.apply()
    settings = cluster.slurm.settings()
    raw = {**settings.raw, "AccountingStorageType": "accounting_storage/slurmdbd"}
    monkeypatch.setattr(cluster.slurm, "settings", lambda: replace(settings, raw=raw))
    defaults = submission.UserDefaults(account="vision", from_slurmdbd=False)
    monkeypatch.setattr("slurm_gpu.cli.policy.explain.read_user_defaults", lambda *_: defaults)
    capsys.readouterr()
    assert cluster.run("explain", "--", "sbatch", "--gpus=5", "--wrap=true") == 1
    printed = capsys.readouterr()
    assert "Refused by rule share" in printed.out
    assert printed.err == (
        f"note: slurmdbd does not answer, so the job was checked for {getpass.getuser()} with account "
        "vision, and with QOS normal unless --qos names a QOS\n"
        f"note: {QUEUE_NOTE}\n"
    )


def test_while_slurmdbd_is_down_the_default_account_comes_from_slurmctld() -> None:
    def run(argv: Any, environ: Any, timeout_s: float) -> str:
        if argv[0] == "sacctmgr":
            raise SlurmError("Connection refused")
        assert argv[1:] == ["show", "assoc_mgr", "users=alice", "flags=users"]
        return "Current Association Manager state\n\nUserName=alice(1001) DefAccount=vision DefWckey=\n"

    defaults = submission.read_user_defaults("alice", None, run, {})
    assert (defaults.account, defaults.qos, defaults.from_slurmdbd) == ("vision", None, False)
    assert submission.read_user_defaults("alice", "nlp", run, {}).account == "nlp"


def test_partitions_and_defaults_are_read_from_slurms_output() -> None:
    def run(argv: Any, environ: Any, timeout_s: float) -> str:
        if argv[0] == "scontrol":
            return (
                "PartitionName=gpu AllowGroups=ALL Default=YES QoS=Part-GPU DefaultTime=01:00:00 "
                "MaxTime=7-00:00:00\n"
                "PartitionName=cpu AllowGroups=ops,Dev AllowAccounts=Vision,nlp DenyQos=high AllowQos=N/A "
                "Default=NO QoS=N/A DefaultTime=NONE MaxTime=UNLIMITED\n"
            )
        return "vision|vision|\nvision|nlp|high\n"

    gpu, cpu = submission.read_partitions(run, {})
    assert (gpu.is_default, gpu.default_time_s, gpu.max_time_s) == (True, 3600, 7 * 86400)
    assert (cpu.is_default, cpu.default_time_s, cpu.max_time_s) == (False, None, None)
    assert (gpu.qos, cpu.qos) == ("part-gpu", None)
    assert (gpu.allow_groups, gpu.allow_accounts, gpu.deny_accounts, gpu.deny_qos) == (None,) * 4
    assert (cpu.allow_groups, cpu.allow_accounts) == ({"ops", "Dev"}, {"vision", "nlp"})
    assert (cpu.allow_qos, cpu.deny_qos) == (None, {"high"})
    assert submission.read_user_defaults("alice", None, run, {}).account == "vision"
    assert submission.read_user_defaults("alice", "nlp", run, {}).qos == "high"
