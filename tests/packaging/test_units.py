"""Verify the units of the daemons with systemd, and check their users and requirements."""

import configparser
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.slurm.runner import QUERY_TIMEOUT_S

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "packaging/systemd"
DAEMONS = ("slurm-gpud", "slurm-gpudbd", "slurm-gpuctld", "slurm-gpuweb")
SERVED = tuple(f"{name}.service" for name in DAEMONS)
OF_SLURM_USER = ("slurm-gpudbd.service", "slurm-gpuctld.service")
ADJUST = ("slurm-gpu-adjust.service", "slurm-gpu-adjust.timer")
FORECAST = ("slurm-gpu-forecast.service", "slurm-gpu-forecast.timer")
REPORT = (
    "slurm-gpu-report@.service",
    *(f"slurm-gpu-report-{how}.timer" for how in ("daily", "weekly", "monthly")),
)

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd's own tools are not installed here"
)
Settings = dict[str, list[str]]


def settings(unit: str) -> Settings:
    """Return the settings under [Service] by key; a key may have several values."""
    lines = (UNITS / unit).read_text().partition("[Service]\n")[2].partition("\n[")[0].splitlines()
    found: Settings = {}
    for line in lines:
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_COLORS": "0"}
    )


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Path]:
    """Return a root directory with systemd's own targets, our files, and programs for the units to start."""
    units = tmp_path / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for target in Path("/usr/lib/systemd/system").glob("*.target"):
        shutil.copy(target, units)
    for unit in (*SERVED, *ADJUST, *FORECAST, *REPORT):
        shutil.copy(UNITS / unit, units)
    for name in (*(f"sbin/{name}" for name in DAEMONS), "bin/slurm-gpu"):
        launcher = tmp_path / "usr" / name
        launcher.parent.mkdir(exist_ok=True)
        launcher.write_text("#!/bin/sh\n")
        launcher.chmod(0o755)
    for kind in ("sysusers", "tmpfiles"):
        place = tmp_path / f"usr/lib/{kind}.d/slurm-gpu.conf"
        place.parent.mkdir()
        shutil.copy(UNITS / f"{kind}.conf", place)
    shutil.copy(UNITS / "sysusers-web.conf", tmp_path / "usr/lib/sysusers.d/slurm-gpu-web.conf")
    (tmp_path / "etc").mkdir()
    return tmp_path


def test_every_unit_is_one_of_these_and_in_one_package() -> None:
    spec = (ROOT / "packaging/rpm/slurm-gpu.spec").read_text()
    packed = re.findall(r"^%\{units\}/(\S+)$", spec, re.MULTILINE)
    for path in (*UNITS.glob("*.service"), *UNITS.glob("*.timer")):
        assert path.name in (*SERVED, *ADJUST, *FORECAST, *REPORT)
        assert sum(path.match(pattern) for pattern in packed) == 1, (
            f"%files of exactly one package must list {path.name}"
        )


@needs_systemd
@pytest.mark.parametrize("unit", [*SERVED, *ADJUST, *FORECAST, "slurm-gpu-report@day.service", *REPORT[1:]])
def test_systemd_verifies_each_unit_without_warnings(unit: str, system: Path) -> None:
    done = run("systemd-analyze", "verify", "--man=no", f"--root={system}", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd
@pytest.mark.parametrize("unit", [*SERVED, ADJUST[0], FORECAST[0], REPORT[0]])
def test_it_is_exposed_to_3_of_10_at_most(unit: str) -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--threshold=30", UNITS / unit)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_systemd
def test_slurm_user_is_made_where_there_is_none_and_owns_what_its_daemons_share(system: Path) -> None:
    assert run("systemd-sysusers", f"--root={system}").returncode == 0
    assert run("systemd-tmpfiles", f"--root={system}", "--create").returncode == 0
    users = {
        line.split(":")[0]: int(line.split(":")[2])
        for line in (system / "etc/passwd").read_text().splitlines()
    }
    assert set(users) == {user for unit in SERVED for user in settings(unit).get("User", [])}
    for place in ("run/slurm-gpu", "var/lib/slurm-gpu"):
        status = (system / place).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (users["slurm"], 0o755)


@needs_systemd
def test_a_slurm_user_that_is_there_stays_as_it_is(system: Path) -> None:
    (system / "etc/passwd").write_text("slurm:x:64030:64030::/nonexistent:/bin/false\n")
    (system / "etc/group").write_text("slurm:x:64030:\n")
    assert run("systemd-sysusers", f"--root={system}").returncode == 0
    lines = (system / "etc/passwd").read_text().splitlines()
    assert [line for line in lines if line.startswith("slurm:")] == [
        "slurm:x:64030:64030::/nonexistent:/bin/false"
    ]


@needs_systemd
@pytest.mark.parametrize("user", ["slurm", "hpc"])
def test_the_file_with_the_password_belongs_to_slurm_user(system: Path, user: str) -> None:
    """An upgrade may change the owner to slurm; the site's /etc/tmpfiles.d is applied afterwards."""
    (system / "etc/passwd").write_text("slurm:x:64030:64030::/:/bin/false\nhpc:x:64031:64031::/:/bin/false\n")
    (system / "etc/group").write_text("slurm:x:64030:\nhpc:x:64031:\n")
    secret = system / "etc/slurm-gpu/slurm-gpudbd.yaml"
    secret.parent.mkdir()
    secret.write_text("database: {}\n")
    secret.chmod(0o644)
    if user != "slurm":  # as in docs/install.md
        own = system / "etc/tmpfiles.d/slurm-gpu.conf"
        own.parent.mkdir()
        text = (UNITS / "tmpfiles.conf").read_text()
        own.write_text(text.replace(" slurm slurm ", f" {user} {user} "))
    assert run("systemd-tmpfiles", f"--root={system}", "--create", "slurm-gpu.conf").returncode == 0
    status = secret.stat()
    assert (status.st_uid, status.st_mode & 0o777) == ({"slurm": 64030, "hpc": 64031}[user], 0o600)
    assert (system / "var/lib/slurm-gpu").stat().st_uid == status.st_uid


def test_every_unit_that_is_enabled_is_known_to_the_scripts_of_its_package() -> None:
    """Otherwise, the unit of a removed package would stay enabled, and a preset would be ignored."""
    spec = (ROOT / "packaging/rpm/slurm-gpu.spec").read_text()
    for path in UNITS.iterdir():
        if "[Install]" not in path.read_text():
            continue
        for moment in ("post", "preun", "postun"):
            assert re.search(rf"^%unit_{moment} .*\b{re.escape(path.name)}\b", spec, re.MULTILINE), (
                moment,
                path,
            )


def test_every_unit_starts_a_command_that_there_is() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    commands = {
        line.split()[0] for line in setup["options.entry_points"]["console_scripts"].split("\n") if line
    }
    for name, unit in zip(DAEMONS, SERVED, strict=True):
        assert settings(unit)["ExecStart"] == [f"/usr/sbin/{name}"]
        assert name in commands


@pytest.mark.parametrize("unit", [*SERVED, ADJUST[0], FORECAST[0], REPORT[0]])
def test_the_location_of_slurm_is_set_in_one_file(unit: str) -> None:
    assert settings(unit)["EnvironmentFile"] == ["-/etc/default/slurm-gpu", "-/etc/sysconfig/slurm-gpu"]


@pytest.mark.parametrize("unit", SERVED)
def test_failed_daemons_are_restarted_but_not_after_wrong_usage(unit: str) -> None:
    found = settings(unit)
    assert found["Type"] == ["notify"]
    assert int(found["WatchdogSec"][0]) >= 60
    assert found["Restart"] == ["always"]
    assert found["RestartPreventExitStatus"] == ["2"]
    assert "StartLimitIntervalSec=0\n" in (UNITS / unit).read_text()
    assert {"MemoryMax", "TasksMax", "LimitNOFILE"} <= set(found)


def test_a_diagnosis_that_takes_all_memory_ends_no_page() -> None:
    assert settings("slurm-gpuweb.service")["OOMPolicy"] == ["continue"]


@pytest.mark.parametrize("unit", [*SERVED[1:], ADJUST[0], FORECAST[0], REPORT[0]])
def test_threads_of_numpy_are_limited_on_any_number_of_processors(unit: str) -> None:
    """On 64 processors, numpy's 63 threads leave no task for sacctmgr, and scipy's 63 end the process."""
    found = settings(unit)
    words = " ".join(found["Environment"]).split()
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        (threads,) = [int(word.partition("=")[2]) for word in words if word.startswith(f"{variable}=")]
        assert threads <= int(found["TasksMax"][0]) / 16


def test_adjust_may_write_where_a_slurm_without_a_prefix_is_configured() -> None:
    """ProtectSystem=yes makes /usr read-only, including the default sysconfdir of Slurm's sources."""
    assert settings("slurm-gpu-adjust.service")["ReadWritePaths"] == ["-/usr/local/etc"]


def test_slurm_gpuctld_is_not_ended_while_slurmctld_is_slow() -> None:
    """slurm-gpuctld notifies systemd between polls, after half the time; a poll makes up to four calls."""
    watchdog_s, pause_s = int(settings("slurm-gpuctld.service")["WatchdogSec"][0]), 20
    assert watchdog_s / 2 + 4 * QUERY_TIMEOUT_S + pause_s < watchdog_s


def test_root_keeps_its_own_directories_inside_those_of_slurm_user() -> None:
    """systemd changes the owner of a whole tree to the user of the unit whose directory is its top."""
    node = settings("slurm-gpud.service")
    assert Path("/run/slurm-gpu") == RUN_DIRECTORY
    assert node["RuntimeDirectory"] == ["slurm-gpu/jobs slurm-gpu/rejected"]
    assert node["StateDirectory"] == ["slurm-gpu/spool slurm-gpu/node"]
    for unit in OF_SLURM_USER:
        assert settings(unit)["RuntimeDirectory"] == ["slurm-gpu"]
    # Hooks and slurmctld write into these directories while our daemons are down.
    watching = ("slurm-gpud.service", *OF_SLURM_USER)
    assert all(settings(unit)["RuntimeDirectoryPreserve"] == ["yes"] for unit in watching)
    assert "RuntimeDirectory" not in settings("slurm-gpuweb.service"), "slurm-gpuweb has no runtime directory"


def test_later_systemds_wait_longer_from_try_to_try() -> None:
    text = (UNITS / "restart-steps.conf").read_text()
    assert "[Service]\nRestartSteps=6\nRestartMaxDelaySec=120\n" in text
    # systemd in RHEL 9 (252) and 8 (239) would warn of RestartSteps= in each unit.
    assert not any("RestartSteps" in settings(unit) for unit in SERVED)
