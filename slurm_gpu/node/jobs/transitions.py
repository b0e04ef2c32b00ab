"""Define the states of an allocation on a node, and the transitions between them.

A job has at most one open allocation. An ended allocation is processed separately until its records are
final. Meanwhile, the job may already be expected to return, or be running again. Suspension is not a state,
because it does not affect any transition (suspension.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from slurm_gpu.node.allocation.hooks import HookEvent
from slurm_gpu.node.allocation.tracker import Allocation, EndedAllocation
from slurm_gpu.node.jobs.allocation_actions import AllocationActions as Do
from slurm_gpu.node.jobs.reconcile import ReportedJob
from slurm_gpu.node.jobs.segments import OpenSegment


class AllocationState(StrEnum):
    """The state of an allocation."""

    ABSENT = "absent"  # The job has no allocation here.
    EXPECTED = "expected"  # The job was requeued and may return without a prolog.
    OPEN = "open"
    ENDING = "ending"  # Ended; the driver's last samples are pending.
    UNRESOLVED = "unresolved"  # Ended; its devices are not known yet.
    CLOSED = "closed"  # Its records are final.


class AllocationEvent(StrEnum):
    """An event that changes the state of an allocation."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    EXPIRED = "expired"  # A requeued job has not returned in time.
    RUNNING = "reported running"  # Slurm has twice reported a run without a known prolog.
    OVER = "reported over"  # Slurm reports the end of a job whose epilog is overdue.
    RESTARTED = "restarted"  # An earlier slurm-gpud left the allocation open.
    REBOOTED = "rebooted"  # The open allocation is from an earlier boot.
    REPLACED = "replaced"  # An earlier slurm-gpud had opened the job's next allocation.
    ENDED = "ended"  # An epilog or the next run's prolog ended the allocation.
    LOOKED_UP = "devices looked up"
    WAITED = "devices known or overdue"
    SETTLED = "last samples counted"


_Subject = TypeVar("_Subject")


@dataclass(frozen=True, slots=True)
class Transition(Generic[_Subject]):
    """The actions for an event in a state; the first transition whose `condition` is true applies."""

    state: AllocationState
    event: AllocationEvent
    condition: Callable[[Do, _Subject], bool] | None
    to: AllocationState
    actions: tuple[Callable[[Do, _Subject], None], ...] = ()


S, E, T = AllocationState, AllocationEvent, Transition

ON_HOOK: tuple[Transition[HookEvent], ...] = (
    T(S.ABSENT, E.PROLOG, Do.is_recorded, S.ABSENT, (Do.take,)),
    T(S.ABSENT, E.PROLOG, Do.has_gpus, S.OPEN, (Do.open_from_prolog, Do.take)),
    T(S.ABSENT, E.PROLOG, None, S.ABSENT, (Do.note_without_gpus, Do.take)),
    T(S.EXPECTED, E.PROLOG, Do.is_recorded, S.EXPECTED, (Do.take,)),
    T(S.EXPECTED, E.PROLOG, Do.has_gpus, S.OPEN, (Do.open_from_prolog, Do.take)),
    T(S.EXPECTED, E.PROLOG, None, S.EXPECTED, (Do.note_without_gpus, Do.take)),
    T(S.OPEN, E.PROLOG, Do.is_recorded, S.OPEN, (Do.take,)),
    T(S.OPEN, E.PROLOG, Do.is_of_reported_run, S.OPEN, (Do.confirm, Do.take)),
    T(S.OPEN, E.PROLOG, Do.has_gpus, S.OPEN, (Do.end_without_epilog, Do.open_from_prolog, Do.take)),
    T(S.OPEN, E.PROLOG, None, S.ABSENT, (Do.end_without_epilog, Do.note_without_gpus, Do.take)),
    T(S.ABSENT, E.EPILOG, Do.is_requeued, S.EXPECTED, (Do.expect_next_run, Do.note_unseen_end, Do.take)),
    T(S.ABSENT, E.EPILOG, None, S.ABSENT, (Do.note_unseen_end, Do.take)),
    T(
        S.EXPECTED,
        E.EPILOG,
        Do.runs_again_and_is_requeued,
        S.EXPECTED,
        (Do.open_returned_run, Do.expect_next_run, Do.exclude_unknown_jobs, Do.end),
    ),
    T(S.EXPECTED, E.EPILOG, Do.runs_again, S.ABSENT, (Do.open_returned_run, Do.exclude_unknown_jobs, Do.end)),
    T(
        S.EXPECTED,
        E.EPILOG,
        Do.is_requeued,
        S.EXPECTED,
        (Do.report_missing_prolog, Do.expect_next_run, Do.note_unseen_end, Do.take),
    ),
    T(
        S.EXPECTED,
        E.EPILOG,
        Do.has_gpus,
        S.ABSENT,
        (Do.report_missing_prolog, Do.stop_expecting, Do.note_unseen_end, Do.take),
    ),
    T(S.EXPECTED, E.EPILOG, None, S.ABSENT, (Do.stop_expecting, Do.note_unseen_end, Do.take)),
    T(S.OPEN, E.EPILOG, Do.is_of_earlier_run, S.OPEN, (Do.take,)),
    T(S.OPEN, E.EPILOG, Do.is_requeued, S.EXPECTED, (Do.expect_next_run, Do.end)),
    T(S.OPEN, E.EPILOG, None, S.ABSENT, (Do.end,)),
)
ON_REPORT: tuple[Transition[ReportedJob], ...] = (
    T(S.ABSENT, E.RUNNING, None, S.OPEN, (Do.open_reported,)),
    T(S.EXPECTED, E.RUNNING, None, S.OPEN, (Do.open_reported,)),
    T(S.OPEN, E.RUNNING, None, S.OPEN, (Do.end_earlier_run, Do.open_reported)),
)
ON_EXPIRY: tuple[Transition[int], ...] = (T(S.EXPECTED, E.EXPIRED, None, S.ABSENT, (Do.forget_return,)),)
ON_RESTART: tuple[Transition[Allocation], ...] = (
    T(S.OPEN, E.RESTARTED, None, S.OPEN, (Do.continue_in_new_segment,)),
)
# Events of a single allocation.
ON_END: tuple[Transition[EndedAllocation], ...] = (
    T(S.OPEN, E.OVER, None, S.CLOSED, (Do.report_missing_epilog, Do.close_by_checkpoint)),
    T(S.OPEN, E.REPLACED, None, S.UNRESOLVED, (Do.look_up_devices,)),
    T(S.OPEN, E.REBOOTED, None, S.UNRESOLVED, (Do.look_up_devices,)),
    T(S.OPEN, E.ENDED, Do.is_unsampled, S.UNRESOLVED, (Do.look_up_devices,)),
    T(S.OPEN, E.ENDED, Do.cannot_be_rewound, S.CLOSED, (Do.close_by_checkpoint, Do.take_epilog)),
    T(S.OPEN, E.ENDED, None, S.ENDING, (Do.sample_once_more,)),
    T(S.UNRESOLVED, E.LOOKED_UP, Do.may_be_resolved, S.UNRESOLVED, (Do.wait_for_devices,)),
    T(S.UNRESOLVED, E.LOOKED_UP, None, S.CLOSED, (Do.close_by_last_record, Do.take_epilog)),
    T(S.UNRESOLVED, E.WAITED, None, S.CLOSED, (Do.close_by_last_record, Do.take_epilog)),
)
ON_SETTLED: tuple[Transition[OpenSegment], ...] = (
    T(S.ENDING, E.SETTLED, None, S.CLOSED, (Do.close_settled,)),
)
