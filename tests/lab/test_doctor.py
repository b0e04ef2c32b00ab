"""Test that `slurm-gpu doctor` passes on a complete installation, and names each fault."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import load_config


def _doctor(lab: Lab) -> tuple[int, dict[str, set[str]]]:
    """Return the exit code, and the levels of the findings of each check."""
    argv = ["slurm-gpu", "doctor", "--json"]
    shown = lab.run_as("root", argv, check=False)
    found: dict[str, set[str]] = {}
    for check in json.loads(shown.stdout)["checks"]:
        found.setdefault(check["check"], set()).add(check["level"])
    return shown.returncode, found


def _all_well(lab: Lab) -> bool:
    code, found = _doctor(lab)
    # The lab's policy has no lending, urgent jobs or shared GPUs. The lab has no backup slurmctld, no
    # forecast training, no reservation of slurm-gpu, and no daemon run by systemd.
    for nothing in (
        "lending",
        "urgent",
        "colocation",
        "backup",
        "forecasts",
        "reservations",
        "boot",
        "notices",
    ):
        found.pop(nothing, None)
    return code == 0 and set().union(*found.values()) == {"ok"}


def test_the_lab_is_fine(lab: Lab) -> None:
    lab.daemons["slurm-gpudbd"].restart()  # until restarted, slurm-gpudbd reports items of other tests
    wait_for(lambda: _all_well(lab), 90, "doctor finds nothing", lambda: str(_doctor(lab)), 1)


def test_doctor_names_the_node_of_a_host_that_has_no_slurm_gpud(lab: Lab) -> None:
    daemon = lab.daemons["slurm-gpud-n2"]
    daemon.kill9()
    try:
        shown = lab.run_as("root", ["slurm-gpu", "doctor"], check=False)
    finally:
        daemon.start()
    assert shown.returncode == 1
    assert "slurm-gpud is not running for n2" in shown.stdout, shown.stdout


def test_a_readme_among_the_hooks_is_found_before_it_drains_a_node(lab: Lab) -> None:
    readme = lab.layout.etc / "prolog.d" / "README"
    readme.write_text("Hooks of this cluster.\n")
    try:
        code, found = _doctor(lab)
    finally:
        readme.unlink()
    assert code == 1
    assert found["hooks"] == {"ok", "fail"}


def test_a_policy_that_is_not_in_force_is_found(lab: Lab) -> None:
    policy = lab.layout.policy_file
    before = policy.read_text()
    try:
        policy.write_text(before + "# changed\n")
        assert _doctor(lab)[1]["policy"] == {"ok"}  # a YAML comment changes nothing
        policy.write_text(before.replace("version: 1", "version: one"))
        code, found = _doctor(lab)
    finally:
        policy.write_text(before)
    assert (code, found["policy"]) == (1, {"fail"})


def test_a_dead_slurm_gpudbd_is_found(lab: Lab) -> None:
    daemon = lab.daemons["slurm-gpudbd"]
    daemon.kill9()
    try:
        code, found = _doctor(lab)
    finally:
        daemon.start()
    assert code == 1
    assert (found["slurm-gpudbd"], found["import"]) == ({"fail"}, {"skipped"})
    assert found["Slurm"] == {"ok"}


Finding = Mapping[str, str]
Broken = contextlib.AbstractContextManager[None]
Break = Callable[[Lab], Broken]


def _findings(lab: Lab) -> list[Finding]:
    shown = lab.run_as("root", ["slurm-gpu", "doctor", "--json"], check=False)
    found: list[Finding] = json.loads(shown.stdout)["checks"]
    return found


@contextlib.contextmanager
def _written(path: Path, text: str) -> Iterator[None]:
    """Write a file in place, keeping its owner and mode."""
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


@contextlib.contextmanager
def _mode(path: Path, mode: int, owner: str | None = None) -> Iterator[None]:
    status = path.stat()
    path.chmod(mode)
    if owner is not None:
        shutil.chown(path, owner)
    try:
        yield
    finally:
        os.chown(path, status.st_uid, status.st_gid)
        path.chmod(status.st_mode & 0o7777)


@contextlib.contextmanager
def _signalled(lab: Lab, daemon: str) -> Iterator[None]:
    pid = lab.daemons[daemon].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def _killed(lab: Lab, daemon: str) -> Iterator[None]:
    lab.daemons[daemon].kill9()
    try:
        yield
    finally:
        lab.daemons[daemon].start()


def _site(**keys: object) -> Break:
    """Change keys of slurm-gpu.yaml."""

    def change(lab: Lab) -> Broken:
        path = lab.layout.site_file
        return _written(path, yaml.safe_dump(yaml.safe_load(path.read_text()) | keys, sort_keys=False))

    return change


def _hook(kind: str, text: str | None = None) -> Break:
    """Replace the text of a hook, by default with the text of the other hook."""

    def change(lab: Lab) -> Broken:
        other = {"prolog": "epilog", "epilog": "prolog"}[kind]
        path, its = (lab.layout.etc / f"{one}.d" / "10-slurm-gpu" for one in (kind, other))
        return _written(path, its.read_text() if text is None else text)

    return change


@contextlib.contextmanager
def _swapped(lab: Lab) -> Iterator[None]:
    with contextlib.ExitStack() as both:
        changes = [_hook("prolog")(lab), _hook("epilog")(lab)]  # read both hooks before writing one
        for change in changes:
            both.enter_context(change)
        yield


def _changed_line(pattern: str, instead: str = "") -> Break:
    def change(lab: Lab) -> Broken:
        path = lab.layout.slurm_conf
        text, n_changes = re.subn(pattern, instead, path.read_text(), flags=re.MULTILINE)
        assert n_changes
        return _written(path, text)

    return change


def _web_port(lab: Lab) -> Broken:
    path = lab.layout.web_file
    return _written(path, yaml.safe_dump(yaml.safe_load(path.read_text()) | {"listen": "127.0.0.1:1"}))


# Each row has a fault, its check, a part of the message, and a part of the command. The faults of one group
# do not hide each other, and are injected at the same time.
_BREAKS: tuple[Mapping[str, tuple[Break, str, str, str]], ...] = (
    {
        # This fault is first, because it is repaired last, when slurm-gpu.yaml is complete again.
        "slurm-gpuweb is dead": (
            lambda lab: _killed(lab, "slurm-gpuweb"),
            "slurm-gpuweb",
            "slurm-gpuweb is not running",
            "start slurm-gpuweb",
        ),
        "the prolog in epilog.d": (
            _hook("epilog"),
            "hooks",
            "runs as Epilog, but is slurm-gpu's prolog",
            "install -m 755 /",
        ),
        "a hook of our name that does nothing": (
            _hook("prolog", "#!/bin/sh\nexit 0\n"),
            "hooks",
            "but does not run it",
            "install -m 755 /",
        ),
        "the port of slurm-gpudbd": (
            _site(database="http://127.0.0.1:9"),
            "address",
            "answers at its socket, but not at",
            "listens on port",
        ),
        "an operator that is no user, a group that does not exist": (
            _site(operators={"users": ["nosuch"], "unix_groups": ["none"]}),
            "users",
            "names nosuch, which is not a user",
            "getent passwd",
        ),
        "a password that users may read": (
            lambda lab: _mode(lab.layout.database_file, 0o644),
            "database file",
            "is readable by other users",
            "chmod 0600 /",
        ),
        "a slurm-gpud that is stopped": (
            lambda lab: _signalled(lab, "slurm-gpud-n1"),
            "slurm-gpud",
            "is stopped and measures nothing",
            "kill -CONT ",
        ),
        "a job_submit.lua that slurmctld may not read": (
            lambda lab: _mode(lab.layout.etc / "job_submit.lua", 0o600, "root"),
            "policy",
            "may not read",
            "chmod o+r /",
        ),
    },
    {
        "prolog and epilog swapped": (
            _swapped,
            "hooks",
            "runs as Prolog, but is slurm-gpu's epilog",
            "install -m 755 /",
        ),
        "a site file that users may not read": (
            lambda lab: _mode(lab.layout.site_file, 0o600),
            "users",
            "users may not read",
            "chmod o+r /",
        ),
        "a password that SlurmUser may not read": (
            lambda lab: _mode(lab.layout.database_file, 0o600, "root"),
            "database file",
            "may not read",
            "chown slurm /",
        ),
        "slurm-gpuweb listens elsewhere": (
            _web_port,
            "slurm-gpuweb",
            "does not answer at http://127.0.0.1:1",
            "start it again: ",
        ),
    },
    {
        "a slurm.conf on the node without the hook": (
            _changed_line(r"^Prolog=.*$"),
            "hooks",
            "on this node has no Prolog",
            "scontrol reconfigure",
        ),
        "the address of the page": (
            _site(web="http://127.0.0.1:1"),
            "slurm-gpuweb",
            "does not answer at http://127.0.0.1:1",
            "compare web: in",
        ),
        "the socket of munged mistyped": (
            _site(munge_socket="/run/nosuch"),
            "MUNGE",
            ", not at /run/nosuch",
            "set munge_socket: /",
        ),
    },
    {
        "the port of slurmctld": (
            _changed_line(r"^SlurmctldPort=.*$", "SlurmctldPort=9"),
            "Slurm",
            "slurmctld does not answer",
            "check SlurmctldHost and SlurmctldPort in slurm.conf",
        ),
    },
)


def _has_failed(findings: list[Finding], check: str, message: str, remedy: str) -> bool:
    return any(
        found["level"] == "fail"
        and found["check"] == check
        and message in found["message"]
        and remedy in found["remedy"]
        for found in findings
    )


def test_each_thing_that_a_user_needs_is_found_when_it_is_broken(lab: Lab) -> None:
    wait_for(lambda: _all_well(lab), 90, "doctor finds nothing", lambda: str(_doctor(lab)), 1)
    missed, typed = {}, []
    for group in _BREAKS:
        with contextlib.ExitStack() as broken:
            for change, *_ in group.values():
                broken.enter_context(change(lab))
            findings = _findings(lab)
        found = [one for one in findings if one["level"] not in ("ok", "skipped")]
        missed |= {
            name: found for name, (_, *expected) in group.items() if not _has_failed(findings, *expected)
        }
        typed += [one["remedy"] for one in found]
    assert missed == {}
    unusable = [text for text in typed if re.search(r"systemctl|journalctl|dnf|/usr/libexec", text)]
    assert unusable == [], "the lab has no systemd, and no package"
    wait_for(lambda: _all_well(lab), 90, "it is fine again", lambda: str(_doctor(lab)), 1)


@pytest.mark.parametrize(
    ("daemon", "check", "message", "remedy"),
    [
        ("slurmdbd", "applied", "slurmdbd does not answer within", "run kill -CONT "),
        *(
            pytest.param(*expected, marks=pytest.mark.long)
            for expected in (
                ("munged", "MUNGE", "munged runs on this host (process ", "run kill -CONT "),
                ("slurmctld", "Slurm", "slurmctld does not answer within", "run kill -CONT "),
                (
                    "mariadb",
                    "applied",
                    "slurmdbd does not answer within",
                    "waits for MariaDB: run kill -CONT ",
                ),
                ("slurm-gpudbd", "slurm-gpudbd", "did not answer in time", "run kill -CONT "),
                ("slurm-gpuweb", "slurm-gpuweb", "does not answer at", "run kill -CONT "),
                ("slurm-gpuctld", "snapshot", "is stopped", "run kill -CONT "),
            )
        ),
    ],
)
def test_a_daemon_that_hangs_is_named_and_waited_for_once(
    lab: Lab, daemon: str, check: str, message: str, remedy: str
) -> None:
    with _signalled(lab, daemon):
        began_s = time.monotonic()
        findings = _findings(lab)
        took_s = time.monotonic() - began_s
    assert _has_failed(findings, check, message, remedy), findings
    # The documented limit; the sum of the timeouts of all commands is far larger.
    assert took_s < 20.0
    wait_for(lambda: _all_well(lab), 90, "it is fine again", lambda: str(_doctor(lab)), 1)


def test_the_import_works_again_soon_after_slurmdbd_does(lab: Lab) -> None:
    """Test with the default import interval; the lab's 5 s are too short to show a difference."""
    slurm_gpudbd = lab.daemons["slurm-gpudbd"]

    def fails() -> bool:
        with DatabaseClient(load_config(lab.layout.site_file)) as database:
            return database.health().import_error is not None

    with _site(import_interval="60s")(lab):
        with _killed(lab, "slurmdbd"):
            slurm_gpudbd.restart()
            wait_for(fails, 30, "the import fails", interval_s=1)
        wait_for(lambda: not fails(), 25, "the import works", interval_s=1)
    slurm_gpudbd.restart()
    wait_for(lambda: _all_well(lab), 90, "it is fine again", lambda: str(_doctor(lab)), 1)


@contextlib.contextmanager
def _slurmd_timeout(lab: Lab, seconds: int) -> Iterator[None]:
    path = lab.layout.slurm_conf
    with _written(path, path.read_text() + f"SlurmdTimeout={seconds}\n"):
        lab.output(["scontrol", "reconfigure"])
        yield
    lab.output(["scontrol", "reconfigure"])


def test_a_dead_slurmd_is_found_and_no_node_that_is_out_on_purpose(lab: Lab) -> None:
    wait_for(lambda: _all_well(lab), 90, "doctor finds nothing", lambda: str(_doctor(lab)), 1)
    update = ["scontrol", "update", "nodename=n1", "reason=new disk"]
    maintenance = ["scontrol", "create", "reservation", "reservationname=maint", "starttime=now"]
    maintenance += ["duration=60", "user=root", "flags=maint,ignore_jobs", "nodes=n3"]
    lab.output([*update, "state=drain"])
    lab.output(maintenance)

    def states() -> dict[str, str]:
        shown = lab.output(["sinfo", "-h", "-N", "-o", "%N %T"])
        return dict(line.split() for line in shown.splitlines())

    def found() -> list[str]:
        return [one["message"] for one in _findings(lab) if one["check"] == "slurmd" and one["remedy"]]

    with _slurmd_timeout(lab, 10), contextlib.ExitStack() as dead:
        for name in ("n1", "n2", "n3"):
            dead.enter_context(_killed(lab, f"slurmd-{name}"))
        wait_for(lambda: states()["n2"] == "down*", 90, "slurmctld misses n2", lambda: str(states()), 1)
        expected = (
            "slurmd",
            "slurmd on n2 does not answer slurmctld, so no job starts there (state DOWN); "
            "slurm-gpud there still reports",
            "run slurmd -N n2 again",
        )
        assert _has_failed(_findings(lab), *expected), _findings(lab)
        # sinfo marks a maintenance reservation with `$`.
        wait_for(
            lambda: (states()["n1"], states()["n3"]) == ("drained*", "down$"),
            90,
            "slurmctld misses n1 and n3",
            lambda: str(states()),
            1,
        )
        assert len(found()) == 1, (found(), states())
    lab.output(["scontrol", "delete", "reservationname=maint"])

    def resumed() -> bool:
        # Slurm 24.11 may refuse the update until slurmd has registered again.
        lab.run_as("root", ["scontrol", "update", "nodename=n1", "state=resume"], check=False)
        return states()["n1"] == "idle"

    wait_for(resumed, 60, "n1 is in service again", lambda: str(states()), 1)
    wait_for(lambda: _all_well(lab), 90, "it is fine again", lambda: str(_doctor(lab)), 1)


def test_a_cluster_without_any_gres_is_not_fine(lab: Lab) -> None:
    slurmctld = lab.daemons["slurmctld"]
    expected = ("GRES", "no node has Gres=gpu", "Gres=gpu:TYPE:COUNT")
    with _changed_line(r"\bGres=\S+")(lab):
        slurmctld.restart()
        wait_for(
            lambda: _has_failed(_findings(lab), *expected),
            60,
            "doctor misses GPUs",
            lambda: str(_doctor(lab)),
            1,
        )
    slurmctld.restart()
    wait_for(lambda: _all_well(lab), 90, "it is fine again", lambda: str(_doctor(lab)), 1)
