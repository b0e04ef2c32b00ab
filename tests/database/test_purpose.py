"""Servers, interactive sessions and suspended jobs resemble training runs with errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_gpu.database.verdicts.purpose import SERVERS, adjusted
from slurm_gpu.diagnose.series import JobWorker
from slurm_gpu.diagnose.verdict import Cause, Verdict
from tests.database.simulated_training import Played, Watching
from tests.database.test_watch import AT_S, hanging

_RULES = Path(__file__).resolve().parents[2] / "etc/applications.yaml"


def a_verdict(cause: Cause, kind: str = "") -> Verdict:
    culprit = JobWorker(node="n1", device="GPU-1")
    return Verdict(cause=cause, kind=kind, culprits=(culprit,), nodes=("n1",), strength=0.9)


@pytest.mark.parametrize(
    ("verdict", "app", "field", "state", "why"),
    [
        (a_verdict(Cause.HANG, "stalled"), "vLLM", "deep learning", "RUNNING", "vLLM answers requests"),
        (a_verdict(Cause.STARVATION), "Ollama", "deep learning", "RUNNING", "Ollama answers requests"),
        (a_verdict(Cause.IMBALANCE), "SGLang", "deep learning", "RUNNING", "SGLang answers requests"),
        (a_verdict(Cause.HANG, "stalled"), "Jupyter", "interactive", "RUNNING", "waits for its user"),
        (a_verdict(Cause.STARVATION), "Jupyter", "interactive", "RUNNING", "waits for its user"),
        (a_verdict(Cause.HANG, "waits for others"), "PyTorch", None, "SUSPENDED", "it is suspended"),
    ],
)
def test_usual_behaviour_accuses_no_gpu(verdict, app, field, state, why):
    found = adjusted(verdict, app, field, state)
    assert (found.cause, found.culprits, found.nodes, found.confidence) == (
        Cause.INCONCLUSIVE,
        (),
        (),
        0.0,
    )
    assert why in found.why_not[0]
    assert found.why_not[1] == f"by the measurements alone: {verdict.cause.value}"


@pytest.mark.parametrize(
    ("verdict", "app", "field", "state"),
    [
        (a_verdict(Cause.HANG, "stalled"), "PyTorch", "deep learning", "RUNNING"),
        (a_verdict(Cause.HANG, "stalled"), None, None, "RUNNING"),
        (a_verdict(Cause.HANG, "waits for others"), "vLLM", "deep learning", "RUNNING"),
        (a_verdict(Cause.SLOW, "throttled"), "vLLM", "deep learning", "RUNNING"),
        (a_verdict(Cause.SLOW, "xid 79"), "Jupyter", "interactive", "SUSPENDED"),
    ],
)
def test_the_rest_stays(verdict, app, field, state):
    assert adjusted(verdict, app, field, state) is verdict


def test_servers_are_called_as_the_rules_call_them():
    names = re.findall(r"^  (\S[^:\n]*):$", _RULES.read_text("utf-8"), re.MULTILINE)
    assert set(names) >= SERVERS


@pytest.mark.parametrize(("app", "found"), [("vLLM", set()), ("PyTorch", {1})])
def test_the_watch_reports_no_hang_of_an_idle_server(app: str, found: set[int]):
    played = Played({1: hanging(all_stop=True)})
    played.apps[1] = app
    assert set(Watching(played).until(AT_S + 240)) == found
