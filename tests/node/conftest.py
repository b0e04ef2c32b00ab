from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.node.jobs import transitions
from slurm_gpu.node.jobs.lifecycle import LifeCycle
from slurm_gpu.node.jobs.transitions import AllocationEvent, AllocationState, Transition
from tests.node.fakes import FakeClock, FakeGpu
from tests.node.machine import Machine
from tests.node.posting import Post
from tests.node.transition_table import TRANSITIONS
from tests.node.wired import Wired


@pytest.fixture(scope="session", autouse=True)
def _check_transitions() -> Iterator[None]:
    """Check, in every test of a node, that each transition leads to the state in its table row."""
    move = LifeCycle._move

    def checked(
        life: LifeCycle,
        table: Sequence[Transition[Any]],
        state: AllocationState,
        event: AllocationEvent,
        subject: Any,
    ) -> AllocationState:
        to = move(life, table, state, event, subject)
        if table is transitions.ON_HOOK or table is transitions.ON_REPORT:
            assert life.state_of(subject.job_id) is to
        elif table is transitions.ON_EXPIRY:
            assert life.state_of(subject) is to
        elif table is transitions.ON_RESTART:
            assert life.state_of(subject.key.job_id) is to
        else:
            assert subject.allocation.key.segment not in {a.key.segment for a in life.allocations}
            # Decoding all saved allocations would take most of the time of tests with many jobs.
            is_kept = f"allocation/{subject.allocation.key.segment}" in life._spool._journal
            # A lookup of the devices may already have closed the allocation.
            assert is_kept is (to is not AllocationState.CLOSED) or event in _LOOK_UP
        return to

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LifeCycle, "_move", checked)
        yield


_LOOK_UP = {row.event for row in TRANSITIONS if row.to is AllocationState.UNRESOLVED}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    return FakeGpu(clock)


@pytest.fixture
def machine(tmp_path: Path, gpu: FakeGpu) -> Machine:
    """Return a node with one GPU and a running slurm-gpud."""
    machine = Machine(tmp_path, gpu)
    machine.start()
    return machine


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


@pytest.fixture
def wired(tmp_path: Path, gpu: FakeGpu) -> Iterator[Wired]:
    machine = Wired(tmp_path, gpu)
    machine.start()
    yield machine
    if machine.spool is not None:
        machine.kill()
