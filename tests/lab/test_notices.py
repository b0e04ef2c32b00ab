"""Test that the owner of an idle job is warned by mail, and that the job is cancelled and restored.

The test runs in real time: no job is judged in its first five minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from tests.notices.servers import MailServer, WebServer, serving

pytestmark = pytest.mark.long

POLICY = """\
version: 1
cancel_idle: {warn: [5m], after: 6m, mode: enforce, why: "Others wait for these GPUs."}
"""
NOTICES = """\
mode: send
after: 5m
contact: gpu-help@lab.test
mail: {{host: 127.0.0.1, port: {mail}, from: gpu-help@lab.test, to: "{{user}}@lab.test"}}
webhook: {{url: "http://127.0.0.1:{web}/hook"}}
"""
# Only the second task, whose job ID is the array's, is idle and must be cancelled.
ARRAY = """\
#!/bin/sh
[ "$SLURM_ARRAY_TASK_ID" = 2 ] || exec simgpu --util 60 --mem-mib 4000 --seconds 1500
sleep 1500
"""


@pytest.fixture
def mail() -> Iterator[MailServer]:
    server = MailServer()
    with serving(server):
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    with serving(server):
        yield server


def log_of(lab: Lab) -> str:
    shown = lab.run_as("root", ["slurm-gpu", "notices"], check=False)
    daemon = (lab.layout.log / "slurm-gpuctld.out").read_text()[-3000:]
    return f"{lab.output(['squeue', '-a'])}{shown.stdout}{shown.stderr}{daemon}"


def state(lab: Lab, name: str) -> str:
    return lab.run_as("root", ["squeue", "-h", "-o", "%T", "-j", name], check=False).stdout.strip()


def test_only_the_idle_job_is_warned_cancelled_and_restored(
    lab: Lab, mail: MailServer, web: WebServer
) -> None:
    policy = lab.layout.root / "idle-policy.yaml"
    policy.write_text(POLICY)
    lab.run_as("root", ["slurm-gpu", "policy", "apply", str(policy)])
    settings = lab.layout.site_file.parent / "notices.yaml"
    settings.write_text(NOTICES.format(mail=mail.port, web=web.port))
    try:
        array = lab.submit(
            "alice", "--gpus=1", "--array=1-2", "--time=40", "--job-name=x\tSubject: y", script=ARRAY
        )
        busy = lab.submit(
            "bob",
            "--gpus=1",
            "--time=40",
            script="#!/bin/sh\nexec simgpu --util 50 --mem-mib 4000 --seconds 1500\n",
        )
        idle, other = f"{array}_2", f"{array}_1"
        wait_for(lambda: state(lab, idle) == "RUNNING", 60, "it runs", lambda: log_of(lab), 0.5)

        wait_for(lambda: mail.got, 540, "a user is notified", lambda: log_of(lab), 2.0)
        (warning,) = mail.of("alice")
        assert "1 job will be ended: GPUs never used" in warning["Subject"]
        assert idle in warning.get_content()
        assert "They will be cancelled at" in warning.get_content()
        assert state(lab, idle) == "RUNNING"  # no job is ended without a warning

        wait_for(lambda: state(lab, idle) != "RUNNING", 240, "it is cancelled", lambda: log_of(lab), 1.0)
        assert (state(lab, other), state(lab, str(busy))) == ("RUNNING", "RUNNING")
        wait_for(lambda: len(mail.of("alice")) == 2, 60, "its owner has a mail", lambda: log_of(lab), 1.0)
        assert "They were cancelled at" in mail.of("alice")[1].get_content()
        assert mail.of("bob") == []
        assert [one["kind"] for _, _, one in web.asked] == ["warning", "ended"]

        lab.run_as("root", ["slurm-gpu", "notices", "undo", idle])
        wait_for(lambda: state(lab, idle) in ("PENDING", "RUNNING"), 30, "it is back", lambda: log_of(lab))

        def acts() -> list[str]:
            shown = json.loads(lab.output(["slurm-gpu", "audit", "--action", "idle job", "--json"]))["audit"]
            return [one["action"] for one in shown]

        wait_for(
            lambda: acts() == ["idle job warned", "idle job cancelled", "idle job brought back"],
            90,
            "the audit has all of it",
            lambda: f"{acts()}{log_of(lab)}",
            2.0,
        )
        shown = json.loads(lab.output(["slurm-gpu", "notices", "--json"]))
        assert [one["state"] for one in shown["ended"]] == ["ended"]
        assert {it["state"] for one in shown["notices"] for it in one["deliveries"].values()} == {"sent"}

        # Hold the job as `action: hold` does, and let its owner release it.
        lab.run_as("root", ["scontrol", "requeuehold", other])
        wait_for(lambda: state(lab, other) == "PENDING", 60, "it is held", lambda: log_of(lab), 0.5)
        lab.run_as("alice", ["scontrol", "release", other])
        reason = ["squeue", "-h", "-o", "%r", "-j", other]
        wait_for(
            lambda: "held" not in lab.output(reason).lower(), 60, "its owner has it back", lambda: log_of(lab)
        )
    finally:
        settings.unlink()
        lab.run_as("root", ["slurm-gpu", "policy", "rollback"], check=False)
