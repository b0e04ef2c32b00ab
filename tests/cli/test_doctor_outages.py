"""`slurm-gpu doctor` names the daemon that is down, and does not wait for it."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.daemons.database_address import unanswered
from slurm_gpu.cli.doctor.checks.daemons.outages import failure_from
from slurm_gpu.cli.doctor.checks.every import CHECKS, run_checks
from slurm_gpu.cli.doctor.checks.finding import Level
from slurm_gpu.cli.doctor.checks.slurm import slurm_conf
from slurm_gpu.errors import SlurmError
from tests.cli.installation import Installation

PERSISTENT = (
    "`sacct --allusers …` failed (1): sacct: error: slurm_persist_conn_open_without_init: failed to open "
    "persistent connection to host:dbhost:6819: Connection refused\n"
    "sacct: error: Sending PersistInit msg: Connection refused\n"
    "Problem talking to the database: Connection refused"
)


@pytest.mark.parametrize(
    ("error", "message", "remedy"),
    [
        (
            "`scontrol show config` failed (1): slurm_load_ctl_conf error: Unable to contact slurm "
            "controller (connect failure)",
            "slurmctld does not answer",
            "run systemctl start slurmctld",
        ),
        (
            "`scontrol show node` gave no answer within 60 s",
            "slurmctld does not answer within 60 s",
            "run systemctl start slurmctld",
        ),
        (
            "`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN",
            "slurmctld does not answer",
            "run systemctl start slurmctld",
        ),
        (
            "`sacctmgr …` failed (1): sacctmgr: error: slurm_persist_conn_open: Something happened with the "
            "receiving/processing of the persistent connection init message to 127.0.0.1:17002: Unable to "
            "connect to database\nsacctmgr: error: Sending PersistInit msg: Unable to connect to database",
            "slurmdbd runs, but its database does not answer",
            "run systemctl start mariadb on the host that StorageHost",
        ),
        (PERSISTENT, "slurmdbd does not answer", "run systemctl start slurmdbd"),
        (
            "`sacctmgr show qos` gave no answer within 60 s",
            "slurmdbd does not answer within 60 s",
            "run systemctl start slurmdbd",
        ),
        (
            'slurm-gpudbd at http://db answered 503: the database does not answer: (2003, "Can\'t connect")',
            'slurm-gpudbd runs, but its database does not answer: (2003, "Can\'t connect")',
            "run systemctl start mariadb",
        ),
        (
            "slurm-gpudbd at /run/x answered 503: the database does not answer: database or disk is full",
            "slurm-gpudbd runs, but its database has no space left: database or disk is full",
            "run df -h on the host of the database",
        ),
        (
            "the database does not answer: (1114, \"The table 'run_device' is full\")",
            "slurm-gpudbd runs, but its database has no space left: "
            "(1114, \"The table 'run_device' is full\")",
            "run df -h on the host of the database",
        ),
        (
            "the database does not answer: attempt to write a readonly database",
            "slurm-gpudbd runs, but it is not allowed to use its database: attempt to write a readonly "
            "database",
            "run chown slurm",
        ),
        (
            "the database refuses slurm-gpudbd: (1045, \"Access denied for user 'slurm_gpu'@'localhost'\"); "
            "check user",
            "slurm-gpudbd runs, but it is not allowed to use its database: "
            "(1045, \"Access denied for user 'slurm_gpu'@'localhost'\")",
            "check user, password and database of url in slurm-gpudbd.yaml",
        ),
        (
            "the database does not answer: database disk image is malformed",
            "slurm-gpudbd runs, but its database is damaged: database disk image is malformed",
            "stop slurm-gpudbd",
        ),
        (
            "MUNGE: Socket communication error; is munged running?",
            "munged does not answer on this host",
            "run systemctl start munge",
        ),
        (
            "`scontrol show node` failed (1): scontrol: error: If munged is up, restart with "
            "--num-threads=10\nscontrol: error: Munge encode failed: Failed to connect",
            "munged does not answer on this host",
            "run systemctl start munge",
        ),
        ("something else", "something else", "see the log"),
    ],
)
def test_the_daemon_that_is_down_is_named_with_its_remedy(
    installed: Installation, error: str, message: str, remedy: str
):
    finding = failure_from(installed.at(), error, "see the log")
    assert (finding.level, finding.message) == (Level.FAIL, message)
    assert finding.remedy is not None
    assert finding.remedy.startswith(remedy)


def test_a_database_host_without_slurm_conf_is_given_it(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
):
    """slurm-gpudbd calls sacct, scontrol and squeue, which need slurm.conf."""
    monkeypatch.setenv("SLURM_CONF", f"{installed.root}/none")
    at = installed.at()

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        raise SlurmError("scontrol: fatal: Could not establish a configuration source")

    at.site.slurm.run = run  # type: ignore[attr-defined]
    (finding,) = slurm_conf.answers(at)
    assert finding.level is Level.FAIL
    assert str(finding.remedy).startswith("copy slurm.conf from the controller to /etc/slurm")


def test_a_slurmctld_that_is_down_is_asked_once(installed: Installation):
    at, asked = installed.at(), []

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        asked.append(" ".join(argv))
        raise SlurmError("`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN")

    at.site.slurm.run = run  # type: ignore[attr-defined]
    results = list(run_checks(at, [check for check in CHECKS if check.name != "MUNGE"]))
    assert asked == ["scontrol ping"]
    assert [result.check for result in results if result.finding.level is Level.FAIL] == ["Slurm"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Include more.conf\n", "{conf} includes {directory}/more.conf (No such file or directory), so "),
        ("ClusterName=neuron\nNodeName=n1 Reason=no GPU\n", "{conf}:2: Slurm cannot read 'GPU', "),
        (
            "SlurmctldHost=head(10.0.0.1)\nJobSubmitPlugins=lua\n",
            "{conf}:2 has JobSubmitPlugins=lua, but {directory}/job_submit.lua is missing",
        ),
    ],
)
@pytest.mark.parametrize("failure", ["gave no answer within 5 s", "failed (1): scontrol: fatal: x"])
def test_for_an_invalid_slurm_conf_no_restart_of_slurmctld_is_advised(
    installed: Installation, monkeypatch: pytest.MonkeyPatch, text: str, message: str, failure: str
):
    at, conf = installed.at(), Path(installed.conf["SLURM_CONF"])
    conf.write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(conf))

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        raise SlurmError(f"`scontrol ping` {failure}")

    at.site.slurm.run = run  # type: ignore[attr-defined]
    results = list(run_checks(at, [check for check in CHECKS if check.name == "Slurm"]))
    (finding,) = [result.finding for result in results]
    assert finding.level is Level.FAIL
    assert finding.message.startswith(message.format(conf=conf, directory=conf.parent))
    assert "kill" not in str(finding.remedy)


@pytest.mark.parametrize(
    ("text", "is_missing"),
    [
        ("JobSubmitPlugins=lua\nJobSubmitPlugins=throttle\n", False),
        ("JobSubmitPlugins=throttle\nJobSubmitPlugins=lua\n", True),
        ('JobSubmitPlugins="throttle, job_submit/lua"\n', True),
    ],
)
def test_only_the_last_line_of_plugins_needs_the_script(
    installed: Installation, monkeypatch: pytest.MonkeyPatch, text: str, is_missing: bool
):
    at, conf = installed.at(), Path(installed.conf["SLURM_CONF"])
    conf.write_text(f"SlurmctldHost=head.example.org(10.0.0.1)\n{text}")
    monkeypatch.setenv("SLURM_CONF", str(conf))

    def run(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        raise SlurmError("`scontrol ping` gave no answer within 5 s")

    at.site.slurm.run = run  # type: ignore[attr-defined]
    results = list(run_checks(at, [check for check in CHECKS if check.name == "Slurm"]))
    assert any("job_submit.lua is missing" in one.finding.message for one in results) == is_missing


@pytest.mark.parametrize("program", ["mariadbd", "mysqld"])
def test_for_a_stopped_mariadb_no_restart_of_its_clients_is_advised(
    installed: Installation, monkeypatch: pytest.MonkeyPatch, program: str
):
    at = installed.at()
    for number, name, state in ((5, "slurmdbd", "S"), (6, "slurm-gpudbd", "S"), (7, program, "T")):
        installed.process(number, name, state=state)
    remedies = [
        failure_from(at, "`sacctmgr …` failed (1): Unable to connect to database", "see the log").remedy,
        failure_from(at, "`sacct …` gave no answer within 60 s", "see the log").remedy,
        unanswered(at, "slurm-gpudbd at /run/slurm-gpu/slurm-gpudbd.sock did not answer in time"),
    ]
    for remedy in map(str, remedies):
        assert "kill -CONT 7" in remedy
        assert "restart" not in remedy


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("SlurmctldPort=6900", "check SlurmctldHost and SlurmctldPort in slurm.conf"),
        ("SlurmctldPort=7000-7009", "as in slurm.conf: run systemctl restart slurmctld"),
    ],
)
def test_a_running_slurmctld_without_an_answer_hangs_or_has_another_port(
    installed: Installation, monkeypatch: pytest.MonkeyPatch, line: str, remedy: str
):
    at, conf = installed.at(), Path(installed.conf["SLURM_CONF"])
    conf.write_text(f"{line}\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    installed.process(7, "slurmctld", "-D")
    monkeypatch.setattr("slurm_gpu.cli.doctor.checks.daemons.outages.ports", lambda _: [7001])
    finding = failure_from(
        at, "`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN", "see the log"
    )
    assert "slurmctld runs on this host (it listens on port 7001)" in str(finding.remedy)
    assert remedy in str(finding.remedy)


def test_a_name_that_does_not_resolve_is_reported_even_if_slurm_gpudbd_runs_here(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
):
    def unknown(*_: object, **named: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("slurm_gpu.cli.doctor.checks.daemons.database_address.ports", lambda _: [6829])
    url = "http://db.invalid:6829"
    installed.site_file.write_text(f"cluster: neuron\ndatabase: {url}\n")
    installed.site_file.with_name("slurm-gpudbd.yaml").touch()
    installed.process(7, "slurm-gpudbd")
    remedy = unanswered(installed.at(), f"slurm-gpudbd at {url} cannot be reached: Name or service not known")
    assert remedy == (
        f"db.invalid does not resolve: run getent hosts db.invalid; fix database: {url} in "
        f"{installed.site_file} on every host, or add the name to DNS or /etc/hosts"
    )
    hangs = unanswered(installed.at(), "slurm-gpudbd at /run/x.sock did not answer in time")
    assert hangs.startswith("run systemctl restart slurm-gpudbd")
