"""Site scripts under `chain:` behave in explain, and in the test of a bundle, as they do in slurmctld."""

from __future__ import annotations

import shlex
import struct
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.explain.explain import Explanation, explain, partition_record
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.install import try_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, linked_lua
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.slurm.job_desc import NICE_OFFSET
from slurm_gpu.slurm.submission import Partition, UserDefaults, read_partitions

from .compile import compiled
from .model import RuleModel

SITES = Path(__file__).parent / "sites"
NAMES = sorted(path.stem for path in SITES.glob("*.lua"))
ENVIRONMENT = {"USER": "alice", "FORBIDDEN": "no"}


def settings(version: str = "26.05.3", plugins: Path = Path("/nonexistent")) -> SlurmSettings:
    return SlurmSettings(
        cluster="c",
        version=version,
        slurm_user="slurm",
        slurm_user_uid=64030,
        conf_path="/etc/slurm/slurm.conf",
        raw={"PluginDir": str(plugins)},
    )


def linked_with(directory: Path, lua: str) -> SlurmSettings:
    """Return the settings of a Slurm whose plugin is linked with this version of Lua."""
    (directory / "job_submit_lua.so").write_bytes(
        struct.pack("4s", b"\x7fELF") + f"\0liblua{lua}.so.0\0".encode()
    )
    return settings(plugins=directory)


def table(site: str) -> dict[str, Any]:
    rule = RuleModel("size", "job", limits={"gpus": 4000})
    return compiled([rule], "/nonexistent/decisions.log", chain_before=str(SITES / f"{site}.lua"))


def explained(site: str, command: str, of: SlurmSettings | None = None) -> Explanation:
    words = shlex.split(command)
    environ = {
        name: value for name, value in ENVIRONMENT.items() if name != "FORBIDDEN" or "--comment" in words
    }
    request = parse_command([*words, "--wrap=true"] if words[0] == "sbatch" else words, environ)
    partitions = [
        Partition(name=name, is_default=name == "gpu", default_time_s=3600, max_time_s=None)
        for name in ("gpu", "long", "cpu")
    ]
    defaults = UserDefaults(account="vision", qos="normal")
    bundle = build_bundle(table(site))
    return explain(bundle, request, (1001, "alice"), defaults, [], partitions, (), of or settings())


@pytest.mark.parametrize(
    ("site", "command", "fields"),
    [
        ("routing", "sbatch --gpus=1", {"partition": "gpu", "time_limit": 60}),
        ("routing", "sbatch --gres=gpu:1 -t 2-0", {"partition": "long", "time_limit": 2880}),
        ("routing", "srun -p cpu true", {"partition": "cpu", "time_limit": 60}),
        ("accounts", "sbatch", {"qos": "high"}),
        ("accounts", "sbatch -A NLP", {"qos": "normal"}),
        ("accounts", "sbatch -A other", {"qos": None}),
        ("memory", "sbatch", {"min_mem_per_cpu": 2048, "min_mem_per_node": None}),
        ("memory", "sbatch --mem=64G", {"min_mem_per_node": 65536, "min_mem_per_cpu": None}),
        ("memory", "sbatch --mem-per-cpu=8G -t 60 --time-min=30", {"min_mem_per_cpu": 8192}),
        # pn_min_memory is a double with its high bit set, so it is rounded to multiples of 2 GiB.
        ("memory", "sbatch --mem-per-cpu=9000", {"min_mem_per_cpu": 9000}),
        ("arrays", "sbatch --array=1-5,7", {"nice": None}),
        ("arrays", "sbatch --array=1-50%4", {"nice": NICE_OFFSET + 100}),
        ("arrays", "sbatch --array=1-50%4 --nice=7", {"nice": NICE_OFFSET + 107}),
        ("environment", "sbatch -D /tmp", {"comment": "here:/tmp:/dev/null"}),
        ("environment", "srun /bin/hostname -s", {"comment": "/bin/hostname in hostname"}),
        ("environment", "salloc", {"comment": "nothing in interactive"}),
        ("gres", "sbatch", {"tres_per_node": None, "comment": None}),
        (
            "gres",
            "sbatch --gres=gpu:v100:1",
            {"tres_per_node": "gres/gpu:a100:1", "comment": "mark / tasks unset"},
        ),
        ("gres", "sbatch --gres=gpu:2 --exclusive", {"tres_per_node": None}),
        ("library", "sbatch -p long", {}),
        ("updates", "sbatch", {"comment": "0 waiting"}),
        ("globals", "sbatch", {"comment": "cpu 1 1", "no_such_field": None}),
        ("lua51", "sbatch", {"comment": "3 arguments"}),
    ],
)
def test_a_script_reads_and_writes_the_fields_of_slurmctld(
    site: str, command: str, fields: dict[str, Any]
) -> None:
    verdict = explained(site, command).verdict
    assert verdict.accepted, verdict
    assert {name: verdict.desc.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("site", "command", "message"),
    [
        ("memory", "sbatch --mem=65G", "66560 MiB per node: at most 65536"),
        ("memory", "sbatch --mem=0", "0 MiB per node: at most 65536"),
        ("memory", "sbatch --mem-per-cpu=10G", "10240 MiB per CPU: at most 8192"),
        ("arrays", "sbatch --array=0-100", "101 array tasks"),
        ("environment", "sbatch --comment x", "FORBIDDEN=no is set"),
        ("library", "sbatch -p cpu", "choose one of gpu, long (none)"),
    ],
)
def test_a_script_refuses_as_in_slurmctld(site: str, command: str, message: str) -> None:
    verdict = explained(site, command).verdict
    assert (verdict.accepted, verdict.messages) == (False, (message,))


def test_the_output_of_a_script_is_not_that_of_explain(capfd: pytest.CaptureFixture[str]) -> None:
    assert explained("library", "sbatch -p long").verdict.accepted
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("printed", "fields"),
    [
        (
            "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED MinNodes=0 OverSubscribe=NO State=UP",
            "nil 0 nil 0 0 4294967295 1 3",
        ),
        (
            "DefMemPerCPU=1024 MaxMemPerCPU=2048 MinNodes=1 MaxNodes=4 OverSubscribe=YES:2 State=DRAIN",
            "1024 nil 2048 nil 1 4 2 2",
        ),
        (
            "DefMemPerNode=512 MaxMemPerNode=8192 MaxNodes=UNLIMITED OverSubscribe=FORCE State=DOWN",
            "nil 512 nil 8192 0 4294967295 32772 1",
        ),
        ("OverSubscribe=EXCLUSIVE State=INACTIVE", "nil 0 nil 0 0 4294967295 0 0"),
    ],
)
@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_a_partition_has_the_settings_that_scontrol_prints(lua: str, printed: str, fields: str) -> None:
    script = PolicyScript((SITES / "defaults.lua").read_text(), lua=lua)
    partitions = read_partitions(lambda *_: f"PartitionName=gpu Default=YES {printed}\n")
    verdict = script.submit({"user_id": 1}, [partition_record(one) for one in partitions])
    assert verdict.desc["comment"] == fields
    assert script.modify({}, {"user_id": 1}).accepted  # argv is a table in updates, too


def test_gpus_are_written_as_in_the_version_of_slurm() -> None:
    old = explained("gres", "sbatch --gres=gpu:v100:1", settings("22.05.8")).verdict.desc
    assert (old["tres_per_node"], old["comment"]) == ("gres:gpu:a100:1", "mark : tasks unset")


@pytest.mark.parametrize(
    ("command", "comment"),
    [("srun /bin/hostname -s", "/bin/hostname in hostname"), ("salloc true", "nothing in interactive")],
)
def test_before_23_02_srun_names_its_program_only_and_salloc_none(command: str, comment: str) -> None:
    desc = explained("environment", command, settings("22.05.8")).verdict.desc
    assert (desc["comment"], desc["argc"]) == (comment, 1 if "srun" in command else 0)
    desc = explained("environment", command, settings("23.02.7")).verdict.desc
    assert desc["argc"] == len(command.split()) - 1


def test_22_05_knows_few_error_codes() -> None:
    """In Slurm 22.05, an unknown code is nil, and a script that returns nil accepts the job."""
    bundle = build_bundle(table("routing"))
    desc = {"user_id": 1001, "account": "vision"}
    for version, accepted in (("22.05.8", True), ("23.02.7", False)):
        assert PolicyScript(bundle, settings=settings(version)).submit(desc, []).accepted is accepted


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_an_update_has_the_fields_of_the_job(lua: str) -> None:
    script = PolicyScript(build_bundle(table("updates")), lua=lua)
    record = {
        "job_id": 1,
        "user_id": 1001,
        "user_name": "alice",
        "name": "train",
        "time_limit": 60,
        "job_state": 0,
    }
    assert script.modify({"time_limit": 30}, record).accepted
    longer = script.modify({"time_limit": 90}, record)
    assert (longer.accepted, longer.messages) == (False, ("train: only operators extend alice",))
    assert script.modify({"time_limit": 90}, record, modify_uid=0).accepted
    script.set_jobs([record, {**record, "job_id": 2, "job_state": 1}])
    verdict = script.submit({"user_id": 1001, "user_name": "alice", "account": "vision"})
    assert verdict.desc["comment"] == "1 waiting"
    script = PolicyScript(build_bundle(table("gres")), lua=lua)
    record["tres_per_node"] = "gres/gpu:1"
    assert not script.modify({"tres_per_node": "gres/gpu:2"}, record).accepted


@pytest.mark.parametrize("site", sorted({*NAMES} - {"command", "failing", "lua51", "module", "writing_nil"}))
@pytest.mark.parametrize("version", ["22.05.8", "26.05.3"])
def test_a_script_that_slurmctld_accepts_is_installed(tmp_path: Path, site: str, version: str) -> None:
    policy = table(site)
    assert try_bundle(policy, build_bundle(policy), settings=settings(version)) == []


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_a_script_is_tested_in_the_lua_version_of_slurmctld(tmp_path: Path, lua: str) -> None:
    policy, linked = table("lua51"), linked_with(tmp_path, lua)
    assert linked_lua(linked) == lua
    if lua == "5.1":
        assert try_bundle(policy, build_bundle(policy), settings=linked) == []
        assert explained("lua51", "sbatch", linked).notes == ()
    else:
        with pytest.raises(OutsideError, match="setfenv"):
            try_bundle(policy, build_bundle(policy), settings=linked)
        assert "setfenv" in explained("lua51", "sbatch", linked).notes[0]
    assert try_bundle(policy, build_bundle(policy)) == []


@pytest.mark.parametrize(
    ("site", "what"),
    [
        ("module", "the Lua module posix cannot be loaded here; slurmctld needs it"),
        ("command", "io.popen runs no command here"),
    ],
)
def test_what_slurmctld_may_have_is_a_note(site: str, what: str) -> None:
    policy, note = table(site), f"{SITES / site}.lua: {what}"
    assert note in try_bundle(policy, build_bundle(policy), settings=settings())
    answer = explained(site, "sbatch")
    assert answer.verdict.accepted
    assert note in answer.notes
    assert not any("no file" in line for line in answer.notes)


def test_a_command_is_a_note_and_the_end_of_slurmctld_an_error(tmp_path: Path) -> None:
    script, policy = tmp_path / "site.lua", table("command")
    policy["chain_before"] = str(script)
    script.write_text('function slurm_job_submit() os.execute("true") end function slurm_job_modify() end')
    notes = try_bundle(policy, build_bundle(policy), settings=settings())
    assert notes == [f"{script}: os.execute runs no command here"]
    script.write_text("function slurm_job_submit() os.exit() end function slurm_job_modify() end")
    with pytest.raises(OutsideError, match=r"os\.exit stops slurmctld"):
        try_bundle(policy, build_bundle(policy), settings=settings())


def test_modules_in_c_are_reported_by_name_and_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "posix.so").write_bytes(b"\x7fELF")
    script, text = tmp_path / "site.lua", (SITES / "module.lua").read_text()
    script.write_text(f'package.cpath = "{tmp_path}/?.so;" .. package.cpath\n{text}')
    policy = table("module") | {"chain_before": str(script)}
    notes = try_bundle(policy, build_bundle(policy), settings=settings())
    assert notes[0] == f"{script}: the Lua module posix cannot be loaded here; slurmctld needs it"


def test_slurmctld_names_a_missing_module_without_its_search_path(tmp_path: Path) -> None:
    script = tmp_path / "site.lua"
    script.write_text(r"error('module \'x\' not found:\n\tno file \'y\'', 0)")
    policy = table("routing") | {"chain_before": str(script)}
    verdict = PolicyScript(build_bundle(policy)).submit({"user_id": 1001, "account": "vision"})
    assert [line for level, line in verdict.log if level == "error"] == [
        "slurm-gpu: the decision failed: the site's script cannot be loaded: module 'x' not found"
    ]


@pytest.mark.parametrize(
    ("site", "problem"),
    [("failing", "compare"), ("writing_nil", r"job_desc\.reservation \(string expected, got nil\)")],
)
def test_an_error_that_slurmctld_would_log_is_refused(site: str, problem: str) -> None:
    policy = table(site)
    with pytest.raises(OutsideError, match=rf"not installed: .*{site}\.lua.*{problem}"):
        try_bundle(policy, build_bundle(policy), settings=settings())
    answer = explained(site, "sbatch")
    assert answer.verdict.accepted  # the rule has on_error: allow
    assert site in answer.notes[0]
