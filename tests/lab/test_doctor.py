"""`slurm-gpu doctor` on a whole installation: fine when it is, and it names what is broken."""

from __future__ import annotations

import json

from lab.cluster import Lab
from lab.polling import wait_for


def _doctor(lab: Lab) -> tuple[int, dict[str, set[str]]]:
    """Exit code, and the levels that each check found."""
    argv = ["slurm-gpu", "doctor", "--json"]
    shown = lab.run_as("root", argv, check=False)
    found: dict[str, set[str]] = {}
    for check in json.loads(shown.stdout)["checks"]:
        found.setdefault(check["check"], set()).add(check["level"])
    return shown.returncode, found


def _all_well(lab: Lab) -> bool:
    code, found = _doctor(lab)
    # Its policy lends nothing, nobody is urgent or shares GPUs; there is no second slurmctld, nobody trains
    # forecasts, no daemon is systemd's.
    for nothing in ("lending", "urgent", "colocation", "backup", "forecasts", "boot", "notices"):
        found.pop(nothing, None)
    return code == 0 and set().union(*found.values()) == {"ok"}


def test_the_lab_is_fine(lab: Lab) -> None:
    lab.daemons["slurm-gpudbd"].restart()  # until then it tells of what other tests sent and it refused
    wait_for(lambda: _all_well(lab), 90, "doctor finds nothing", lambda: str(_doctor(lab)), 1)


def test_of_several_nodes_on_one_host_the_one_without_a_slurm_gpud_is_named(lab: Lab) -> None:
    daemon = lab.daemons["slurm-gpud-n2"]
    daemon.kill9()
    try:
        shown = lab.run_as("root", ["slurm-gpu", "doctor"], check=False)
    finally:
        daemon.start()
    assert shown.returncode == 1
    assert "no slurm-gpud runs for n2" in shown.stdout, shown.stdout


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
        assert _doctor(lab)[1]["policy"] == {"ok"}  # a remark changes nothing
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
