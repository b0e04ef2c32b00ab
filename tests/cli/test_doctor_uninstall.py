"""`slurm-gpu doctor uninstall` lists the steps of a removal for this host, slurm.conf first."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor import uninstall
from slurm_gpu.cli.doctor.checks.files import boot
from slurm_gpu.cli.doctor.checks.finding import DoctorContext
from slurm_gpu.cli.doctor.uninstall import UninstallStep, uninstall_steps
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.journal import ApplyJournal, ApplyState, Entry
from slurm_gpu.policy.language.model import Chain, Policy
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.native.difference import Owned
from slurm_gpu.slurm.sacctmgr import Entity, EntityKind, LimitField
from tests.cli.conftest import CommandLine
from tests.cli.installation import Installation
from tests.slurm.spellings import SPELLINGS, Spelling


@pytest.fixture
def conf(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a slurm.conf with all lines of an installation."""
    monkeypatch.setattr(boot, "UNITS", ())  # ignore timers of this host
    monkeypatch.setattr(uninstall, "BY_HAND", (f"{installed.root}/by-hand/slurm-gpu*",))
    path = Path(installed.conf["SLURM_CONF"])
    path.write_text(
        "ClusterName=neuron\n"
        f"Prolog={installed.root}/prolog.d/*\n"
        f"Epilog={installed.root}/epilog.d/*\n"
        "PrologFlags=Alloc\n"
        "JobSubmitPlugins=lua\n"
    )
    return path


def apply(installed: Installation, chain: Path | None = None) -> None:
    bundle = build_bundle(compile_policy(Policy(chain=Chain(before=chain)), ResolvedNames(), SiteFacts()))
    (installed.root / "slurm" / "job_submit.lua").write_text(bundle)


def remove_hooks(installed: Installation) -> None:
    for kind in ("prolog", "epilog"):
        (installed.root / f"{kind}.d" / "10-slurm-gpu").unlink()


def lines(installed: Installation, host: str = "head") -> list[str]:
    """Return the lines to write or type, in the order of the steps."""
    return [line for step in uninstall_steps(installed.at(host)) for line in step.lines]


def test_slurm_conf_is_changed_and_reread_before_packages_are_removed(installed: Installation, conf: Path):
    apply(installed)
    root = installed.root
    assert lines(installed) == [
        f"{conf}:2: remove Prolog={root}/prolog.d/*",
        f"{conf}:3: remove Epilog={root}/epilog.d/*",
        f"{conf}:5: remove JobSubmitPlugins=lua",
        "systemctl restart slurmctld",
        "(on each host of slurmctld)",
        "scontrol reconfigure",
        "systemctl disable --now slurm-gpud slurm-gpuctld",
        "dnf remove slurm-gpu-node slurm-gpu-controller slurm-gpu-client slurm-gpu",
        f"rm {root}/prolog.d/10-slurm-gpu {root}/epilog.d/10-slurm-gpu {root}/slurm/job_submit.lua",
        "rm -r /etc/slurm-gpu /var/lib/slurm-gpu",
    ]


def test_remaining_reservations_are_deleted_after_slurm_gpuctld_stops(installed: Installation, conf: Path):
    installed.site_file.write_text("cluster: neuron\nplacement: {reservations: {}}\n")
    rest = "StartTime=1 EndTime=2 Nodes=n3 Users=bob Accounts=nlp Flags=MAGNETIC\n"
    installed.outputs["scontrol --oneliner show reservation"] = "".join(
        f"ReservationName={name} {rest}" for name in ("sg_5", "maint", "sg_3")
    )
    typed = lines(installed)
    stop = typed.index("systemctl disable --now slurm-gpud slurm-gpuctld")
    assert typed[stop + 1 : stop + 3] == [
        "scontrol delete ReservationName=sg_3",
        "scontrol delete ReservationName=sg_5",
    ]
    assert not any("maint" in line for line in typed)


def test_placement_is_disabled_before_slurm_gpuctld_stops(installed: Installation, conf: Path):
    """Only slurm-gpuctld removes the zone from the constraint of a pending job."""
    installed.site_file.write_text("cluster: neuron\nplacement: {mode: enforce}\n")
    typed = lines(installed)
    at = typed.index(f"{installed.site_file}: placement: mode: observe instead of enforce")
    assert typed[at + 1] == "systemctl restart slurm-gpuctld"
    assert at + 1 < typed.index("systemctl disable --now slurm-gpud slurm-gpuctld")
    installed.site_file.write_text("cluster: neuron\nplacement: {mode: advise}\n")
    assert not any("placement" in line for line in lines(installed))


def test_a_directory_with_hooks_of_the_site_remains_in_slurm_conf(installed: Installation, conf: Path):
    own = installed.root / "prolog.d" / "50-site"
    own.write_text("#!/bin/sh\n")
    assert lines(installed)[:2] == [
        f"{conf}:3: remove Epilog={installed.root}/epilog.d/*",
        "scontrol reconfigure",
    ]


def test_only_lua_is_removed_from_several_plugins(installed: Installation, conf: Path):
    # Slurm parses a Prolog with a comma as one glob pattern, which has no match here.
    conf.write_text(f"Prolog=/site,{installed.root}/prolog.d/*\nJobSubmitPlugins=throttle,lua\n")
    apply(installed)
    assert lines(installed)[:2] == [
        f"{conf}:2: replace JobSubmitPlugins=throttle,lua by JobSubmitPlugins=throttle",
        "systemctl restart slurmctld",
    ]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=[spelling.name for spelling in SPELLINGS])
def test_lines_are_found_in_every_spelling(installed: Installation, conf: Path, spelling: Spelling):
    settings = {kind: f"{installed.root}/{kind.lower()}.d/*" for kind in ("Prolog", "Epilog")}
    settings["JobSubmitPlugins"] = "lua"
    texts = [spelling.line(key, value).rstrip("\r\n") + "\n" for key, value in settings.items()]
    conf.write_text("".join(texts), newline="")
    apply(installed)
    starts = [1 + "".join(texts[:n]).count("\n") for n in range(len(texts))]
    assert lines(installed)[:3] == [
        f"{conf}:{start}: remove {spelling.key(key)}={value}"
        for start, (key, value) in zip(starts, settings.items(), strict=True)
    ]


def test_a_path_with_blanks_and_an_included_file(installed: Installation, conf: Path):
    (installed.root / "prolog.d").rename(installed.root / "site prologs")
    conf.write_text("Include hooks.conf\n")
    hooks = conf.with_name("hooks.conf")
    hooks.write_text(f'Prolog = "{installed.root}/site prologs/*"\nEpilog=../epilog.d/*\n')
    assert lines(installed)[:2] == [
        f'{hooks}:1: remove Prolog="{installed.root}/site prologs/*"',
        f"{hooks}:2: remove Epilog=../epilog.d/*",
    ]


def test_lua_remains_if_the_sites_own_script_is_restored(installed: Installation, conf: Path):
    for text in ("function slurm_job_submit() end\n", None):
        if text is None:
            apply(installed, Path("/etc/slurm/site.lua"))
        else:
            (installed.root / "slurm" / "job_submit.lua").write_text(text)
        assert not any("JobSubmitPlugins" in line or "job_submit.lua" in line for line in lines(installed))


def test_lua_remains_and_the_copy_is_named_if_a_replaced_script_is_restored(
    installed: Installation, conf: Path
):
    apply(installed)
    policy_state = installed.at().policy_state
    policy_state.mkdir()
    copy = policy_state / "job_submit-20261121T183000Z.lua"
    copy.write_text("function slurm_job_submit() end\n")
    assert not any("JobSubmitPlugins" in line or "job_submit.lua" in line for line in lines(installed))
    last = uninstall_steps(installed.at())[-1]
    assert f"job_submit.lua is your own script again, or your script is in {copy}." in last.what
    assert last.lines == ("rm -r /etc/slurm-gpu /var/lib/slurm-gpu",)


def test_a_shared_slurm_directory_is_cleaned_by_the_last_host(
    installed: Installation, conf: Path, monkeypatch: pytest.MonkeyPatch
):
    apply(installed)
    assert not any("--shared" in line for line in lines(installed))
    monkeypatch.setattr(uninstall, "shared_file_system", lambda path: "nfs4")
    (step,) = [step for step in uninstall_steps(installed.at()) if "is on nfs4" in step.what]
    assert step.lines == (
        "/usr/libexec/slurm-gpu/hooks/place remove --shared",
        "/usr/libexec/slurm-gpu/hooks/place-lua remove --shared",
    )
    typed = lines(installed)
    assert typed.index(step.lines[0]) < typed.index(
        "dnf remove slurm-gpu-node slurm-gpu-controller slurm-gpu-client slurm-gpu"
    )


def test_existing_timers_are_disabled_and_their_packages_removed(
    installed: Installation, conf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(boot, "UNITS", (tmp_path / "none", tmp_path))
    for name in ("slurm-gpu-report-daily.timer", "slurm-gpu-adjust.timer", "other.timer"):
        (tmp_path / name).touch()
    typed = lines(installed)
    timers = "slurm-gpu-adjust.timer slurm-gpu-report-daily.timer"
    assert f"systemctl disable --now slurm-gpud slurm-gpuctld {timers}" in typed
    packages = "slurm-gpu-node slurm-gpu-controller slurm-gpu-report"
    assert f"dnf remove {packages} slurm-gpu-client slurm-gpu" in typed


def test_limits_set_by_the_policy_are_restored_first(installed: Installation, conf: Path):
    apply(installed, Path("/etc/slurm/site.lua"))
    owned = Owned(Entity(EntityKind.QOS, "sg-a"), LimitField("MaxWall"), 60, None, "r")
    journal = ApplyJournal(installed.at().policy_state)
    with journal.lock():
        entry = Entry(cluster=installed.at().settings.cluster, policy="/p.yaml", owned=(owned,))
        journal.mark(journal.begin(entry), ApplyState.DONE)
    assert lines(installed)[:2] == [
        r"printf '%s\n' 'version: 1' 'chain: {before: /etc/slurm/site.lua}' >/root/no-rules.yaml",
        "slurm-gpu policy apply /root/no-rules.yaml",
    ]


def test_remaining_qos_are_named_with_the_command_that_deletes_them(installed: Installation, conf: Path):
    """`rollback` and a policy without rules keep the QOS that slurm-gpu created."""
    apply(installed)
    account = Entity(EntityKind.ACCOUNT, "vision")
    given = [
        Owned(account, LimitField("QOS", name), 1, None, "owners.vision")
        for name in ("sg-vision", "sg-loans")
    ]
    limit = Owned(Entity(EntityKind.QOS, "normal"), LimitField("GrpTRES", "gres/gpu"), 4, None, "owners")
    journal = ApplyJournal(installed.at().policy_state)
    with journal.lock():
        entry = Entry(cluster=installed.at().settings.cluster, policy="/p.yaml", owned=(*given, limit))
        journal.mark(journal.begin(entry), ApplyState.DONE)
    step = uninstall_steps(installed.at())[1]
    assert "(sg-loans, sg-vision) remain" in step.what
    assert step.lines == ("sacctmgr delete qos sg-loans", "sacctmgr delete qos sg-vision")


def test_without_access_to_the_journal_root_is_required(
    installed: Installation, conf: Path, monkeypatch: pytest.MonkeyPatch
):
    installed.at().policy_state.mkdir()
    monkeypatch.setattr(uninstall, "may_read", lambda directory: False)
    assert uninstall_steps(installed.at())[0].what.endswith(": run this as root.")


def test_a_controller_without_hooks_refers_to_a_gpu_node(installed: Installation, conf: Path):
    remove_hooks(installed)
    at = installed.at()
    at.nodes = []
    first = uninstall_steps(at)[0].lines[0]
    assert first == (
        f"{conf}:2: Prolog={installed.root}/prolog.d/* "
        "(run `slurm-gpu doctor uninstall` on a GPU node to see whether it may remain)"
    )


def test_on_a_login_node_only_the_command_is_removed(installed: Installation, conf: Path):
    remove_hooks(installed)
    conf.write_text("ClusterName=neuron\n")
    at = installed.at("login")
    at.nodes = []
    assert [line for step in uninstall_steps(at) for line in step.lines] == [
        "dnf remove slurm-gpu-client slurm-gpu",
        "rm -r /etc/slurm-gpu /var/lib/slurm-gpu",
    ]


def test_on_the_database_host_slurm_gpudbd_and_its_database_are_removed(installed: Installation, conf: Path):
    (installed.root / "slurm-gpudbd.yaml").write_text("")
    assert "systemctl disable --now slurm-gpud slurm-gpuctld slurm-gpudbd" in lines(installed)
    assert lines(installed)[-1] == "(and drop the database that url in slurm-gpudbd.yaml names)"


def test_on_the_web_host_slurm_gpuweb_is_removed(installed: Installation, conf: Path):
    (installed.root / "slurm-gpuweb.yaml").write_text("")
    at = installed.at("login")
    at.nodes = []
    remove_hooks(installed)
    conf.write_text("ClusterName=neuron\n")
    assert [line for step in uninstall_steps(at) for line in step.lines] == [
        "systemctl disable --now slurm-gpuweb",
        "dnf remove slurm-gpu-web slurm-gpu-client slurm-gpu",
        "rm -r /etc/slurm-gpu /var/lib/slurm-gpu /var/lib/slurm-gpu-web",
    ]


@pytest.fixture
def fail_slurm(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes Slurm unavailable for the rest of the test."""

    def fail(error: str) -> None:
        def settings(self: DoctorContext) -> None:
            raise SlurmError(error)

        for name in ("settings", "nodes"):
            monkeypatch.setattr(DoctorContext, name, property(settings))

    return fail


def test_the_web_host_needs_no_slurm(
    installed: Installation, fail_slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    (installed.root / "slurm-gpuweb.yaml").write_text("")
    monkeypatch.setenv("SLURM_CONF", "/nosuch/slurm.conf")
    fail_slurm("scontrol is not on the PATH; install Slurm's client commands")
    at = installed.at("web")
    at.has_unit = lambda daemon: daemon == "slurm-gpuweb"
    first, *rest = uninstall_steps(at)
    assert "assumed to have no Slurm" in first.what
    assert [line for step in rest for line in step.lines] == [
        "systemctl disable --now slurm-gpuweb",
        "dnf remove slurm-gpu-web slurm-gpu-client slurm-gpu",
        "rm -r /etc/slurm-gpu /var/lib/slurm-gpu /var/lib/slurm-gpu-web",
    ]


def test_the_files_of_a_host_are_removed_while_slurmctld_is_down(
    installed: Installation, conf: Path, fail_slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_CONF", str(conf))
    fail_slurm("`scontrol ping` failed: Slurmctld(primary) at head is DOWN")
    at, root = installed.at(), installed.root
    at.has_unit = lambda daemon: daemon == "slurm-gpud"
    first, *rest = uninstall_steps(at)
    assert first.what.startswith("Slurm could not be checked: `scontrol ping` failed")
    assert [line for step in rest for line in step.lines] == [
        f"{conf}:2: remove Prolog={root}/prolog.d/*",
        f"{conf}:3: remove Epilog={root}/epilog.d/*",
        "scontrol reconfigure",
        "systemctl disable --now slurm-gpud",
        "dnf remove slurm-gpu-node slurm-gpu-client slurm-gpu",
        f"rm {root}/prolog.d/10-slurm-gpu {root}/epilog.d/10-slurm-gpu",
        "rm -r /etc/slurm-gpu /var/lib/slurm-gpu",
    ]


def test_the_controllers_files_are_removed_while_slurmctld_is_down(
    installed: Installation, conf: Path, fail_slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
):
    """The steps mention the limits of the policy without checking them, because slurmctld is down."""
    apply(installed)
    installed.at().policy_state.mkdir()
    monkeypatch.setenv("SLURM_CONF", str(conf))
    fail_slurm("no answer")
    steps = uninstall_steps(installed.at())
    unchecked = [step.what for step in steps if "could not be checked whether" in step.what]
    assert ["limits of the policy" in what for what in unchecked] == [True]
    assert "systemctl disable --now slurm-gpud slurm-gpuctld" in [one for step in steps for one in step.lines]


def test_a_broken_site_file_does_not_stop_the_removal(installed: Installation, conf: Path):
    installed.site_file.write_text("cluster: [\n")
    steps = uninstall_steps(installed.at())
    assert any("is not valid YAML" in step.what for step in steps)
    assert steps[-1].lines == ("rm -r /etc/slurm-gpu /var/lib/slurm-gpu",)


def test_on_a_configless_node_the_cached_slurm_conf_is_read(installed: Installation, conf: Path):
    cached = installed.at().conf_cache
    cached.parent.mkdir()
    conf.rename(cached)
    step = uninstall_steps(installed.at("localhost"))[0]
    assert step.what == "In slurm.conf, on the controller, which sent this node the copy named here:"
    assert step.lines[0] == f"{cached}:2: remove Prolog={installed.root}/prolog.d/*"


def test_without_slurm_conf_the_other_files_are_removed(installed: Installation):
    steps = uninstall_steps(installed.at())
    assert steps[0].what.startswith(
        f"slurm.conf could not be checked: {installed.conf['SLURM_CONF']}: No such file or directory."
    )
    assert "systemctl disable --now slurm-gpud slurm-gpuctld" in [one for step in steps for one in step.lines]


@pytest.fixture
def by_hand(installed: Installation, conf: Path) -> Installation:
    """Return an installation from the checkout, with hooks next to slurm.conf."""
    installed.has_units = False
    for kind, name in (("Prolog", "10-slurm-gpu"), ("Epilog", "90-slurm-gpu")):
        directory = conf.parent / f"{kind.lower()}.d"
        (installed.root / f"{kind.lower()}.d").rename(directory)
        (directory / "10-slurm-gpu").rename(directory / name)
    return installed


def test_hooks_that_no_glob_matches_any_more_are_removed(by_hand: Installation, conf: Path):
    """After slurm.conf was changed, hooks that were installed by hand remain on GPU nodes."""
    conf.write_text("ClusterName=neuron\n")
    by_hand.conf.update(Prolog="(null)", Epilog="(null)")
    hooks = f"{conf.parent}/prolog.d/10-slurm-gpu {conf.parent}/epilog.d/90-slurm-gpu"
    (step,) = [step for step in uninstall_steps(by_hand.at()) if "not installed from packages" in step.what]
    assert step.what.startswith("Remove slurm-gpu")
    assert step.lines[0] == f"rm -r {hooks} {by_hand.root}/run"
    by_hand.has_units = True  # packages leave stubs
    assert f"rm {hooks}" in lines(by_hand)


def test_hooks_that_slurm_runs_until_it_is_reconfigured_are_not_removed(by_hand: Installation, conf: Path):
    """A glob that matches no file drains the node."""
    conf.write_text("ClusterName=neuron\n")
    by_hand.conf.update(Prolog=f"{conf.parent}/prolog.d/*", Epilog="(null)")
    assert f"install -m 755 /usr/bin/true {conf.parent}/prolog.d/10-slurm-gpu" in lines(by_hand)
    assert f"rm -r {conf.parent}/epilog.d/90-slurm-gpu {by_hand.root}/run" in lines(by_hand)


def test_a_hook_is_not_removed_by_its_second_name(by_hand: Installation, conf: Path):
    (by_hand.root / "etc").symlink_to(conf.parent)
    conf.write_text(f"Prolog={conf.parent}/prolog.d/*\nEpilog={conf.parent}/epilog.d/*\n")
    assert [line for line in lines(by_hand) if f"{by_hand.root}/etc" in line] == []


def test_the_command_numbers_the_steps(slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch):
    steps = [UninstallStep("First.", ("type this",)), UninstallStep("Then that.")]
    monkeypatch.setattr("slurm_gpu.cli.doctor.group.uninstall_steps", lambda at: steps)
    assert slurm_gpu("doctor", "uninstall") == 0
    assert slurm_gpu.out.splitlines() == [" 1  First.", "      type this", " 2  Then that."]


def test_a_checkout_has_no_steps_for_packages(installed: Installation, conf: Path):
    apply(installed)
    installed.has_units = False
    installed.process(7, "slurm-gpud", "--node=n1")
    root, typed = installed.root, lines(installed)
    assert not [line for line in typed if "systemctl" in line or "dnf" in line or "libexec" in line]
    at = typed.index("kill 7")
    assert typed[at + 1 :] == [
        f"install -m 755 /usr/bin/true {root}/prolog.d/10-slurm-gpu",
        f"install -m 755 /usr/bin/true {root}/epilog.d/10-slurm-gpu",
        f"rm -r {root}/run",
        f"{sys.executable} -m pip uninstall slurm-gpu",
        f"rm {root}/prolog.d/10-slurm-gpu {root}/epilog.d/10-slurm-gpu {root}/slurm/job_submit.lua",
        "rm -r /etc/slurm-gpu /var/lib/slurm-gpu",
    ]


def test_files_installed_by_hand_are_removed_too(
    installed: Installation, conf: Path, monkeypatch: pytest.MonkeyPatch
):
    """Remove units, links to the commands, and the virtual environment that contains the commands."""
    installed.has_units = False
    (installed.root / "by-hand").mkdir()
    unit, link = (installed.root / "by-hand" / name for name in ("slurm-gpu", "slurm-gpud.service"))
    unit.touch()
    link.symlink_to("/nowhere")
    monkeypatch.setattr(sys, "prefix", "/opt/slurm-gpu")
    typed = lines(installed)
    at = typed.index(f"rm -r {unit} {link} {installed.root}/run")
    assert typed[at + 1 : at + 3] == ["systemctl daemon-reload", "rm -r /opt/slurm-gpu"]
    assert not [line for line in typed if "pip uninstall" in line]
