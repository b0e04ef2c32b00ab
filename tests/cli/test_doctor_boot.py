"""`slurm-gpu doctor` reports daemons and timers that will not start at the next boot."""

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
    """Return a host with systemd and all units of slurm-gpu, which are disabled."""
    (installed.root / "systemd").mkdir()
    monkeypatch.setattr(boot, "UNITS", (installed.root / "systemd",))
    for timer in (ADJUST, DAILY):
        (installed.root / "systemd" / timer).touch()
    return installed


def found(host: Installation, states: Mapping[str, str], *, is_node: bool = False) -> list[CheckResult]:
    """Return the findings for units in these states ("loaded enabled active USER"; default: disabled)."""
    blocks = []
    for name in (NODE, DATABASE, CONTROLLER, WEB, ADJUST, DAILY, REPORT):
        load, file, active, *user = states.get(name, "loaded disabled inactive").split()
        properties = {"Id": name, "LoadState": load, "ActiveState": active, "UnitFileState": file.strip("-")}
        properties["User"] = "".join(user)
        blocks.append("".join(f"{key}={value}\n" for key, value in properties.items()))
    host.outputs["systemctl show --property=Id"] = "\n".join(blocks)
    at = host.at("head")
    if not is_node:
        at.nodes = []
    return list(boot.enabled(at))


def levels_and_remedies(findings: list[CheckResult]) -> list[tuple[str, str | None]]:
    return [(finding.level.value, finding.remedy) for finding in findings]


@pytest.mark.parametrize(
    ("address", "is_needed"),
    [
        ("head:6829", True),
        ("head.example.org:6829", True),
        ("localhost:6829", True),
        ("192.0.2.1:6829", False),
    ],
)
def test_slurm_gpudbd_is_needed_only_on_the_host_of_its_address(
    host: Installation, address: str, is_needed: bool
) -> None:
    """The package installs slurm-gpudbd.yaml even on hosts that only use its commands."""
    host.site_file.write_text(f"cluster: neuron\ndatabase: http://{address}\n")
    host.site_file.with_name("slurm-gpudbd.yaml").write_text("{}\n")
    remedies = [remedy for _, remedy in levels_and_remedies(found(host, {})) if remedy]
    assert remedies == ([f"run systemctl enable --now {DATABASE}"] if is_needed else [])


def test_without_systemd_the_check_is_skipped(installed: Installation) -> None:
    assert levels_and_remedies(list(boot.enabled(installed.at()))) == [("skipped", None)]


def test_units_that_this_host_does_not_need_can_be_disabled(host: Installation) -> None:
    assert levels_and_remedies(found(host, {})) == [("skipped", None)]


def test_a_gpu_node_needs_slurm_gpud_at_boot(host: Installation) -> None:
    enable = ("warn", f"run systemctl enable --now {NODE}")
    assert levels_and_remedies(found(host, {}, is_node=True)) == [enable]
    (finding,) = found(host, {NODE: "loaded disabled active"}, is_node=True)
    assert (
        finding.message == f"{NODE} is running, and will not start at the next boot, because it is disabled"
    )
    assert levels_and_remedies(found(host, {NODE: "loaded enabled-runtime active"}, is_node=True)) == [enable]
    assert levels_and_remedies(found(host, {NODE: "loaded enabled active"}, is_node=True)) == [("ok", None)]


def test_a_masked_unit_has_to_be_unmasked_first(host: Installation) -> None:
    (finding,) = found(host, {NODE: "masked masked inactive"}, is_node=True)
    assert finding.remedy == f"run systemctl unmask {NODE}; systemctl enable --now {NODE}"


def test_a_daemon_without_a_unit_is_skipped(host: Installation) -> None:
    assert levels_and_remedies(found(host, {NODE: "not-found - inactive"}, is_node=True)) == [
        ("skipped", None)
    ]


def test_the_host_with_slurm_gpudbd_yaml_needs_slurm_gpudbd(host: Installation) -> None:
    (host.root / "slurm-gpudbd.yaml").touch()
    assert levels_and_remedies(found(host, {})) == [("warn", f"run systemctl enable --now {DATABASE}")]


def test_units_that_do_not_run_as_slurm_user_are_named(host: Installation) -> None:
    """If the report ran as a user other than slurm-gpudbd's, it would take over /var/lib/slurm-gpu."""
    findings = found(host, {DAILY: "loaded enabled active", REPORT: "loaded static inactive hpc"})
    assert [finding.level.value for finding in findings] == ["fail", "ok"]
    assert findings[0].message.startswith("slurm-gpu-report@day.service runs as hpc, but SlurmUser is slurm:")
    assert str(findings[0].remedy).startswith("run systemctl edit slurm-gpu-report@ and set User=slurm and")
    (slurms,) = found(host, {DAILY: "loaded enabled active", REPORT: "loaded static inactive slurm"})
    assert slurms.message == f"enabled at boot: {DAILY}"
    running = found(host, {CONTROLLER: "loaded enabled active hpc"})
    assert str(running[0].remedy).startswith("run systemctl edit slurm-gpuctld and ")


def test_the_host_with_slurm_gpuweb_yaml_needs_slurm_gpuweb(host: Installation) -> None:
    assert levels_and_remedies(found(host, {WEB: "loaded disabled active"})) == [
        ("warn", f"run systemctl enable --now {WEB}")
    ]
    (host.root / "slurm-gpuweb.yaml").touch()
    assert levels_and_remedies(found(host, {})) == [("warn", f"run systemctl enable --now {WEB}")]


def test_a_controller_with_a_policy_needs_slurm_gpuctld(host: Installation) -> None:
    install(host, LIMITS)
    assert levels_and_remedies(found(host, {})) == [("warn", f"run systemctl enable --now {CONTROLLER}")]


def test_a_policy_with_adjust_needs_its_timer(host: Installation) -> None:
    install(host, LIMITS)
    (host.root / "policy.yaml").write_text(ADJUSTED)
    daemon = {CONTROLLER: "loaded enabled active"}
    assert levels_and_remedies(found(host, daemon)) == [
        ("warn", f"run systemctl enable --now {ADJUST}"),
        ("ok", None),
    ]
    host.conf["SlurmctldHost[0]"], host.conf["SlurmctldHost[1]"] = (
        "other",
        "head",
    )  # a backup does not adjust limits
    assert levels_and_remedies(found(host, daemon)) == [("ok", None)]


def test_a_timer_that_is_only_started_or_only_enabled_is_reported(host: Installation) -> None:
    assert levels_and_remedies(found(host, {DAILY: "loaded disabled active"})) == [
        ("warn", f"run systemctl enable --now {DAILY}")
    ]
    (finding,) = found(host, {DAILY: "loaded enabled inactive"})
    assert (finding.level.value, finding.remedy) == ("warn", f"run systemctl start {DAILY}")
    assert levels_and_remedies(found(host, {DAILY: "loaded enabled active"})) == [("ok", None)]


def test_a_systemd_without_an_answer_is_skipped(host: Installation) -> None:
    def silent(argv: object, environ: object, timeout_s: object) -> str:
        raise SlurmError("`systemctl show` gave no answer within 10 s")

    at: DoctorContext = host.at("head")
    at.site.run = silent
    assert levels_and_remedies(list(boot.enabled(at))) == [("skipped", None)]
