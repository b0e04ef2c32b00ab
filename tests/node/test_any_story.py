"""Jobs begin, end, share and are requeued while slurm-gpud dies, its clock is set and hooks are lost.

In every story, a run's records contain its activity while slurm-gpud ran, contain nothing of other jobs, and
lack no more time than the outages.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.node.fakes import FakeClock, FakeGpu
from tests.node.machine import Machine
from tests.node.story import PERCENT, SLOTS, Story, check

# The stories are always the same, unless the variable is set, as in `make soak`.
STORIES = int(os.environ.get("SLURM_GPU_TEST_STORIES", "30"))
stories = settings(
    max_examples=STORIES, deadline=None, derandomize="SLURM_GPU_TEST_STORIES" not in os.environ
)

# The name of a Story method, and the arguments of its call.
Step = tuple[Any, ...]


def _steps(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), *arguments)


_slots, _percents = st.sampled_from(sorted(SLOTS)), st.sampled_from(PERCENT)
_ordinary = (
    _steps("wait", st.sampled_from([0.05, 0.3, 1.0, 4.0, 15.0, 40.0])),
    _steps("begin", _slots, _percents),
    _steps("end", _slots),
    _steps("requeue", _slots, _percents, st.sampled_from([0.02, 1.0, 5.0])),
    _steps("stop", st.booleans()),
    _steps("start", st.booleans()),
)
_clock_steps = _steps("set_clock", st.sampled_from([-90.0, -2.0, 0.2, 5.0, 100.0]))
_lost_hooks = (
    _steps("lose_epilog", _slots),
    _steps("requeue_unseen", _slots, _percents, st.sampled_from([0.02, 1.0, 5.0])),
)


class SharingMachine(Machine):
    """A machine on which Slurm may allocate a GPU to several jobs."""

    def slurmd(self, command: Sequence[str]) -> str:
        return super().slurmd(command) + "\nslurmd: Gres Name=shard Count=4 File=/nowhere/nvidia1 (null)"


@stories
@given(st.lists(st.one_of(*_ordinary, _clock_steps), min_size=3, max_size=30))
# The previous run ended just before slurm-gpud.
@example([("begin", 0, 0.0), ("requeue", 0, 0.0, 1.0), ("stop", False)])
# The run ends just after slurm-gpud has restarted.
@example([("begin", 0, 7.0), ("stop", True), ("set_clock", 5.0), ("start", False), ("end", 0)])
# slurm-gpud restarts twice before the driver answers.
@example(
    [("stop", True), ("begin", 0, 0.0), ("requeue", 0, 0.0, 1.0), *[("start", True), ("stop", True)] * 2]
)
def test_records_are_true_except_for_outages(steps: list[Step]) -> None:
    play(steps)


@stories
@given(st.lists(st.one_of(*_ordinary, *_lost_hooks), min_size=3, max_size=30))
# The run ends without an epilog while slurm-gpud is down; its next process does not see the prolog.
@example([("begin", 0, 0.0), ("stop", True), ("lose_epilog", 0), ("wait", 4.0)])
def test_records_are_true_when_hooks_are_lost(steps: list[Step]) -> None:
    play(steps)


def play(steps: Sequence[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = FakeClock()
        gpus = [FakeGpu(clock, f"GPU-{n}", n) for n in (0, 1)]
        machine = SharingMachine(Path(directory), *gpus)
        machine.start()
        story = Story(machine)
        story.wait(5.0)
        for name, *arguments in steps:
            getattr(story, name)(*arguments)
        story.finish()
        known = {(run.job_id, run.restart) for run in story.runs}
        assert {(r.job_id, r.restart) for r in machine.records(final=None)} <= known
        for run in story.runs:
            check(run, story.records(run))
        assert machine.hook_files() == []
        machine.kill()
