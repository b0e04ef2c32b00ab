"""Every check of `slurm-gpu doctor` finds its problem and names a remedy."""

import dataclasses
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.daemons import munged
from slurm_gpu.cli.doctor.checks.every import CHECKS, run_checks
from slurm_gpu.cli.doctor.checks.files import site_file
from slurm_gpu.cli.doctor.checks.finding import Check, CheckResult, DoctorContext, Level, fail, ok, skipped
from slurm_gpu.cli.doctor.checks.slurm import job_submit, slurm_conf
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.journal import ApplyJournal, ApplyState, Entry
from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.policy.language.names import SystemDirectory, resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.slurm.client import SlurmNode
from tests.cli.conftest import CommandLine
from tests.cli.installation import ROOT, Installation, levels, worst
from tests.database.servers import running_munged

# The site file and MUNGE


def test_a_valid_site_file(installed: Installation):
    assert levels(site_file.valid(installed.at())) == ["ok"]


def test_an_invalid_site_file_is_named_with_line_and_column(installed: Installation):
    installed.site_file.write_text("cluster: neuron\nzones: 4\n")
    finding = worst(site_file.valid(installed.at()))
    assert finding.level is Level.FAIL
    assert f"{installed.site_file}:2:8:" in finding.message


def test_munge(installed: Installation):
    # tmp_path may be too long for the path of a Unix socket.
    with tempfile.TemporaryDirectory(prefix="sgdoc-") as directory, running_munged(Path(directory)) as socket:
        Path(directory).chmod(0o755)
        installed.site_file.write_text(f"cluster: neuron\nmunge_socket: {socket}\n")
        assert levels(munged.round_trip(installed.at())) == ["ok"]
    finding = worst(munged.round_trip(installed.at()))
    assert (finding.level, finding.remedy) == (
        Level.FAIL,
        "run systemctl start munge; see journalctl -u munge for the cause",
    )


def test_the_placeholder_of_the_installed_site_file_is_refused(installed: Installation):
    installed.site_file.write_text((ROOT / "etc" / "slurm-gpu.yaml").read_text())
    finding = worst(site_file.valid(installed.at()))
    assert (finding.level, finding.message) == (
        Level.FAIL,
        f"{installed.site_file}:5:10: cluster: 'CHANGE-ME' is the placeholder of the installed file; write "
        "the ClusterName of slurm.conf",
    )


def test_without_a_site_file_the_remedy_is_to_create_it(installed: Installation):
    installed.site_file.unlink()
    assert str(worst(site_file.valid(installed.at())).remedy).startswith(
        f"copy {installed.site_file} from another host, or write cluster: "
    )


@pytest.mark.parametrize("section", ["zones", "server_types", "racks"])
def test_a_node_in_two_groups_is_reported(installed: Installation, section: str):
    groups = '{a: {nodes: "n[1-2]"}, b: {nodes: n2}, c: {nodes: n3}}'
    installed.site_file.write_text(f"cluster: neuron\n{section}: {groups}\n")
    finding = worst(site_file.same_cluster(installed.at()))
    assert (finding.level, finding.message, finding.remedy) == (
        Level.FAIL,
        f"slurm-gpu.yaml: {section}: n2 is in a and in b; keep it in one",
        f"fix {section} in {installed.site_file}",
    )


def test_the_cluster_and_the_zones_match_slurm(installed: Installation):
    installed.site_file.write_text('cluster: neuron\nzones: {a: {nodes: "n[1-2]"}}\n')
    assert levels(site_file.same_cluster(installed.at())) == ["ok"]
    installed.site_file.write_text('cluster: other\nzones: {a: {nodes: "n[3-6]"}, b: {nodes: "n["}}\n')
    findings = list(site_file.same_cluster(installed.at()))
    assert [finding.level.value for finding in findings] == ["fail", "warn", "fail"]
    assert findings[0].remedy == f"set cluster: neuron in {installed.site_file}"
    assert "n5, n6" in findings[1].message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("racks: {r: {nodes: n9}}", "racks.r lists nodes that Slurm does not have: n9"),
        ("server_types: {s: {nodes: n9}}", "server_types.s lists nodes that Slurm does not have: n9"),
        (
            'placement: {nodes: "n[1-9]"}',
            "placement lists nodes that Slurm does not have: n5, n6, n7, n8, n9",
        ),
        ('placement: {nodes: "n["}', "placement: hostlist 'n[': a bracket"),
        (
            "placement: {partitions: [gpus]}",
            "placement.partitions names partitions without nodes in Slurm: gpus",
        ),
    ],
)
def test_unknown_nodes_and_partitions_of_the_site_file_are_reported(
    installed: Installation, text: str, message: str
):
    installed.site_file.write_text(f"cluster: neuron\n{text}\n")
    fine, finding = site_file.same_cluster(installed.at())
    assert fine.level.value == "ok"
    assert finding.message.startswith(message)
    assert str(finding.remedy).endswith(f"in {installed.site_file}")


# slurm.conf


def test_the_versions_of_slurm_are_compared(installed: Installation):
    (finding,) = slurm_conf.answers(installed.at())
    assert finding.message == "Slurm 22.05.8, 4 nodes, 12 GPUs"
    installed.outputs["scontrol --version"] = "slurm 24.11.5\n"
    assert worst(slurm_conf.answers(installed.at())).message == (
        "Slurm's commands on this host have version 24.11.5, but slurmctld has 22.05.8"
    )


def test_an_old_slurm_is_reported(installed: Installation):
    at = installed.at()
    at.settings = dataclasses.replace(at.settings, version="21.08.8")
    assert "requires 22.05 or later" in worst(slurm_conf.answers(at)).message


def test_each_line_that_slurm_cannot_parse_is_named(installed: Installation):
    conf = Path(installed.conf["SLURM_CONF"])
    assert levels(slurm_conf.grammar(installed.at())) == ["skipped"]
    conf.write_text("ClusterName=neuron\nNodeName=n1 Reason=no GPU Weight=5 # comment\n Include more.conf\n")
    conf.with_name("gres.conf").write_text("NodeName=n1 Name=gpu File=\n")
    assert [finding.message for finding in slurm_conf.grammar(installed.at())] == [
        f"{conf}:2: Slurm cannot read 'GPU Weight=5', so it does not start",
        f"{conf}:3: Slurm cannot read 'Include more.conf', so it does not start",
        f"{conf.with_name('gres.conf')}:1: Slurm cannot read 'File=', so it does not start",
    ]
    conf.with_name("gres.conf").unlink()
    conf.write_text("Include more.conf\n")
    (finding,) = slurm_conf.grammar(installed.at())
    message = f"{conf} includes {conf.with_name('more.conf')} (No such file or directory)"
    assert finding.message == f"{message}, so Slurm does not start"
    conf.with_name("more.conf").write_text("ClusterName=neuron\n")
    assert levels(slurm_conf.grammar(installed.at())) == ["ok"]


def test_prolog_flags(installed: Installation):
    assert levels(slurm_conf.prolog_flags(installed.at())) == ["ok"]
    installed.conf["PrologFlags"] = "Serial"
    (finding,) = slurm_conf.prolog_flags(installed.at())
    assert str(finding.remedy).startswith("set PrologFlags=Serial,Alloc in slurm.conf")
    installed.conf["PrologFlags"] = "Contain,X11"
    assert levels(slurm_conf.prolog_flags(installed.at())) == ["ok"]


def test_gpus_are_accounted(installed: Installation):
    assert levels(slurm_conf.gpus_accounted(installed.at())) == ["ok"]
    for tracked in ("cpu,mem", "cpu,mem,gres/gpu:v100"):
        installed.conf["AccountingStorageTRES"] = tracked
        finding = worst(slurm_conf.gpus_accounted(installed.at()))
        assert "lacks gres/gpu and gres/shard" in finding.message
        assert str(finding.remedy).startswith("add gres/gpu,gres/shard to AccountingStorageTRES= in")
    installed.conf["AccountingStorageTRES"] = "cpu,gres/gpu:a100,gres/gpu:v100,gres/shard"
    assert levels(slurm_conf.gpus_accounted(installed.at())) == ["ok"]
    installed.conf["AccountingStorageType"] = "accounting_storage/none"
    assert "no accounting storage" in worst(slurm_conf.gpus_accounted(installed.at())).message


def test_limits_that_slurm_does_not_enforce_are_reported(installed: Installation):
    installed.conf["AccountingStorageEnforce"] = "associations"
    assert levels(slurm_conf.gpus_accounted(installed.at())) == ["ok", "warn"]
    assert "lacks limits and qos: " in worst(slurm_conf.gpus_accounted(installed.at())).message
    installed.conf["AccountingStorageEnforce"] = "safe"
    assert "lacks qos: jobs may use any QOS" in worst(slurm_conf.gpus_accounted(installed.at())).message
    installed.conf["AccountingStorageEnforce"] = "ALL"
    assert levels(slurm_conf.gpus_accounted(installed.at())) == ["ok"]


@pytest.mark.parametrize(("n_jobs", "level"), [(0, "ok"), (80, "ok"), (81, "warn")])
def test_a_queue_near_max_job_count_is_reported(installed: Installation, n_jobs: int, level: str):
    installed.conf["MaxJobCount"] = "100"
    installed.outputs["squeue"] = "".join(f"{n}\n" for n in range(n_jobs))
    (finding,) = slurm_conf.room_for_jobs(installed.at())
    assert finding.level.value == level
    assert "MaxJobCount=100" in finding.message


def test_priorities(installed: Installation):
    assert levels(slurm_conf.priorities(installed.at())) == ["ok"]
    installed.conf["PriorityType"] = "priority/basic"
    assert levels(slurm_conf.priorities(installed.at())) == ["warn"]


def test_gres_types(installed: Installation):
    assert levels(slurm_conf.gres_types(installed.at())) == ["ok"]
    for written, remedy in (("shard", "shard,gpu"), ("(null)", "gpu")):
        installed.conf["GresTypes"] = written
        (finding,) = slurm_conf.gres_types(installed.at())
        assert finding.level is Level.FAIL
        assert str(finding.remedy).startswith(f"set GresTypes={remedy} in slurm.conf")


def test_gpus_without_type(installed: Installation):
    at = installed.at()
    at.nodes = [dataclasses.replace(_gpu_node(at), gpus={"": 4})]
    assert "GPUs of n1" in worst(slurm_conf.gres_types(at)).message


@pytest.mark.parametrize(
    ("kind", "gres_conf", "types", "level"),
    [
        ("a100_3g.20gb", "", "gpu,shard", "warn"),
        ("a100_3g.20gb", "", "gpu", "ok"),
        ("small", "Name=gpu Type=small MultipleFiles=/dev/nvidia0,/dev/cap21", "gpu,shard", "warn"),
        ("small", "NodeName=n1\tName=gpu \\\n multiplefiles = '/dev/nvidia0'", "gpu,shard", "warn"),
        ("small", "Name=gpu Type=small Links=MultipleFiles=1", "gpu,shard", "ok"),
        ("a100", "Name=gpu Type=a100 File=/dev/nvidia0  # no MultipleFiles=", "gpu,shard", "ok"),
    ],
)
def test_shards_with_mig_instances_are_reported_on_slurm_22_05(
    installed: Installation, kind: str, gres_conf: str, types: str, level: str
):
    (installed.root / "slurm" / "gres.conf").write_text(f"# instances\n{gres_conf}\n")
    installed.conf["GresTypes"] = types
    at = installed.at()
    at.nodes = [dataclasses.replace(_gpu_node(at), gpus={kind: 4})]
    finding = worst(slurm_conf.gres_types(at))
    assert finding.level.value == level
    if level == "warn":
        assert "GresTypes has shard, and there are MIG instances: Slurm 22.05.8 counts" in finding.message


# The policy


_POLICY = """\
version: 1
mode: enforce
contact: gpu-help@example.edu
groups: {all: {accounts: [vision]}}
rules:
  - {id: share, for: all, per: user, why: "Others get a turn.", limits: {gpus_total: 4}}
"""


def test_a_site_without_policy_is_skipped(installed: Installation):
    assert levels(job_submit.plugin(installed.at())) == ["skipped"]
    assert levels(job_submit.script(installed.at())) == ["skipped"]


def test_a_policy_without_the_lua_plugin_is_reported(installed: Installation):
    (installed.root / "policy.yaml").write_text(_POLICY)
    installed.conf["JobSubmitPlugins"] = "throttle"
    finding = worst(job_submit.plugin(installed.at()))
    assert "the policy applies to no job" in finding.message
    assert "then set JobSubmitPlugins=throttle,lua in slurm.conf" in str(finding.remedy)


@pytest.mark.parametrize(
    ("script", "conf", "remedy"),
    [
        (None, "", "run slurm-gpu policy apply, then set JobSubmitPlugins=lua in slurm.conf and restart"),
        ("-- slurm-gpu 0.3.0", "", "set JobSubmitPlugins=lua in slurm.conf and restart slurmctld"),
        ("-- slurm-gpu was removed: ", "", "run slurm-gpu policy apply, then set"),
        ("-- my own", "", "run slurm-gpu policy apply, then set"),
        ("-- slurm-gpu 0.3.0", "JobSubmitPlugins=lua\n", "restart slurmctld"),
        (None, "JobSubmitPlugins=lua\n", "run slurm-gpu policy apply, then restart slurmctld"),
    ],
)
def test_only_the_steps_that_are_left_for_the_plugin_are_named(
    installed: Installation, script: str | None, conf: str, remedy: str
):
    (installed.root / "policy.yaml").write_text(_POLICY)
    path = Path(installed.conf["SLURM_CONF"])
    path.write_text(conf)
    installed.conf["JobSubmitPlugins"] = "(null)"
    if script is not None:
        path.with_name("job_submit.lua").write_text(script)
    finding = worst(job_submit.plugin(installed.at()))
    assert finding.level is Level.FAIL
    assert str(finding.remedy).startswith(remedy)
    unread = f"{path}:1 has JobSubmitPlugins=lua, which Slurm has not read yet; until then, "
    assert finding.message.startswith(unread if conf else "JobSubmitPlugins lacks lua")


@pytest.mark.parametrize("plugins", ["job_submit/lua", "throttle,job_submit/lua"])
def test_the_full_name_of_the_plugin_is_recognized(installed: Installation, plugins: str):
    """Slurm loads the plugin twice if slurm.conf names both `lua` and `job_submit/lua`."""
    (installed.root / "policy.yaml").write_text(_POLICY)
    installed.conf["JobSubmitPlugins"] = plugins
    assert levels(job_submit.plugin(installed.at())) == ["ok"]


def test_the_installed_script_is_compared_with_the_policy(installed: Installation):
    installed.conf["JobSubmitPlugins"] = "lua"
    policy_file, script = installed.root / "policy.yaml", installed.root / "slurm" / "job_submit.lua"
    at = installed.at()
    assert levels(job_submit.plugin(at)) == ["ok"]
    assert "is missing: slurmctld cannot start without it" in worst(job_submit.script(at)).message
    script.write_text("function slurm_job_submit() return 0 end\n")
    assert levels(job_submit.script(at)) == ["skipped"]
    policy_file.write_text(_POLICY)
    foreign = worst(job_submit.script(at))
    assert (foreign.level, foreign.remedy) == (
        Level.FAIL,
        f"run cp -p {script} {script.with_name('site_job_submit.lua')}, add "
        f"`chain: {{before: {script.with_name('site_job_submit.lua')}}}` to {policy_file}, "
        "and run slurm-gpu policy apply --replace",
    )
    policy, source = load_policy(policy_file)
    facts = SiteFacts.of(at.settings, at.nodes, Path("/given/to/apply"), "UTC")
    script.write_text(
        build_bundle(compile_policy(policy, resolve_names(policy, source, SystemDirectory()), facts))
    )
    assert levels(job_submit.script(at)) == ["ok"]
    script.chmod(0o664)
    assert levels(job_submit.script(at)) == ["fail", "ok"]
    script.chmod(0o644)
    whole = script.read_text()
    script.write_text(whole[: len(whole) // 2])
    broken = worst(job_submit.script(at))
    assert (broken.level, broken.remedy) == (Level.FAIL, "run slurm-gpu policy apply")
    assert "is broken, and slurmctld may not start again" in broken.message
    script.write_text(whole)
    policy_file.write_text(_POLICY.replace("gpus_total: 4", "gpus_total: 8"))
    assert worst(job_submit.script(at)).remedy == "run slurm-gpu policy apply"
    journal, other = ApplyJournal(at.policy_state), "/root/other.yaml"
    with journal.lock():
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
        entry = Entry(cluster="neuron", policy=other, script=script, digest=digest)
        journal.mark(journal.begin(entry), ApplyState.DONE)
    assert worst(job_submit.script(at)).message == (
        f"{script} is the policy of {other}, not of {policy_file}"
    )
    policy_file.write_text(_POLICY.replace("per: user", "per: dog"))
    assert f"{policy_file}:6:" in worst(job_submit.script(at)).message
    assert levels(job_submit.script(installed.at(host="login"))) == ["skipped"]


# All checks together


def test_checks_that_need_a_failed_check_are_skipped(installed: Installation):
    def dead(at: DoctorContext) -> Iterator[CheckResult]:
        raise SlurmError("slurmctld is down")

    checks = [
        Check("Slurm", dead),
        Check("hooks", lambda _: [ok("fine")], ("Slurm",)),
        Check("more", lambda _: [ok("fine")], ("hooks",)),
        Check("other", lambda _: [ok("fine")]),
    ]
    results = [(result.check, result.finding.level.value) for result in run_checks(installed.at(), checks)]
    assert results == [("Slurm", "fail"), ("hooks", "skipped"), ("more", "skipped"), ("other", "ok")]


@pytest.mark.parametrize(("uid", "level"), [(0, "fail"), (1001, "skipped")])
def test_a_check_that_only_root_can_do_is_skipped_for_other_users(
    installed: Installation, monkeypatch: pytest.MonkeyPatch, uid: int, level: str
):
    def closed(at: DoctorContext) -> Iterator[CheckResult]:
        raise PermissionError(13, "Permission denied", "/etc/slurm/job_submit.lua")

    monkeypatch.setattr(os, "geteuid", lambda: uid)
    (result,) = run_checks(installed.at(), [Check("policy", closed)])
    assert result.finding.level.value == level
    assert "/etc/slurm/job_submit.lua" in result.finding.message


def test_every_check_has_a_unique_name_and_needs_only_earlier_ones():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for index, check in enumerate(CHECKS):
        assert set(check.needs) <= set(names[:index])


def test_the_exit_code_is_1_if_a_check_failed(slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch):
    findings = [ok("fine"), fail("broken", "fix it")]
    checks = (Check("one", lambda _: findings[:1]), Check("two", lambda _: findings[1:]))
    monkeypatch.setattr(run_checks, "__defaults__", (checks,))
    assert slurm_gpu("doctor") == 1
    assert slurm_gpu.out.splitlines() == [
        "ok      one           fine",
        "fail    two           broken",
        "                      → fix it",
        "1 failed, 0 warnings, 1 ok",
    ]
    assert slurm_gpu("doctor", "--json") == 1
    assert json.loads(slurm_gpu.out) == {
        "checks": [
            {"check": "one", "level": "ok", "message": "fine", "remedy": None},
            {"check": "two", "level": "fail", "message": "broken", "remedy": "fix it"},
        ],
        "failed": 1,
        "warned": 0,
    }
    monkeypatch.setattr(run_checks, "__defaults__", (checks[:1],))
    assert slurm_gpu("doctor") == 0


def test_other_users_than_root_can_run_it_with_unreadable_directories(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(run_checks, "__defaults__", ((Check("one", lambda _: [skipped("is root's")]),),))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert slurm_gpu("doctor", f"--policy-state-dir={tmp_path}", f"--node-state-dir={tmp_path}") == 0
    assert slurm_gpu.out.splitlines()[-1] == "0 failed, 0 warnings, 0 ok, 1 skipped"


def test_checks_that_were_skipped_for_one_reason_share_one_line(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    """A line for each skipped check would hide failures."""
    checks = [Check(name, lambda _: [fail("down", "start it")], ()) for name in ("Slurm",)]
    checks += [Check(name, lambda _: [], ("Slurm",)) for name in ("hooks", "drained")]
    checks += [Check("more", lambda _: [skipped("no GPU")]), Check("fine", lambda _: [ok("well")])]
    monkeypatch.setattr(run_checks, "__defaults__", (tuple(checks),))
    assert slurm_gpu("doctor") == 1
    words = " ".join(slurm_gpu.out.split())
    assert words == (
        "fail Slurm down → start it ok fine well "
        "skipped not checked, because these checks did not succeed: Slurm; this concerns hooks, drained "
        "skipped more no GPU 1 failed, 0 warnings, 1 ok, 3 skipped"
    )


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_on_a_narrow_terminal_lines_wrap_between_words_in_their_column(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: int
):
    message = "PrologFlags has neither Alloc nor Contain: of a job only the first node has a prolog"
    checks = (Check("PrologFlags", lambda _: [fail(message, "PrologFlags=Alloc in slurm.conf")]),)
    monkeypatch.setattr(run_checks, "__defaults__", (checks,))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert slurm_gpu("doctor") == 1
    first, *rest, _ = re.sub(r"\x1b\[[0-9;]*m", "", slurm_gpu.out).splitlines()
    indent = 4 if columns < 60 else 22
    assert max(map(len, (first, *rest))) <= columns
    assert {len(line) - len(line.lstrip()) for line in rest} == {indent}
    text = " ".join(line.strip() for line in (first[22:], *rest)).strip()
    assert text == f"{message} → PrologFlags=Alloc in slurm.conf"


def test_each_of_several_mistakes_has_its_own_line(slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch):
    checks = (Check("site file", lambda _: [fail("a.yaml:1:1: one\na.yaml:2:1: two", "fix a.yaml")]),)
    monkeypatch.setattr(run_checks, "__defaults__", (checks,))
    assert slurm_gpu("doctor") == 1
    lines = [line.strip() for line in slurm_gpu.out.splitlines()]
    assert lines[0].endswith("a.yaml:1:1: one")
    assert lines[1:3] == ["a.yaml:2:1: two", "→ fix a.yaml"]


def test_control_characters_of_other_users_are_replaced(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    """Operators write the reasons of nodes, and users choose file names, so messages may contain any text."""
    checks = (Check("drained", lambda _: [fail("drained: n1 (x\x1b]0;title\x07\x1b[2J)", "a\tb")]),)
    monkeypatch.setattr(run_checks, "__defaults__", (checks,))
    assert slurm_gpu("doctor") == 1
    assert "drained: n1 (x�]0;title��[2J)" in slurm_gpu.out
    assert "→ a b" in slurm_gpu.out
    assert "\x1b]" not in slurm_gpu.out


def _gpu_node(at: DoctorContext) -> SlurmNode:
    return at.site.slurm.nodes()[0]
