"""Concerns in a few words, for people."""

from __future__ import annotations

from slurm_gpu.alerts.alert import Concern, Flag

_WORDS = {
    Concern.XID: "{gpus} reported an error",
    Concern.UNHEALTHY: "{gpus} in trouble",
    Concern.HELD_IDLE: "{gpus} held and not used since it began",
    Concern.USED_THEN_IDLE: "{gpus} no longer used",
    Concern.MEMORY_IDLE: "{gpus} idle with full memory",
    Concern.PARTLY_UNUSED: "{gpus} never used, others are",
    Concern.THROTTLED: "{gpus} slowed down by heat or power",
}


def in_words(flag: Flag) -> str:
    """What is wrong, without whose it is and since when."""
    if flag.said is not None:
        kind = f" ({flag.said.kind})" if flag.said.kind else ""
        return f"{flag.said.cause}{kind}: {flag.said.text}, {flag.said.confidence:.0%} sure"
    n_gpus = len(flag.devices)
    return _WORDS[flag.concern].format(gpus="1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs")
