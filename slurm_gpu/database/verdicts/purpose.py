"""What a verdict means of a run that does not train: one that answers requests, or waits for its user."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu.diagnose.verdict import Cause, Verdict

SERVERS = frozenset(
    {
        *("vLLM", "SGLang", "Text Generation Inference", "Triton Inference Server", "TensorRT-LLM"),
        *("Ollama", "llama.cpp"),
    }
)
"""As applications.yaml names them."""
_INTERACTIVE = "interactive"
_WAITS = "stalled"


def may_rest(app: str | None, field: str | None) -> bool:
    """Whether GPUs that do nothing for long are nothing to speak of."""
    return app in SERVERS or field == _INTERACTIVE


def in_its_place(verdict: Verdict, app: str | None, field: str | None, state: str) -> Verdict:
    """The verdict; `cannot tell` where such a run, or one that is suspended, looks so when it is well."""
    why = None
    if state == "SUSPENDED" and verdict.cause is Cause.HANG:
        why = "it is suspended"
    elif app in SERVERS and _comes_and_goes(verdict):
        why = f"{app} answers requests: its GPUs do as much as is asked of each, and rest where nothing is"
    elif field == _INTERACTIVE and (verdict.cause is Cause.STARVATION or _stands(verdict)):
        why = f"{app} waits for its user: its GPUs rest where nothing is asked of them"
    if why is None:
        return verdict
    seen = f"what was seen alone says: {verdict.cause.value}"
    return replace(
        verdict,
        cause=Cause.UNKNOWN,
        kind="",
        culprits=(),
        nodes=(),
        roles=(),
        since_s=None,
        until_s=None,
        confidence=0.0,
        why_not=(why, seen),
    )


def _comes_and_goes(verdict: Verdict) -> bool:
    return verdict.cause in (Cause.STARVATION, Cause.IMBALANCE) or _stands(verdict)


def _stands(verdict: Verdict) -> bool:
    """Nobody spins: who waits for another of its workers does."""
    return verdict.cause is Cause.HANG and verdict.kind == _WAITS
