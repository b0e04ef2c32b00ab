"""Adjust verdicts for suspended jobs, inference servers, and sessions that wait for their user."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu.diagnose.verdict import Cause, Verdict

# Names of inference servers, as in applications.yaml.
SERVERS = frozenset(
    {
        *("vLLM", "SGLang", "Text Generation Inference", "Triton Inference Server", "TensorRT-LLM"),
        *("Ollama", "llama.cpp"),
    }
)
_INTERACTIVE = "interactive"
_WAITS = "stalled"


def may_rest(app: str | None, field: str | None) -> bool:
    """Return whether long idle periods of the GPUs are normal for an application."""
    return app in SERVERS or field == _INTERACTIVE


def adjusted(verdict: Verdict, app: str | None, field: str | None, state: str) -> Verdict:
    """Return the verdict; its cause becomes unknown if the application or job state explains the values."""
    why = None
    if state == "SUSPENDED" and verdict.cause is Cause.HANG:
        why = "it is suspended"
    elif app in SERVERS and _comes_and_goes(verdict):
        why = f"{app} answers requests, so its GPUs are idle when there are none"
    elif field == _INTERACTIVE and (verdict.cause is Cause.STARVATION or _stands(verdict)):
        why = f"{app} waits for its user, so its GPUs are idle when there is no input"
    if why is None:
        return verdict
    seen = f"by the measurements alone: {verdict.cause.value}"
    return replace(
        verdict,
        cause=Cause.INCONCLUSIVE,
        kind="",
        culprits=(),
        nodes=(),
        roles=(),
        since_s=None,
        until_s=None,
        strength=0.0,
        why_not=(why, seen),
    )


def _comes_and_goes(verdict: Verdict) -> bool:
    return verdict.cause in (Cause.STARVATION, Cause.IMBALANCE) or _stands(verdict)


def _stands(verdict: Verdict) -> bool:
    """Return whether the job hangs with all workers idle; a worker that waits for another would be busy."""
    return verdict.cause is Cause.HANG and verdict.kind == _WAITS
