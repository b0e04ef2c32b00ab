"""Test the page with the diagnosis of a job: its visibility, and limits of the drawing process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from starlette.exceptions import HTTPException

from lab.synthetic import uid_of
from slurm_gpu.errors import DatabaseError
from slurm_gpu.monitor.job.drawing import AT_ONCE, MOST_WAITING, OF_A_USER, DrawingProcess
from slurm_gpu.monitor.page.files import page_files
from slurm_gpu.monitor.viewer import Viewer
from slurm_gpu.wire import Record
from slurm_gpu.wire.answers.runs import NodeWindow
from slurm_gpu.wire.window import pack
from tests.monitor.slow_training import Drawn

_ECHO = (sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())")
_NEVER = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def drawn() -> Drawn:
    return Drawn()


def test_permitted_users_see_the_diagnosis(drawn: Drawn):
    answer = drawn.get(f"/diagnosis?id={drawn.job}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "slow or failing" in answer.text
    assert f'<a href="job?id={drawn.job}">' in answer.text
    assert answer.headers["cache-control"] == "private, no-store"


def test_permitted_users_get_the_verdict_as_json(drawn: Drawn):
    answer = drawn.get(f"/api/v1/jobs/{drawn.job}/diagnosis?run={drawn.run.submit_s}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json()["verdict"]["cause"] == "slow or failing"
    drawn.viewer = Viewer("nobody", 65534, operator=False)
    refused = drawn.get(f"/api/v1/jobs/{drawn.job}/diagnosis")
    assert refused.status_code == 403
    assert "another user" in refused.json()["error"]


@pytest.mark.parametrize(("query", "status"), [("run=<b>", 400), ("run=1", 404)])
def test_the_verdict_of_a_run_that_does_not_exist_is_refused(drawn: Drawn, query: str, status: int):
    answer = drawn.get(f"/api/v1/jobs/{drawn.job}/diagnosis?{query}")
    assert (answer.status_code, [*answer.json()]) == (status, ["error"])


def test_while_windows_are_requested_the_page_links_to_itself(drawn: Drawn):
    again = f'<a href="diagnosis?id={drawn.job}">'
    assert again not in drawn.get(f"/diagnosis?id={drawn.job}").text, "no window is requested any more"
    drawn.source.windows = lambda job: ()  # type: ignore[method-assign]
    answer = drawn.get(f"/diagnosis?id={drawn.job}").text
    assert "The last ten minutes at full resolution were requested from the nodes: " + again in answer


def test_while_one_of_its_nodes_has_not_answered_the_page_names_it_and_leads_to_itself(drawn: Drawn):
    first, last = (drawn.run.devices or ())[0], (drawn.run.devices or ())[-1]
    drawn.run = structs.replace(drawn.run, devices=(first, replace(last, node="n999")))

    def window_of(record: Record) -> NodeWindow:
        start_s = drawn.run.start_s or 0
        return NodeWindow(
            node=record.node,
            at_s=start_s + 100,
            job_id=drawn.run.job_id,
            segment="0" * 16,
            device=record.device,
            start_s=float(start_s),
            width_s=1.0,
            series={"util_pct": pack(np.full(100, 90.0))},
        )

    answered = [window_of(first)]
    drawn.source.windows = lambda job: answered  # type: ignore[method-assign]
    text = "; no answer yet from n999: " + f'<a href="diagnosis?id={drawn.job}">'
    assert text in drawn.get(f"/diagnosis?id={drawn.job}").text
    answered.append(window_of((drawn.run.devices or ())[-1]))
    assert "Reload in 20 s" not in drawn.get(f"/diagnosis?id={drawn.job}").text


def test_the_page_uses_only_local_files_and_no_inline_styles(drawn: Drawn):
    answer = drawn.get(f"/diagnosis?id={drawn.job}")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "style-src 'self'" in policy
    assert "<style" not in answer.text
    assert ' style="' not in answer.text
    here = [path for path in page_files() if path.split("/")[-1] in ("diagnosis.css", "diagnosis.js")]
    assert len(here) == 2
    for path in here:
        assert f'"{path.removeprefix("/")}"' in answer.text
        assert drawn.get(path).status_code == 200


@pytest.mark.parametrize("query", ["", "&run=older"])
def test_no_other_user_sees_it_nor_that_anything_was_found(drawn: Drawn, query: str):
    path = f"/diagnosis?id={drawn.job}" + query.replace("older", str(drawn.older.submit_s))
    drawn.viewer = Viewer("nobody", 65534, operator=False)
    answer = drawn.get(path)
    assert answer.status_code == 403
    assert "another user" in answer.text
    assert "slow" not in answer.text
    drawn.viewer = Viewer(drawn.user, 70_000, operator=False)  # the name was given to another user
    assert drawn.get(path).status_code == 403


def test_the_owner_of_a_job_sees_its_diagnosis(drawn: Drawn):
    drawn.viewer = Viewer(drawn.user, uid_of(drawn.user), operator=False)
    assert drawn.get(f"/diagnosis?id={drawn.job}").status_code == 200


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("", 400, "is not a job"),
        ("id=../live", 400, "is not a job"),
        ("id=<script>alert(1)</script>", 400, "is not a job"),
        ("id=JOB&run=<b>", 400, "must be a whole number"),
        ("id=JOB&run=1", 404, "no run with this submit time"),
        ("id=999999", 404, "no run with this submit time"),
        ("id=JOB&run=OLDER", 404, "no node has reported GPUs"),
    ],
)
def test_errors_of_a_diagnosis_are_shown_as_a_page(drawn: Drawn, query: str, status: int, why: str):
    query = query.replace("JOB", drawn.job).replace("OLDER", str(drawn.older.submit_s))
    answer = drawn.get(f"/diagnosis?{query}")
    assert answer.status_code == status
    assert why in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script" not in answer.text
    assert "<b>" not in answer.text


def test_an_outage_of_slurm_gpudbd_is_reported(drawn: Drawn):
    def unreachable(job: str):
        raise DatabaseError("slurm-gpudbd does not answer")

    drawn.source.run = unreachable  # type: ignore[method-assign]
    answer = drawn.get(f"/diagnosis?id={drawn.job}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "does not answer" in answer.text


def test_a_user_gets_two_at_once_and_all_together_a_few():
    async def crowd() -> list[int]:
        drawing = DrawingProcess(_ECHO)
        users = ["alice"] * (OF_A_USER + 1) + [f"u{n}" for n in range(AT_ONCE + MOST_WAITING)]
        asked = [drawing.draw(user, b"page") for user in users]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert await drawing.draw("alice", b"again") == b"again"
        assert all(answer == b"page" or isinstance(answer, HTTPException) for answer in answers)
        return [answer.status_code for answer in answers if isinstance(answer, HTTPException)]

    # alice has one request over her limit; together, all users exceed the total by alice's limit.
    assert asyncio.run(crowd()) == [503] * (1 + OF_A_USER)


def test_a_failure_to_start_a_process_is_reported_with_retry_after(tmp_path: Path):
    async def draw() -> None:
        drawing = DrawingProcess((str(tmp_path / "missing"),))
        with pytest.raises(HTTPException, match="no process could be started") as caught:
            await drawing.draw("alice", b"")
        assert (caught.value.status_code, caught.value.headers) == (503, {"Retry-After": "5"})

    asyncio.run(draw())


def test_the_oom_killer_prefers_the_drawing_process():
    code = (
        "from slurm_gpu.reports.diagnosed.process import step_back; step_back();"
        "print(open('/proc/self/oom_score_adj').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1000"


def test_a_drawing_process_is_killed_after_its_deadline():
    async def wait() -> None:
        drawing = DrawingProcess(_NEVER, within_s=0.05)
        with pytest.raises(HTTPException, match="longer than 0") as caught:
            await drawing.draw("alice", b"")
        assert caught.value.status_code == 503

    asyncio.run(wait())


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ("ModuleNotFoundError: No module named 'numpy'", "numpy is not installed for slurm-gpuweb"),
        ("ValueError: secret", "see the log of slurm-gpuweb"),
    ],
)
def test_a_failed_drawing_is_an_error_without_details(last: str, why: str):
    command = (sys.executable, "-c", f"import sys; sys.exit({last!r})")

    async def fail() -> None:
        with pytest.raises(HTTPException, match=why) as caught:
            await DrawingProcess(command).draw("alice", b"")
        assert caught.value.status_code == 500
        assert "secret" not in caught.value.detail

    asyncio.run(fail())
