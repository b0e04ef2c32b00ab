"""`slurm-gpu doctor` on what will not be there after the next boot."""

from collections.abc import Mapping

import pytest

from slurm_gpu.cli.doctor.checks.files import boot
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext
from slurm_gpu.errors import SlurmError
from tests.cli.installation import Installation
from tests.cli.test_doctor_controller import install

NODE, DATABASE, CONTROLLER, WEB = (
    f"slurm-{name}.service" for name in ("gpud", "gpudbd", "gpuctld", "gpuweb")
)
ADJUST, DAILY = "slurm-gpu-adjust.timer", "slurm-gpu-report-daily.timer"
REPORT = "slurm-gpu-report@day.service"
LIMITS = "{gpus_running: 4}"
ADJUSTED = """\
version: 1
mode: enforce
contact: gpu-help@example.edu
groups: {g: {}}
rules:
  - {id: r, for: g, per: user, why: W., limits: {gpus_running: 4}, adjust: {gpus_running: [2, 8]}}
"""


@pytest.fixture
def host(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """systemd runs here, with all of our units, and nothing is enabled."""
    (installed.root / "systemd").mkdir()
    monkeypatch.setattr(boot, "UNITS", (installed.root / "systemd",))
    for timer in (ADJUST, DAILY):
        (installed.root / "systemd" / timer).touch()
    return installed


def found(host: Installation, states: Mapping[str, str], *, is_node: bool = False) -> list[CheckResult]:
    """The findings where systemd says so of units, as "loaded enabled active USER", else they are off."""
    blocks = []
    for name in (NODE, DATABASE, CONTROLLER, WEB, ADJUST, DAILY, REPORT):
        load, file, active, *user = states.get(name, "loaded disabled inactive").split()
        properties = {"Id": name, "LoadState": load, "ActiveState": active, "UnitFileState": file.strip("-")}
        properties["User"] = "".join(user)
        blocks.append("".join(f"{key}={value}\n" for key, value in properties.items()))
    host.said["systemctl show --property=Id"] = "\n".join(blocks)
    at = host.at("head")
    if not is_node:
        at.nodes = []
    return list(boot.enabled(at))


def told(findings: list[CheckResult]) -> list[tuple[str, str | None]]:
    return [(finding.level.value, finding.remedy) for finding in findings]


def test_without_systemd_there_is_nothing_to_look_at(installed: Installation) -> None:
    assert told(list(boot.enabled(installed.at()))) == [("skipped", None)]


def test_what_is_not_needed_here_may_be_off(host: Installation) -> None:
    assert told(found(host, {})) == [("skipped", None)]


def test_a_gpu_node_needs_its_daemon_at_boot(host: Installation) -> None:
    enable = ("warn", f"systemctl enable --now {NODE}")
    assert told(found(host, {}, is_node=True)) == [enable]
    (finding,) = found(host, {NODE: "loaded disabled active"}, is_node=True)
    assert finding.message == f"{NODE} runs, and will not after the next boot: it is disabled"
    assert told(found(host, {NODE: "loaded enabled-runtime active"}, is_node=True)) == [enable]
    assert told(found(host, {NODE: "loaded enabled active"}, is_node=True)) == [("ok", None)]


def test_a_masked_unit_has_to_be_unmasked_first(host: Installation) -> None:
    (finding,) = found(host, {NODE: "masked masked inactive"}, is_node=True)
    assert finding.remedy == f"systemctl unmask {NODE}; systemctl enable --now {NODE}"


def test_where_something_else_starts_the_daemon_systemd_is_not_asked_to(host: Installation) -> None:
    assert told(found(host, {NODE: "not-found - inactive"}, is_node=True)) == [("skipped", None)]


def test_the_host_of_slurm_gpudbd_is_where_its_file_lies(host: Installation) -> None:
    (host.root / "slurm-gpudbd.yaml").touch()
    assert told(found(host, {})) == [("warn", f"systemctl enable --now {DATABASE}")]


def test_what_is_not_slurm_users_is_named_with_its_unit(host: Installation) -> None:
    """A report that runs as slurm takes /var/lib/slurm-gpu from a slurm-gpudbd that does not."""
    told = found(host, {DAILY: "loaded enabled active", REPORT: "loaded static inactive hpc"})
    assert [finding.level.value for finding in told] == ["fail", "ok"]
    assert told[0].message.startswith("slurm-gpu-report@day.service runs as hpc, and SlurmUser is slurm:")
    assert str(told[0].remedy).startswith("systemctl edit slurm-gpu-report@: [Service], User=slurm and")
    (slurms,) = found(host, {DAILY: "loaded enabled active", REPORT: "loaded static inactive slurm"})
    assert slurms.message == f"will be there after the next boot: {DAILY}"
    running = found(host, {CONTROLLER: "loaded enabled active hpc"})
    assert str(running[0].remedy).startswith("systemctl edit slurm-gpuctld: ")


def test_the_host_of_the_page_is_where_its_file_lies(host: Installation) -> None:
    assert told(found(host, {WEB: "loaded disabled active"})) == [("warn", f"systemctl enable --now {WEB}")]
    (host.root / "slurm-gpuweb.yaml").touch()
    assert told(found(host, {})) == [("warn", f"systemctl enable --now {WEB}")]


def test_the_controller_needs_its_daemon_once_a_policy_is_in_force(host: Installation) -> None:
    install(host, LIMITS)
    assert told(found(host, {})) == [("warn", f"systemctl enable --now {CONTROLLER}")]


def test_limits_that_may_move_need_their_timer(host: Installation) -> None:
    install(host, LIMITS)
    (host.root / "policy.yaml").write_text(ADJUSTED)
    daemon = {CONTROLLER: "loaded enabled active"}
    assert told(found(host, daemon)) == [("warn", f"systemctl enable --now {ADJUST}"), ("ok", None)]
    host.conf["SlurmctldHost[0]"], host.conf["SlurmctldHost[1]"] = "other", "head"  # a backup adjusts nothing
    assert told(found(host, daemon)) == [("ok", None)]


def test_a_timer_that_somebody_started_or_enabled_is_to_be_both(host: Installation) -> None:
    assert told(found(host, {DAILY: "loaded disabled active"})) == [
        ("warn", f"systemctl enable --now {DAILY}")
    ]
    (finding,) = found(host, {DAILY: "loaded enabled inactive"})
    assert (finding.level.value, finding.remedy) == ("warn", f"systemctl start {DAILY}")
    assert told(found(host, {DAILY: "loaded enabled active"})) == [("ok", None)]


def test_a_systemd_that_does_not_answer_is_no_failure(host: Installation) -> None:
    def silent(argv: object, environ: object, timeout_s: object) -> str:
        raise SlurmError("`systemctl show` gave no answer within 10 s")

    at: DoctorContext = host.at("head")
    at.site.run = silent
    assert told(list(boot.enabled(at))) == [("skipped", None)]
