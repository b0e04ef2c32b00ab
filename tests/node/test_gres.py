"""Slurm's index of a GPU is resolved to the right UUID for any order in gres.conf."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from operator import sub
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_gpu.errors import SlurmError
from slurm_gpu.node.allocation.gres import (
    Capability,
    DevicePosition,
    GresOrder,
    minor_of,
    parse_files,
    place_of,
    read_capabilities,
)
from slurm_gpu.node.allocation.slurmd import RETRY_MAX_S, RETRY_S, SILENT_S
from slurm_gpu.node.gpu.reading import DeviceProperties
from slurm_gpu.node.worker_thread import WorkerThread
from tests.node.fakes import FakeClock
from tests.node.machine import DeferredWorker, ImmediateWorker

SHUFFLED = """\
slurmd-n1: Gres Name=shard Type=a100 Count=4 Index=3 ID=1918986455 File=/dev/x/nvidia3 (null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=3 ID=7696487 File=/dev/x/nvidia3 (null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=1 ID=7696487 File=/dev/x/nvidia1 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=0 ID=7696487 File=/dev/x/nvidia0 (null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=2 ID=7696487 File=/dev/x/nvidia2 (null)
slurmd-n1: Gres Name=nic Count=1 File=/dev/x/nic0
"""
# Output of 25.05 with AutoDetect=nvml: a GPU with two instances before a whole one.
MIG = """\
slurmd: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=22 ID=7696487 \
File=/dev/x/nvidia1,/dev/x/nvidia-caps/nvidia-cap21,/dev/x/nvidia-caps/nvidia-cap22 Links=-1,0 \
Flags=HAS_FILE,HAS_TYPE,ENV_NVML,UUID
slurmd: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=31 ID=7696487 \
File=/dev/x/nvidia1,/dev/x/nvidia-caps/nvidia-cap[30-31] Links=0,-1 Flags=HAS_FILE
slurmd: Gres Name=gpu Type=a100 Count=1 Index=0 ID=7696487 File=/dev/x/nvidia0 Links=-1 Flags=HAS_FILE
"""
MIG_MINORS = """\
config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu1/gi1/access 21
gpu1/gi1/ci0/access 22
gpu1/gi1/ci1/access 23
gpu1/gi2/access 30
gpu1/gi2/ci0/access 31
"""
WHOLE = DeviceProperties(uuid="GPU-0", index=1, minor=0)
SPLIT = DeviceProperties(uuid="GPU-1", index=0, minor=1)


def instance(gi: int, ci: int) -> DeviceProperties:
    return DeviceProperties(
        uuid=f"MIG-{gi}-{ci}", index=0, minor=1, parent="GPU-1", gpu_instance=gi, compute_instance=ci
    )


def gpus(*minors: int) -> list[DeviceProperties]:
    return [
        DeviceProperties(uuid=f"GPU-{minor}", index=index, minor=minor) for index, minor in enumerate(minors)
    ]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (SHUFFLED, [(f"/dev/x/nvidia{n}",) for n in (3, 1, 0, 2)]),
        (
            "slurmd: Gres Name=gpu Count=4 ID=7 File=/dev/gpu[4-7] (null)",
            [(f"/dev/gpu{n}",) for n in (4, 5, 6, 7)],
        ),
        (
            "Gres Name=gpu Count=3 File=/dev/gpu[08-09,11]",
            [("/dev/gpu08",), ("/dev/gpu09",), ("/dev/gpu11",)],
        ),
        ("Gres Name=gpu Count=3 File=/dev/a[0-1],/dev/b0 x", [("/dev/a0",), ("/dev/a1",), ("/dev/b0",)]),
        ("slurmd: Gres Name=gpu Type=a100 Count=4 ID=7696487 (null)", []),
        ("", []),
    ],
)
def test_files_in_the_order_of_slurmd(text: str, files: list[tuple[str, ...]]) -> None:
    assert parse_files(text) == files


@given(st.text(st.sampled_from("nvidia/[]0123456789,-x "), max_size=30))
def test_any_output_of_slurmd_is_parsed_without_errors(files: str) -> None:
    for count in (1, 3):
        for position in parse_files(f"slurmd: Gres Name=gpu Count={count} ID=7 File={files} (null)"):
            place_of(position, {12: Capability(0, 1, None), 13: Capability(0, 1, 0)})


def test_the_files_of_an_instance_are_one_position() -> None:
    caps = "/dev/x/nvidia-caps/nvidia-cap"
    assert parse_files(MIG) == [
        ("/dev/x/nvidia1", f"{caps}21", f"{caps}22"),
        ("/dev/x/nvidia1", f"{caps}30", f"{caps}31"),
        ("/dev/x/nvidia0",),
    ]


def test_the_minor_number_comes_from_the_device_or_from_its_name() -> None:
    assert minor_of("/dev/null") == 3  # c 1 3, despite its name
    assert minor_of("/nowhere/gpu12") == 12
    assert minor_of("/nowhere/gpu") is None


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (["/n/nvidia1"], DevicePosition(1)),
        (["/n/gpu4"], DevicePosition(4)),
        (["/n/nvidia1", "/n/dri/card9"], DevicePosition(1)),
        (["/n/nvidia1", "/n/nvidia-cap21", "/n/nvidia-cap22"], DevicePosition(1, 1, 0)),
        (["/n/nvidia1", "/n/nvidia-cap22"], DevicePosition(1, 1, 0)),
        (["/n/nvidia1", "/n/nvidia-cap30"], DevicePosition(1, 2)),
        (["/n/nvidia0", "/n/nvidia-cap21", "/n/nvidia-cap22"], None),  # of another GPU
        (["/n/nvidia1", "/n/nvidia-cap21", "/n/nvidia-cap31"], None),  # of two instances
        (["/n/nvidia1", "/n/nvidia-cap21", "/n/nvidia-cap99"], None),  # unknown
        (["/n/nvidia0", "/n/nvidia1"], None),
        (["/n/gpu"], None),
        ([], None),
    ],
)
def test_an_ambiguous_position_is_not_guessed(
    tmp_path: Path, files: list[str], place: DevicePosition | None
) -> None:
    (tmp_path / "mig-minors").write_text(MIG_MINORS)
    assert place_of(files, read_capabilities(tmp_path / "mig-minors")) == place


def test_capabilities_are_read_from_the_driver_s_file(tmp_path: Path) -> None:
    assert read_capabilities(tmp_path / "none") == {}
    (tmp_path / "mig-minors").write_text("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\nrubbish\n")
    found = read_capabilities(tmp_path / "mig-minors")
    assert found == {12: Capability(0, 1, None), 13: Capability(0, 1, 0)}


class Slurmd:
    def __init__(self, text: str | None) -> None:
        self.text, self.queries = text, 0

    def __call__(self, command: Sequence[str]) -> str:
        assert list(command) == ["slurmd", "-G", "-N", "n1"]
        self.queries += 1
        if self.text is None:
            raise SlurmError("slurmd: not found")
        return self.text


def order(
    directory: Path, slurmd: Slurmd, clock: FakeClock | None = None, worker: WorkerThread | None = None
) -> GresOrder:
    (directory / "mig-minors").write_text(MIG_MINORS)
    return GresOrder(
        "n1",
        FakeClock() if clock is None else clock,
        run=slurmd,
        environ={"SLURM_CONF": str(directory / "slurm.conf")},
        mig_minors=directory / "mig-minors",
        worker=ImmediateWorker() if worker is None else worker,
        file_worker=ImmediateWorker(),
        wait_s=0,
    )


def test_positions_follow_gres_conf_and_a_change_of_it(tmp_path: Path) -> None:
    (tmp_path / "gres.conf").write_text("a")
    slurmd = Slurmd(SHUFFLED)
    order_of_gpus, devices = order(tmp_path, slurmd), gpus(2, 0, 3, 1)
    assert order_of_gpus.uuids([0, 3], devices) == {0: "GPU-3", 3: "GPU-2"}
    assert order_of_gpus.uuids([1], devices) == {1: "GPU-1"}
    assert slurmd.queries == 1
    slurmd.text = SHUFFLED.replace("nvidia3", "nvidia9").replace("nvidia2", "nvidia3")
    (tmp_path / "gres.conf").write_text("changed")
    assert order_of_gpus.uuids([0, 3], devices) == {3: "GPU-3"}
    assert slurmd.queries == 2
    assert not order_of_gpus.assumed


def test_mig_instances_and_whole_gpus_have_their_own_positions(tmp_path: Path) -> None:
    order_of_gpus = order(tmp_path, Slurmd(MIG))
    devices = [SPLIT, instance(1, 0), instance(2, 0), WHOLE]
    assert order_of_gpus.uuids([0, 1, 2], devices) == {0: "MIG-1-0", 1: "MIG-2-0", 2: "GPU-0"}
    assert not order_of_gpus.assumed


def test_an_instance_without_its_compute_instance_is_resolved_only_if_unambiguous(tmp_path: Path) -> None:
    slurmd = Slurmd("Gres Name=gpu Count=1 File=/dev/x/nvidia1,/dev/x/nvidia-cap21 (null)")
    order_of_gpus = order(tmp_path, slurmd)
    assert order_of_gpus.uuids([0], [SPLIT, instance(1, 0), instance(2, 0)]) == {0: "MIG-1-0"}
    assert order_of_gpus.uuids([0], [SPLIT, instance(1, 0), instance(1, 1)]) == {}


def test_changed_instances_change_the_positions(tmp_path: Path) -> None:
    slurmd = Slurmd(MIG)
    order_of_gpus = order(tmp_path, slurmd)
    order_of_gpus.uuids([], [])
    assert order_of_gpus.uuids([1], [instance(1, 0), instance(2, 0), WHOLE]) == {1: "MIG-2-0"}
    assert slurmd.queries == 1
    slurmd.text = MIG.partition("\n")[2]  # without the first line
    assert order_of_gpus.uuids([0, 1], [instance(2, 0), WHOLE]) == {0: "MIG-2-0", 1: "GPU-0"}
    assert slurmd.queries == 2
    assert order_of_gpus.uuids([0], []) == {}  # the driver is down: the known order remains
    assert order_of_gpus.uuids([0], [instance(2, 0), WHOLE]) == {0: "MIG-2-0"}
    assert slurmd.queries == 2


def test_without_files_the_order_is_assumed_from_the_minor_numbers(tmp_path: Path) -> None:
    slurmd = Slurmd("slurmd: Gres Name=gpu Type=a100 Count=4 ID=7696487 (null)")
    order_of_gpus = order(tmp_path, slurmd)
    assert order_of_gpus.uuids([0, 3, 9], gpus(2, 0, 3, 1)) == {0: "GPU-0", 3: "GPU-3"}
    assert order_of_gpus.assumed


def test_without_files_mig_instances_have_no_order(tmp_path: Path) -> None:
    order_of_gpus = order(tmp_path, Slurmd("slurmd: Gres Name=gpu Type=a100 Count=3 ID=7696487 (null)"))
    assert order_of_gpus.uuids([0], [SPLIT, instance(1, 0), instance(2, 0), WHOLE]) == {}
    assert not order_of_gpus.assumed


def test_without_files_a_job_need_not_wait_for_slurmd_again(tmp_path: Path) -> None:
    slurmd = Slurmd("slurmd: Gres Name=gpu Type=a100 Count=4 ID=7696487 (null)")
    order_of_gpus = order(tmp_path, slurmd)
    order_of_gpus.ask()
    assert order_of_gpus.uuids([0, 3], gpus(2, 0, 3, 1)) == {0: "GPU-0", 3: "GPU-3"}
    assert slurmd.queries == 1


def test_while_slurmd_fails_nothing_is_guessed(tmp_path: Path) -> None:
    slurmd, clock = Slurmd(None), FakeClock()
    order_of_gpus, devices = order(tmp_path, slurmd, clock), gpus(2, 0, 3, 1)
    assert order_of_gpus.uuids([0], devices) == {}
    assert not order_of_gpus.assumed
    assert order_of_gpus.is_silent
    slurmd.text = SHUFFLED
    clock.advance(RETRY_S)
    assert order_of_gpus.uuids([0], devices) == {0: "GPU-3"}
    assert not order_of_gpus.is_silent


def test_a_failing_slurmd_is_queried_with_backoff_until_a_file_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slurmd, clock = Slurmd(None), FakeClock()
    order_of_gpus, devices = order(tmp_path, slurmd, clock), gpus(2, 0, 3, 1)
    queried_s = []
    for _ in range(600):
        before = slurmd.queries
        for position in range(4):  # as many jobs as there are GPUs
            order_of_gpus.uuids([position], devices)
        assert slurmd.queries <= before + 1
        queried_s += [clock.now_s - 1000.0] if slurmd.queries > before else []
        clock.advance(1)
    assert queried_s[:7] == [0, 1, 3, 7, 15, 31, 63]
    assert set(map(sub, queried_s[8:], queried_s[7:])) == {RETRY_MAX_S}
    assert len(caplog.records) == 1
    (tmp_path / "gres.conf").write_text("fixed")
    slurmd.text = SHUFFLED
    assert order_of_gpus.uuids([0], devices) == {0: "GPU-3"}


def test_a_slow_slurmd_does_not_block_the_caller(tmp_path: Path) -> None:
    slurmd, clock, worker = Slurmd(SHUFFLED), FakeClock(), DeferredWorker()
    order_of_gpus, devices = order(tmp_path, slurmd, clock, worker), gpus(2, 0, 3, 1)
    order_of_gpus.ask()
    assert order_of_gpus.uuids([0], devices) == {}
    assert (order_of_gpus.is_asking, order_of_gpus.is_silent, order_of_gpus.news(), len(worker.tasks)) == (
        True,
        False,
        False,
        1,
    )
    clock.advance(SILENT_S + 1)
    assert order_of_gpus.uuids([1, 9], devices) == {}
    assert (order_of_gpus.is_silent, len(worker.tasks)) == (True, 1)
    worker.run()
    assert (order_of_gpus.news(), order_of_gpus.news(), order_of_gpus.is_asking, order_of_gpus.is_silent) == (
        True,
        False,
        False,
        False,
    )
    assert order_of_gpus.uuids([0], devices) == {0: "GPU-3"}


def test_an_answer_from_before_a_change_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "gres.conf").write_text("a")
    slurmd, worker = Slurmd(SHUFFLED), DeferredWorker()
    order_of_gpus, devices = order(tmp_path, slurmd, worker=worker), gpus(2, 0, 3, 1)
    assert order_of_gpus.uuids([0], devices) == {}
    (tmp_path / "gres.conf").write_text("changed")
    assert order_of_gpus.uuids([0], devices) == {}
    worker.run()
    slurmd.text = SHUFFLED.replace("nvidia3", "nvidia9").replace("nvidia2", "nvidia3")
    assert order_of_gpus.uuids([0, 3], devices) == {}
    worker.run()
    assert order_of_gpus.uuids([0, 3], devices) == {3: "GPU-3"}
    assert slurmd.queries == 2


def test_a_missing_position_is_queried_once_and_then_at_intervals(tmp_path: Path) -> None:
    slurmd, clock = Slurmd("Gres Name=gpu Count=1 File=/dev/x/nvidia0"), FakeClock()
    order_of_gpus, devices = order(tmp_path, slurmd, clock), gpus(0, 1)
    assert order_of_gpus.uuids([0], devices) == {0: "GPU-0"}
    assert order_of_gpus.uuids([0, 1], devices) == {0: "GPU-0"}
    assert slurmd.queries == 2
    assert order_of_gpus.uuids([0, 1], devices) == {0: "GPU-0"}
    assert slurmd.queries == 2
    slurmd.text = "Gres Name=gpu Count=2 File=/dev/x/nvidia[0-1]"
    clock.advance(RETRY_S)
    assert order_of_gpus.uuids([0, 1], devices) == {0: "GPU-0", 1: "GPU-1"}
    assert order_of_gpus.uuids([0, 1], devices) == {0: "GPU-0", 1: "GPU-1"}
    assert slurmd.queries == 3


def test_a_list_that_lacks_an_allocated_position_is_discarded(tmp_path: Path) -> None:
    slurmd, worker = Slurmd("Gres Name=gpu Count=1 File=/dev/x/nvidia0"), DeferredWorker()
    order_of_gpus, devices = order(tmp_path, slurmd, worker=worker), gpus(0, 1)
    order_of_gpus.ask()
    worker.run()
    assert order_of_gpus.uuids([0], devices) == {0: "GPU-0"}
    slurmd.text = "Gres Name=gpu Count=2 File=/dev/x/nvidia1,/dev/x/nvidia0"  # from an unwatched file
    assert order_of_gpus.uuids([0, 1], devices) == {}
    worker.run()
    assert order_of_gpus.uuids([0, 1], devices) == {0: "GPU-1", 1: "GPU-0"}


class SlowSlurmd:
    """A slow slurmd that reads gres.conf at any moment between query and answer, and may fail."""

    def __init__(self, directory: Path) -> None:
        self.conf, self.changes = directory / "gres.conf", 0
        self.fails = self.reads_at_once = False
        self.read = ""
        self.worker, self.clock = DeferredWorker(), FakeClock()
        self.write((0, 1, 2))
        self.order = GresOrder(
            "n1",
            self.clock,
            run=self.run,
            environ={"SLURM_CONF": str(directory / "slurm.conf")},
            worker=self.worker,
            file_worker=ImmediateWorker(),
            wait_s=0,
        )

    def write(self, minors: Sequence[int]) -> None:
        self.minors = minors
        self.conf.write_text("".join(f"Gres Name=gpu Count=1 File=/dev/x/nvidia{m}\n" for m in minors))
        self.changes += 1
        os.utime(self.conf, ns=(0, self.changes))

    def run(self, command: Sequence[str]) -> str:
        if self.fails:
            raise SlurmError("exit status 1")
        return self.read if self.reads_at_once else self.conf.read_text()

    def uuids(self, positions: Sequence[int]) -> Mapping[int, str]:
        begun = len(self.worker.tasks)
        found = self.order.uuids(positions, gpus(0, 1, 2))
        if len(self.worker.tasks) > begun:
            self.read = self.conf.read_text()
        return found

    def truth(self, positions: Sequence[int]) -> Mapping[int, str]:
        return {p: f"GPU-{self.minors[p]}" for p in positions if p < len(self.minors)}


POSITIONS = st.lists(st.integers(0, 3), max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.permutations((0, 1, 2)).map(lambda minors: tuple(minors)[:2])),
    st.tuples(st.just("write"), st.permutations((0, 1, 2)).map(tuple)),
    st.tuples(st.just("answer"), st.booleans()),
    st.tuples(st.just("fails"), st.booleans()),
    st.tuples(st.just("ask"), POSITIONS),
    st.tuples(st.just("wait"), st.floats(0, 100)),
)


@example([("ask", [3]), ("answer", False), ("write", (0, 1))], [0, 2])
@given(st.lists(STEPS, max_size=30), POSITIONS)
def test_no_position_is_ever_wrong_and_each_is_resolved_eventually(
    steps: list[tuple[str, Any]], positions: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        slurmd = SlowSlurmd(Path(directory))
        for step, value in steps:
            if step == "write":
                slurmd.write(value)
            elif step == "answer":
                slurmd.reads_at_once = value
                slurmd.worker.run()
            elif step == "fails":
                slurmd.fails = value
            elif step == "wait":
                slurmd.clock.advance(value)
            else:
                assert slurmd.uuids(value).items() <= slurmd.truth(value).items()
            assert len(slurmd.worker.tasks) <= 1
        slurmd.fails = False
        # An outdated answer causes one query and missing positions another, each after a delay.
        for _ in range(5):
            slurmd.worker.run()
            slurmd.clock.advance(RETRY_MAX_S)
            slurmd.uuids(positions)
        slurmd.worker.run()
        assert slurmd.uuids(positions) == slurmd.truth(positions)
