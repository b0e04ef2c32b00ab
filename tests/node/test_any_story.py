"""Jobs begin, end, share and are requeued while slurm-gpud dies, its clock is set and hooks are lost.

Whatever the story, a run's records tell what it did while somebody watched, nothing of anybody else's, and
what they leave out is no more than the outages.
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

# Always the same, unless one looks for new ones, as `make soak` does.
STORIES = int(os.environ.get("SLURM_GPU_TEST_STORIES", "30"))
stories = settings(
    max_examples=STORIES, deadline=None, derandomize="SLURM_GPU_TEST_STORIES" not in os.environ
)

Step = tuple[Any, ...]
"""What happens, and the arguments of Story's method of that name."""


def _steps(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), *arguments)


_slots, _percents = st.sampled_from(sorted(SLOTS)), st.sampled_from(PERCENT)
_ordinary = (
    _steps("wait", st.sampled_from([0.05, 0.3, 1.0, 4.0, 15.0, 40.0])),
    _steps("begin", _slots, _percents),
    _steps("end", _slots),
    _steps("requeue", _slots, _percents, st.sampled_from([0.02, 1.0, 5.0])),
    _steps("leave", st.booleans()),
    _steps("come", st.booleans()),
)
_clock_steps = _steps("set_clock", st.sampled_from([-90.0, -2.0, 0.2, 5.0, 100.0]))
_lost_hooks = (
    _steps("lose_epilog", _slots),
    _steps("requeue_unseen", _slots, _percents, st.sampled_from([0.02, 1.0, 5.0])),
)


class SharingMachine(Machine):
    """One on which Slurm may give a GPU to several jobs."""

    def slurmd(self, command: Sequence[str]) -> str:
        return super().slurmd(command) + "\nslurmd: Gres Name=shard Count=4 File=/nowhere/nvidia1 (null)"


@stories
@given(st.lists(st.one_of(*_ordinary, _clock_steps), min_size=3, max_size=30))
# The run before ended just before slurm-gpud did.
@example([("begin", 0, 0.0), ("requeue", 0, 0.0, 1.0), ("leave", False)])
# It ends just when slurm-gpud has come back.
@example([("begin", 0, 7.0), ("leave", True), ("set_clock", 5.0), ("come", False), ("end", 0)])
# It comes back twice before the driver answers.
@example(
    [("leave", True), ("begin", 0, 0.0), ("requeue", 0, 0.0, 1.0), *[("come", True), ("leave", True)] * 2]
)
def test_whatever_happens_a_record_is_the_truth_less_the_outages(told: list[Step]) -> None:
    play(told)


@stories
@given(st.lists(st.one_of(*_ordinary, *_lost_hooks), min_size=3, max_size=30))
# It ends without an epilog while slurm-gpud, which has not seen the prolog, is away.
@example([("begin", 0, 0.0), ("leave", True), ("lose_epilog", 0), ("wait", 4.0)])
def test_so_it_is_where_slurm_alone_tells_of_some_beginnings_and_ends(told: list[Step]) -> None:
    play(told)


def play(told: Sequence[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = FakeClock()
        gpus = [FakeGpu(clock, f"GPU-{n}", n) for n in (0, 1)]
        machine = SharingMachine(Path(directory), *gpus)
        machine.start()
        story = Story(machine)
        story.wait(5.0)
        for name, *arguments in told:
            getattr(story, name)(*arguments)
        story.over()
        known = {(hold.job_id, hold.restart) for hold in story.holds}
        assert {(r.job_id, r.restart) for r in machine.records(final=None)} <= known
        for hold in story.holds:
            check(hold, story.records(hold))
        assert machine.hook_files() == []
        machine.kill()
