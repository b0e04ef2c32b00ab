"""`slurm-gpu doctor` reports what drains nodes and what prevents hooks from reporting jobs."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.files import hook_file as hookfile
from slurm_gpu.cli.doctor.checks.files import hooks
from slurm_gpu.cli.doctor.checks.finding import Level
from tests.cli.installation import Installation, levels, worst

ROOT = Path(__file__).resolve().parents[2]
PLACE = "/usr/libexec/slurm-gpu/hooks/place install"
STUB = "#!/bin/sh\n# Slurm prolog: slurm-gpu was removed from this host\nexit 0\n"


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate hooks from a package."""
    monkeypatch.setattr(hookfile, "has_package", lambda: True)
    monkeypatch.setattr(hooks, "has_package", lambda: True)


def hook(installed: Installation, kind: str, name: str, text: str = "#!/bin/sh\n") -> Path:
    path = installed.root / f"{kind}.d" / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_installed_hooks_are_ok(installed: Installation):
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]


def test_hooks_printed_as_a_list_are_ok(installed: Installation):
    installed.conf["Prolog[0]"] = installed.conf.pop("Prolog")
    installed.conf["Prolog"] = "(null)"
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]


@pytest.mark.usefixtures("packaged")
def test_a_missing_hook_setting_is_reported(installed: Installation):
    installed.conf["Epilog"] = "(null)"
    finding = worst(hooks.configured(installed.at()))
    assert finding.message == "slurm.conf has no Epilog: jobs leave no GPU records"
    conf = Path(installed.conf["SLURM_CONF"]).parent
    assert f"place install --conf {conf} on each GPU node" in str(finding.remedy)
    assert f"then set Epilog={conf}/epilog.d/* in slurm.conf" in str(finding.remedy)


@pytest.mark.parametrize("conf", ["", "{kind}={glob}\n"])
def test_only_the_steps_that_are_left_for_a_hook_are_named(installed: Installation, conf: str):
    kind, slurm = "Prolog", Path(installed.conf["SLURM_CONF"])
    hook = slurm.parent / "prolog.d" / "10-slurm-gpu"
    hook.parent.mkdir()
    (installed.root / "prolog.d" / hook.name).rename(hook)
    glob = f"{hook.parent}/*"
    slurm.write_text(conf.format(kind=kind, glob=glob) + f"Epilog={installed.conf['Epilog']}\n")
    installed.conf[kind] = "(null)"
    finding = worst(hooks.configured(installed.at()))
    assert finding.remedy == (
        "run scontrol reconfigure"
        if conf
        else f"once each node has a hook that {glob} matches, as this node does, set Prolog={glob} in "
        "slurm.conf and run scontrol reconfigure"
    )


def test_an_empty_glob_is_reported(installed: Installation):
    (installed.root / "prolog.d" / "10-slurm-gpu").unlink()
    first, second = hooks.configured(installed.at())
    assert "matches no file: Slurm drains" in first.message
    assert (first.level, second.level) == (Level.FAIL, Level.OK)  # the epilog is OK


def test_a_file_that_cannot_be_executed_is_reported(installed: Installation):
    """A script needs chmod; a text file would drain nodes even if it were executable."""
    (installed.root / "prolog.d" / "README").write_text("read me")
    finding = worst(hooks.configured(installed.at()))
    assert (finding.level, "README" in finding.message) == (Level.FAIL, True)
    assert str(finding.remedy).startswith("move ")
    (installed.root / "prolog.d" / "README").write_text("#!/bin/sh\n")
    assert str(worst(hooks.configured(installed.at())).remedy).startswith("run chmod +x ")


def test_a_hook_that_is_not_executable_is_not_ok_as_well(installed: Installation):
    (installed.root / "epilog.d" / "10-slurm-gpu").chmod(0o644)
    prolog, epilog = hooks.configured(installed.at())
    assert prolog.level is Level.OK
    assert "is not executable" in epilog.message


def test_a_typo_in_slurm_conf_is_recognized_by_the_installed_hook(installed: Installation):
    """Without the typo, the glob would match the hook in the directory of slurm.conf."""
    directory = Path(installed.conf["SLURM_CONF"]).parent
    (installed.root / "prolog.d").rename(directory / "prolog.d")
    installed.conf["Prolog"] = f"{directory}/prologs.d/*"
    finding = worst(hooks.configured(installed.at()))
    assert finding.message.startswith(f"Prolog={directory}/prologs.d/* matches no file")
    assert str(finding.remedy).startswith(
        f"{directory}/prolog.d/10-slurm-gpu is our hook: if {directory}/prologs.d/* is a mistake, set "
        f"Prolog={directory}/prolog.d/* in slurm.conf and run scontrol reconfigure; otherwise run install "
    )


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/nowhere")])
def test_directories_and_dead_links_are_reported(installed: Installation, make: Callable[[Path], None]):
    make(installed.root / "epilog.d" / "old")
    (finding,) = [one for one in hooks.configured(installed.at()) if one.level is not Level.OK]
    assert "is not a file: Slurm drains nodes" in finding.message


def test_a_hook_that_others_can_write_is_reported(installed: Installation):
    hook(installed, "prolog", "50-site").chmod(0o775)
    finding = worst(hooks.configured(installed.at()))
    assert finding.level is Level.FAIL
    assert "runs as root for every job" in finding.message


@pytest.mark.parametrize("name", ["", "50-site"])
@pytest.mark.parametrize(("uid", "level"), [(0, "ok"), (64030, "ok"), (1001, "fail")])
def test_a_hook_or_directory_of_another_user_is_reported(
    installed: Installation, name: str, uid: int, level: str
):
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of files")
    at = installed.at()
    at.settings = dataclasses.replace(at.settings, slurm_user_uid=64030)
    hook(installed, "prolog", "50-site")
    path = installed.root / "prolog.d" / name
    os.chown(path, uid, -1)
    finding = worst(hooks.configured(at))
    assert finding.level.value in (level, "warn")
    assert (f"{path} belongs to uid 1001: " in finding.message) == (level == "fail")


def test_a_directory_of_hooks_that_others_can_write_is_reported(installed: Installation):
    (installed.root / "epilog.d").chmod(0o1777)
    finding = worst(hooks.configured(installed.at()))
    assert finding.message.endswith("epilog.d: a file that is put there runs as root")


def test_other_hooks_without_that_of_slurm_gpu_are_reported(installed: Installation):
    (installed.root / "prolog.d" / "10-slurm-gpu").unlink()
    hook(installed, "prolog", "50-site")
    assert "does not run our hook" in worst(hooks.configured(installed.at())).message


def test_the_slurm_gpu_hook_is_recognized_under_any_name(installed: Installation):
    (installed.root / "prolog.d" / "10-slurm-gpu").unlink()
    hook(installed, "prolog", "50-gpus", (ROOT / "prolog" / "10-slurm-gpu").read_text())
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]


def test_a_hook_of_an_earlier_release_is_recognized(installed: Installation):
    text = (ROOT / "prolog" / "10-slurm-gpu").read_text()
    earlier = text.replace(": notify slurm-gpud ", ": tell slurm-gpud ", 1)
    assert earlier != text
    assert all(hookfile.HookFile(Path("50-gpus"), one).is_ours for one in (text, earlier))


def test_a_hook_of_the_site_is_not_mistaken_for_that_of_slurm_gpu(installed: Installation):
    for kind in ("prolog", "epilog"):
        hook(installed, kind, "50-slurm-gpu-health")
    assert not any("both our" in finding.message for finding in hooks.configured(installed.at()))


@pytest.mark.usefixtures("packaged")
def test_the_stub_of_a_removal_is_reported(installed: Installation):
    path = hook(installed, "prolog", "10-slurm-gpu", STUB)
    finding = worst(hooks.configured(installed.at()))
    assert (finding.level, finding.remedy) == (Level.FAIL, f"run {PLACE} --conf {installed.root}")
    assert finding.message.startswith(f"{path} is the stub that a removal of slurm-gpu left")


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize(
    ("kind", "pattern", "remedy"),
    [
        ("Prolog", "/etc/slurm/prolog.d/*", f"run {PLACE}"),
        ("Epilog", "/opt/slurm/etc/epilog.d/*", f"run {PLACE} --conf /opt/slurm/etc"),
        ("Epilog", "/etc/slurm/epilog.d/9*", f"run {PLACE}"),
        (
            "Prolog",
            "/etc/slurm/hooks/*",
            "run install -D -m 755 /usr/libexec/slurm-gpu/hooks/prolog /etc/slurm/hooks/10-slurm-gpu, "
            "and again after each upgrade",
        ),
        (
            "Prolog",
            "/etc/slurm/prolog.sh",
            f"run {PLACE}; then copy /etc/slurm/prolog.sh into /etc/slurm/prolog.d, "
            "set Prolog=/etc/slurm/prolog.d/* in slurm.conf, and run scontrol reconfigure",
        ),
        (
            "Prolog",
            "/etc/slurm/prolog.d/*.sh",
            f"run {PLACE}; then copy /etc/slurm/prolog.d/*.sh into /etc/slurm/prolog.d, "
            "set Prolog=/etc/slurm/prolog.d/* in slurm.conf, and run scontrol reconfigure",
        ),
    ],
)
def test_the_remedy_installs_the_hook_where_slurm_runs_it(kind: str, pattern: str, remedy: str):
    assert hooks.placing(kind, [pattern]) == remedy
    for_both = remedy.replace(f"copy {pattern}", "copy /site/one")
    assert hooks.placing(kind, ["/site/one", pattern]) == for_both


def test_a_relative_path_is_read_from_the_cache_of_slurmd(installed: Installation):
    cached = installed.root / "cached"
    cached.mkdir()
    for kind in ("prolog", "epilog"):
        hook(installed, kind, "10-slurm-gpu").rename(cached / f"{kind}.sh")
        installed.conf[kind.capitalize()] = f"{kind}.sh"
        (cached / f"{kind}.sh").write_text((ROOT / kind / "10-slurm-gpu").read_text())
    found = list(hooks.configured(installed.at()))
    assert [one.message for one in found] == [
        f"{kind} runs our hook, {cached}/{kind.lower()}.sh" for kind in ("Prolog", "Epilog")
    ]


def test_a_second_slurm_gpu_hook_is_reported(installed: Installation):
    second = hook(installed, "epilog", "90-slurm-gpu", (ROOT / "epilog" / "10-slurm-gpu").read_text())
    finding = worst(hooks.configured(installed.at()))
    assert (finding.level, finding.remedy) == (Level.WARN, f"run rm {second}")


def test_the_slurm_gpu_hook_must_be_the_last_prolog_and_the_first_epilog(installed: Installation):
    for kind in ("prolog", "epilog"):
        hook(installed, kind, "50-site")
    epilog = installed.root / "epilog.d"
    (epilog / "10-slurm-gpu").rename(epilog / "90-slurm-gpu")
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]
    hook(installed, "prolog", "05-late")
    hook(installed, "epilog", "95-early")
    found = [one for one in hooks.configured(installed.at()) if one.level is Level.WARN]
    assert [one.remedy for one in found] == [
        "rename it so that its name sorts after 10-slurm-gpu",
        "rename it so that its name sorts before 90-slurm-gpu",
    ]


def test_a_hook_of_another_version_than_the_package_is_reported(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
):
    text = (ROOT / "prolog" / "10-slurm-gpu").read_text()
    packaged = installed.root / "hooks"
    packaged.mkdir()
    (packaged / "prolog").write_text(text)
    monkeypatch.setattr(hooks, "PACKAGED", packaged)
    signature = "# Placed by slurm-gpu; changed here if not cksum 1 2\n"
    hook(installed, "prolog", "10-slurm-gpu", text + signature)
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]
    (packaged / "prolog").write_text(text + "# new\n")
    assert (
        "differs from the prolog of the installed package" in worst(hooks.configured(installed.at())).message
    )
    hook(installed, "prolog", "10-slurm-gpu", text)  # installed by hand
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]


def test_a_line_that_slurm_ignores_is_named_with_its_position(installed: Installation):
    conf = Path(installed.conf["SLURM_CONF"])
    more = conf.with_name("more.conf")
    more.write_text(f"\n# hooks\nPROLOG = {installed.root}/prolog.d/*\n")
    conf.write_text("include more.conf\n#Prolog=/none\nProlog=/site/one\n")
    installed.conf["Prolog"] = "/site/one"
    found = [one.message for one in hooks.configured(installed.at()) if "lines Prolog=" in one.message]
    assert found == [
        "slurm.conf has 2 lines Prolog=, but Slurm 22.05.8 uses only /site/one: "
        f"{installed.root}/prolog.d/* ({more}:3) is not run"
    ]
    installed.conf |= {"Prolog[0]": f"{installed.root}/prolog.d/*", "Prolog[1]": "/site/one"}
    del installed.conf["Prolog"]
    assert not any("lines Prolog=" in one.message for one in hooks.configured(installed.at()))


def test_a_line_added_to_others_is_checked_before_slurm_reads_it(installed: Installation):
    """Slurm 24.11 and later run the hooks of all lines."""
    conf, own = Path(installed.conf["SLURM_CONF"]), installed.conf["Prolog"]
    conf.write_text(f"Prolog={own}\nProlog={installed.root}/new.d/*\nEpilog={installed.conf['Epilog']}\n")
    installed.conf |= {"Prolog[0]": own, "Prolog": "(null)"}
    (installed.root / "new.d").mkdir()
    empty, own_is_ok, changed, epilog = hooks.configured(installed.at())
    assert empty.message.startswith(f"Prolog={installed.root}/new.d/* matches no file")
    assert changed.message == f"{conf} has Prolog={installed.root}/new.d/*, which Slurm has not read yet"
    assert [one.level for one in (own_is_ok, changed, epilog)] == [Level.OK, Level.WARN, Level.OK]


def test_a_line_that_will_replace_another_is_checked_before_slurm_reads_it(installed: Installation):
    """Slurm before 24.11 uses only the last line."""
    conf, own = Path(installed.conf["SLURM_CONF"]), installed.conf["Prolog"]
    conf.write_text(f"Prolog={own}\nProlog={installed.root}/new.d/*\n")
    (installed.root / "new.d").mkdir()
    found = [one.message for one in hooks.configured(installed.at())]
    assert sum(one.startswith(f"Prolog={installed.root}/new.d/* matches no file") for one in found) == 1


def test_on_other_hosts_hooks_are_skipped(installed: Installation):
    at = installed.at(host="login")
    at.nodes = []
    assert levels(hooks.configured(at)) == ["skipped", "skipped"]


OURS = {kind: (ROOT / kind / "10-slurm-gpu").read_text() for kind in ("prolog", "epilog")}
WRAPPED = f"#!/bin/bash\n# runs slurm-gpu's\nexport X=1\n. {ROOT}/{{}}/10-slurm-gpu\nexit 0\n"
DOES_NOTHING = {
    "empty script": "#!/bin/sh\n",
    "true": "#!/bin/sh\nexit 0\n",
    "only the head": "\n".join(OURS["prolog"].splitlines()[:6]) + "\n",
    "cut short": OURS["prolog"][: OURS["prolog"].index("file=$wall")],
    "ends at once": OURS["prolog"].replace("event=prolog", "exit 0\nevent=prolog"),
    "commented out": "#!/bin/sh\n" + "".join(f"# {line}\n" for line in OURS["prolog"].splitlines()[1:]),
    "runs ours in a remark": "#!/bin/sh\n# . " + f"{ROOT}/prolog/10-slurm-gpu\n",
    "runs what is not there": "#!/bin/sh\n. /opt/none/prolog/10-slurm-gpu\n",
    "an editor's own": "#!/usr/bin/python3\nprint('event=prolog')\n",
}


@pytest.mark.parametrize("name", DOES_NOTHING)
def test_a_file_with_the_hooks_name_that_does_nothing_is_reported(installed: Installation, name: str):
    path = hook(installed, "prolog", "10-slurm-gpu", DOES_NOTHING[name])
    finding = worst(hooks.configured(installed.at()))
    assert finding.level is Level.FAIL
    assert finding.message.startswith(f"{path} has the name of slurm-gpu's prolog, but does not run it")
    assert str(finding.remedy).endswith(f"install -m 755 {ROOT}/prolog/10-slurm-gpu {path}")


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", ["prolog", "epilog"])
def test_a_hook_is_recognized_by_its_content(installed: Installation, kind: str, wrapped: bool):
    """Recognise a copy or a wrapper under any name, and report a hook of the other kind."""
    other = {"prolog": "epilog", "epilog": "prolog"}[kind]
    (installed.root / f"{kind}.d" / "10-slurm-gpu").unlink()
    for event, level in ((kind, Level.OK), (other, Level.FAIL)):
        path = hook(installed, kind, "50-gpus", WRAPPED.format(event) if wrapped else OURS[event])
        finding = worst(hooks.configured(installed.at()))
        assert finding.level is level
        if level is Level.FAIL:
            assert finding.message.startswith(
                f"{path} runs as {kind.capitalize()}, but is slurm-gpu's {other}"
            )
            assert finding.remedy == f"run install -m 755 {ROOT}/{kind}/10-slurm-gpu {path}"


def test_the_slurm_conf_of_the_node_must_run_the_hook_too(installed: Installation):
    conf = Path(installed.conf["SLURM_CONF"])
    conf.write_text("".join(f"{kind}={installed.conf[kind]}\n" for kind in ("Prolog", "Epilog")))
    assert levels(hooks.configured(installed.at())) == ["ok", "ok"]
    conf.write_text(f"Epilog={installed.conf['Epilog']}\n")
    assert f"{conf} on this node has no Prolog" in worst(hooks.configured(installed.at())).message


def test_files_that_would_drain_nodes_are_found_before_slurm_reads_the_setting(installed: Installation):
    """Admins run doctor after editing slurm.conf: after `scontrol reconfigure` it would be too late."""
    conf = Path(installed.conf["SLURM_CONF"])
    conf.write_text("".join(f"{kind}={installed.conf[kind]}\n" for kind in ("Prolog", "Epilog")))
    readme = installed.root / "prolog.d" / "README"
    readme.write_text("read me")
    installed.conf.update(Prolog="(null)", Epilog="(null)")
    trap, prolog, epilog = hooks.configured(installed.at())
    assert (trap.level, trap.remedy) == (Level.FAIL, f"move {readme} to another directory")
    for kind, finding in (("Prolog", prolog), ("Epilog", epilog)):
        assert finding.level is Level.FAIL
        assert finding.message.startswith(f"{conf} has {kind}=")
        assert "which Slurm has not read yet" in finding.message
        assert str(finding.remedy).startswith("run scontrol reconfigure")
    readme.unlink()
    assert [one.message.partition(" has ")[0] for one in hooks.configured(installed.at())] == [str(conf)] * 2


def test_files_of_a_changed_setting_are_checked_too(installed: Installation):
    conf, other = Path(installed.conf["SLURM_CONF"]), installed.root / "new.d"
    other.mkdir()
    conf.write_text(f"Prolog={other}/*\nEpilog={installed.conf['Epilog']}\n")
    empty, differs, epilog = hooks.configured(installed.at())
    assert empty.message == f"Prolog={other}/* matches no file: Slurm drains the node of the next job"
    assert "which slurmd uses" in differs.message
    assert epilog.level is Level.OK
