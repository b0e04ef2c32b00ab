"""`slurm-gpu doctor` checks access to each file and service for the user that needs it."""

import dataclasses
import http.server
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slurm_gpu.cli.doctor.checks.daemons import database, web
from slurm_gpu.cli.doctor.checks.daemons import database_address as databaseaddress
from slurm_gpu.cli.doctor.checks.daemons.processes import DaemonProcess, ports
from slurm_gpu.cli.doctor.checks.files import access, site_file
from slurm_gpu.cli.doctor.checks.files import secret_files as secretfiles
from slurm_gpu.cli.doctor.checks.finding import (
    CheckResult,
    DoctorContext,
    Level,
    RunningProgram,
    running_program,
)
from slurm_gpu.cli.doctor.checks.slurm import gres, slurm_conf
from slurm_gpu.client.database_client import NodeReport
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import DeviceFacts
from tests.cli.conftest import Database, make_health
from tests.cli.installation import Installation, levels, worst
from tests.slurm.recorded import NOW_S

USER, SLURM = 65534, 64030


def _site(installed: Installation, **keys: object) -> None:
    installed.site_file.write_text(json.dumps({"cluster": "neuron"} | keys))


# Files


@pytest.mark.parametrize("part", ["slurm-gpu.yaml", ""])
def test_users_must_be_able_to_read_the_site_file(installed: Installation, part: str):
    path = installed.root / part
    path.chmod(0o700)
    finding = worst(site_file.for_users(installed.at()))
    assert finding.level is Level.FAIL
    assert finding.message.startswith(f"users may not read {installed.site_file}")
    assert (
        finding.remedy
        == f"run chmod {'o+r' if part else 'o+x'} {installed.site_file if part else installed.root}"
    )


@pytest.mark.parametrize(
    ("mode", "owner", "uid", "denied"),
    [
        (0o644, 0, USER, False),
        (0o640, 0, USER, True),
        (0o600, 0, USER, True),
        (0o604, 0, USER, False),
        (0o600, SLURM, SLURM, False),
        (0o400, SLURM, SLURM, False),
        (0o044, SLURM, SLURM, True),
        (0o600, 0, SLURM, True),
        (0o000, 0, 0, False),
    ],
)
def test_read_access_is_computed_as_by_the_kernel(
    installed: Installation, mode: int, owner: int, uid: int, denied: bool
):
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of files")
    path = installed.root / "file"
    path.write_text("x")
    path.chmod(mode)
    os.chown(path, owner, 0)
    assert (access.denies(path, uid) is not None) == denied
    if uid not in (0, owner):
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os._exit(0 if os.access(path, os.R_OK) else 1)
        assert (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0) == denied


@pytest.mark.parametrize(("mode", "level"), [(0o644, "ok"), (0o600, "fail")])
def test_users_must_be_able_to_read_slurm_conf(installed: Installation, mode: int, level: str):
    path = Path(installed.conf["SLURM_CONF"])
    path.write_text("ClusterName=neuron\n")
    path.chmod(mode)
    finding = worst(slurm_conf.grammar(installed.at()))
    assert finding.level.value == level
    assert finding.remedy == (None if level == "ok" else f"run chmod o+r {path}")


@pytest.mark.parametrize(("mode", "level"), [(0o777, "ok"), (0o700, "fail")])
def test_users_must_be_able_to_use_the_socket_of_munged(installed: Installation, mode: int, level: str):
    path = installed.root / "munge"
    path.touch()
    path.chmod(mode)
    _site(installed, munge_socket=str(path))
    finding = worst(site_file.for_users(installed.at()))
    assert finding.level.value == level
    assert finding.remedy == (None if level == "ok" else f"run chmod o+rw {path}")


@pytest.mark.parametrize(
    ("denied", "mode"),
    [
        ("", 0o700),
        ("bin", 0o700),
        ("bin/slurm-gpu", 0o744),
        ("bin/slurm-gpu", 0o711),
        ("lib/module.py", 0o600),
    ],
)
@pytest.mark.parametrize("is_venv", [True, False])
def test_users_must_be_able_to_run_the_command(
    installed: Installation, denied: str, mode: int, is_venv: bool
):
    prefix = installed.root / "opt"
    script, module = prefix / "bin" / "slurm-gpu", prefix / "lib" / "module.py"
    for file in (script, module):
        file.parent.mkdir(parents=True)
        file.touch()
    for path in (prefix, script.parent, script, module.parent):
        path.chmod(0o755)
    module.chmod(0o644)
    link = installed.root / "slurm-gpu"
    link.symlink_to(script)
    installed.program = RunningProgram([link], [module], prefix if is_venv else None)
    assert levels(site_file.for_users(installed.at())) == ["ok"]
    (prefix / denied).chmod(mode)
    finding = worst(site_file.for_users(installed.at()))
    assert finding.level is Level.FAIL
    modes = {"": "o+x", "bin": "o+x", "bin/slurm-gpu": "o+rx", "lib/module.py": "o+r"}
    assert finding.message == f"users may not run slurm-gpu: {prefix / denied} denies access"
    assert str(finding.remedy).startswith(
        f"run chmod -R go+rX {prefix}" if is_venv else f"run chmod {modes[denied]} {prefix / denied}"
    )


def test_the_running_command_has_a_script_an_interpreter_and_modules():
    program = running_program()
    assert Path(sys.executable) in program.executables
    assert Path(site_file.__file__) in program.modules


@pytest.mark.parametrize(("key", "command"), [("users", "passwd"), ("unix_groups", "group")])
def test_operators_that_do_not_exist_are_reported(installed: Installation, key: str, command: str):
    _site(installed, operators={"users": ["root"], "unix_groups": ["root"]})
    assert levels(site_file.for_users(installed.at())) == ["ok"]
    _site(installed, operators={key: ["root", "no such"]})
    finding = worst(site_file.for_users(installed.at()))
    assert f"operators.{key} names no such, " in finding.message
    assert str(finding.remedy).startswith(f"run getent {command} 'no such' to check the name, fix ")


def test_a_web_user_that_does_not_exist_is_reported(installed: Installation):
    at = installed.at()
    at.settings = dataclasses.replace(at.settings, slurm_user_uid=os.geteuid())
    path = installed.root / "slurm-gpudbd.yaml"
    path.write_text("web_user: no such\n")
    finding = worst(secretfiles.database_file(at))
    assert finding.message == (
        f"web_user: no such in {path} is not a user of this host, so slurm-gpudbd refuses slurm-gpuweb"
    )
    assert finding.remedy == (
        "set web_user: to the user or uid of slurm-gpuweb; then run systemctl restart slurm-gpudbd"
    )
    for known in ("web_user: 4711\n", "web_user: daemon\n", "web_user: null\n", "{}\n"):
        path.write_text(known)
        assert levels(secretfiles.database_file(at)) == ["ok"], known


def test_a_readable_database_password_is_reported(installed: Installation):
    at = installed.at()
    at.settings = dataclasses.replace(at.settings, slurm_user_uid=SLURM, slurm_user="slurm")
    assert levels(secretfiles.database_file(at)) == ["skipped"]
    path = installed.root / "slurm-gpudbd.yaml"
    path.write_text("url: mysql+pymysql://gpu:secret@localhost/gpu\n")
    path.chmod(0o644)
    finding = worst(secretfiles.database_file(at))
    assert finding.message == f"{path}: contains a password, but is readable by other users (mode 0644)"
    assert str(finding.remedy).startswith(
        f"run chmod 0600 {path} and chown slurm {path}; change the password"
    )
    path.chmod(0o600)
    if os.geteuid() == 0:
        assert (
            "SlurmUser slurm, the user of slurm-gpudbd, may not"
            in worst(secretfiles.database_file(at)).message
        )
        os.chown(path, SLURM, -1)
        assert levels(secretfiles.database_file(at)) == ["ok"]


# slurm-gpudbd


@pytest.fixture
def host(installed: Installation) -> Installation:
    """Return the host of slurm-gpudbd."""
    (installed.root / "socket").touch()
    _site(installed, database_socket=str(installed.root / "socket"), database="http://head:6829")
    return installed


def _address(host: Installation, by_network: Database | Exception) -> list[CheckResult]:
    at = host.at()
    at.nodes = [dataclasses.replace(node, host=node.name, address=node.name) for node in at.nodes]

    def connect(config: SiteConfig) -> Database:
        if config.database_socket.name == "socket":
            return host.database
        if isinstance(by_network, Exception):
            raise by_network
        return by_network

    at.site.connect_database = connect  # type: ignore[assignment]
    return list(databaseaddress.address(at))


def test_a_slurm_gpudbd_that_answers_over_the_network_is_ok(host: Installation):
    (finding,) = _address(host, host.database)
    assert finding.message == "slurm-gpudbd answers at http://head:6829, the address that nodes use"


def test_a_wrong_port_is_reported_on_the_database_host(host: Installation):
    (finding,) = _address(host, DatabaseError("Connection refused"))
    assert finding.level is Level.FAIL
    assert finding.message == (
        "slurm-gpudbd answers at its socket, but not at http://head:6829, which nodes and other hosts use: "
        "Connection refused"
    )


def test_a_slurm_gpudbd_that_reports_an_outage_is_skipped(host: Installation):
    (finding,) = _address(host, DatabaseError("slurm-gpudbd at x cannot answer at the moment: MUNGE: down"))
    assert finding.level is Level.SKIPPED


def test_another_slurm_gpudbd_at_the_port_is_reported(host: Installation):
    other = Database()
    other.state = make_health(cluster="tiger")
    (finding,) = _address(host, other)
    assert "which nodes and other hosts use, belongs to another cluster, tiger" in finding.message


def test_a_second_slurm_gpudbd_on_this_host_is_reported(host: Installation):
    """Clients prefer the local socket to the configured address, so records would be divided."""
    other = Database()
    other.state = make_health(last_import_s=host.database.health().now_s - 7)
    (finding,) = _address(host, other)
    assert finding.level is Level.FAIL
    assert finding.message.startswith("commands and slurm-gpud on this host use this host's slurm-gpudbd")
    assert str(finding.remedy).startswith("stop and disable slurm-gpudbd here")


def test_an_import_between_two_answers_is_not_a_second_slurm_gpudbd(host: Installation):
    now_s = host.database.health().now_s
    states = [make_health(last_import_s=now_s - 60), make_health(last_import_s=now_s)]
    other = Database()
    other.state = states[1]
    host.database.health = lambda: states.pop(0)  # type: ignore[method-assign]
    (finding,) = _address(host, other)
    assert finding.level is Level.OK


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_loopback_address_is_reported(host: Installation, name: str):
    _site(host, database_socket=str(host.root / "socket"), database=f"http://{name}:6829")
    (finding,) = _address(host, host.database)
    assert finding.level is Level.FAIL
    assert finding.message.startswith(
        f"database: http://{name}:6829 is a loopback address, which other hosts such as n["
    )
    assert "set database: http://head:6829" in str(finding.remedy)


def test_the_listening_ports_of_a_process_are_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = [DaemonProcess(psutil.Process(), [])]
        assert server.getsockname()[1] in ports(here)


# GPUs


def test_nodes_without_gres_are_reported(installed: Installation):
    at = installed.at()
    at.nodes = [dataclasses.replace(node, gpus={}) for node in at.nodes]
    finding = worst(slurm_conf.gres_types(at))
    assert finding.level is Level.FAIL
    assert finding.message.startswith("no node has Gres=gpu")


def test_gpus_of_this_host_that_slurm_lacks_are_reported(installed: Installation):
    at = installed.at("n1")
    at.nodes = [dataclasses.replace(node, host=node.name, address=node.name) for node in at.nodes]
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        path = installed.root / "dev" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert levels(gres.agrees(at)) == ["skipped"]  # slurm-gpud has not reported yet
    at.nodes = [dataclasses.replace(node, gpus={}) for node in at.nodes]
    finding = worst(gres.agrees(at))
    assert finding.message.startswith("this host has 2 GPUs (")
    assert str(finding.remedy).startswith("add Gres=gpu:TYPE:2 to the line NodeName=n1 in slurm.conf")


def test_gpus_of_a_node_that_slurm_lacks_are_reported(installed: Installation):
    at = installed.at()
    at.nodes = [dataclasses.replace(node, gpus={} if node.name == "n1" else node.gpus) for node in at.nodes]
    facts = tuple(DeviceFacts(uuid=f"GPU-{i}", node="n1", at_s=5, minor=i) for i in range(2))
    installed.database.reports = [NodeReport(node="n1", last_seen_s=NOW_S, version=None, devices=facts)]
    assert any(
        found.message.startswith("Slurm has no GPUs on n1, but slurm-gpud detects 2 there")
        for found in database.devices_agree(at)
    )


# slurm-gpuweb


class _Page(http.server.BaseHTTPRequestHandler):
    status, text = 200, "<h1>slurm-gpu</h1>"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[type[_Page]]:
    """Return a handler whose answer tests can change, and serve it at `url`."""
    handler = type("Page", (_Page,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler
    server.shutdown()
    server.server_close()


def _web(installed: Installation, page: type[_Page]) -> DoctorContext:
    _site(installed, web=page.url)  # type: ignore[attr-defined]
    return installed.at("login")


def test_a_site_without_a_page_is_skipped(installed: Installation):
    assert levels(web.answers(installed.at())) == ["skipped"]


@pytest.mark.parametrize(
    ("status", "text", "level"),
    [
        (200, "<h1>slurm-gpu</h1>", "ok"),
        (200, "<h1>It works!</h1>", "warn"),
        (302, "", "ok"),
        (401, "", "ok"),
        (404, "", "warn"),
        (502, "", "warn"),
        (503, "", "warn"),
    ],
)
def test_the_page_at_the_configured_address_is_checked(
    installed: Installation, page: type[_Page], status: int, text: str, level: str
):
    page.status, page.text = status, text
    assert levels(web.answers(_web(installed, page))) == [level]


def test_a_slurm_gpuweb_that_does_not_run_is_reported_on_its_host(installed: Installation, page: type[_Page]):
    (installed.root / "slurm-gpuweb.yaml").write_text("{}\n")
    finding = worst(web.answers(_web(installed, page)))
    assert (finding.level, "but slurm-gpuweb is not running" in finding.message) == (Level.FAIL, True)
    assert str(finding.remedy).startswith("run systemctl start slurm-gpuweb; see journalctl -u slurm-gpuweb")


def test_a_readable_session_key_is_reported(installed: Installation):
    key = installed.root / "session.key"
    key.write_text("x" * 32)
    key.chmod(0o644)
    (installed.root / "slurm-gpuweb.yaml").write_text(f"session: {{key_file: {key}}}\n")
    found = [one for one in web.answers(installed.at()) if "which signs sessions" in one.message]
    assert str(found[0].remedy).startswith(f"run chmod 0600 {key}; ")
