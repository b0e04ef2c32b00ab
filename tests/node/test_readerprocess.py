"""A call that hangs, a driver that is slow, a reader that crashes: what each costs, with real processes."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.simgpu import faults
from lab.simgpu.load import Point
from lab.simgpu.world import GpuSpec, World, create
from slurm_gpu.clock import SystemClock
from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu import readerchild, readerprocess
from slurm_gpu.node.gpu.readerprocess import ReaderProcess
from slurm_gpu.node.gpu.reading import (
    Failure,
    Reader,
    ReaderStartingError,
    Reading,
    Request,
    Results,
    Trouble,
)
from tests.node.fakes import FakeClock

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 0.2
GPUS = ["GPU-a", "GPU-b", "GPU-c"]


@pytest.fixture
def world(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    path = tmp_path / "gpus.world"
    create(path, [GpuSpec(uuid, minor=n) for n, uuid in enumerate(GPUS)])
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    return World(path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def start(clock: FakeClock) -> Iterator[Callable[..., ReaderProcess]]:
    readers = []

    def start(**options: float) -> ReaderProcess:
        readers.append(ReaderProcess(clock, **{"deadline_s": DEADLINE_S, "start_wait_s": 10, **options}))
        return readers[-1]

    yield start
    for reader in readers:
        reader.close()
        # What was killed takes its time on a busy machine, and closing waits no longer than for an answer.
        assert all(child.is_gone(10) for child in reader._dying)


@pytest.fixture
def reader(world: World, start: Callable[..., ReaderProcess]) -> ReaderProcess:
    """Has found its devices."""
    reader = start()
    reader.devices()
    return reader


def uuids(reader: Reader) -> list[str]:
    return [facts.uuid for facts in reader.devices()]


def read(reader: Reader, *of: str) -> Results:
    return reader.read([Request(uuid=uuid, detailed=True) for uuid in of or GPUS])


def read_when_ready(reader: Reader) -> tuple[Results, float]:
    """The first results that have readings, and how long it took."""
    begin = time.monotonic()
    while not (results := read(reader)).readings:
        assert time.monotonic() < begin + 10
        time.sleep(0.01)
    return results, time.monotonic() - begin


def test_a_reading_is_the_same_through_the_pipe(world: World, reader: ReaderProcess) -> None:
    now_ns = world.now_ns()
    points = [Point(now_ns, 40, 5000), Point(now_ns + 1000 * 10**9, 40, 5000)]
    world.register(0, points, pid=os.getpid())
    world.stop_clock(now_ns + 30 * 10**9)
    request = Request(uuid="GPU-a", detailed=True, processes=True, ring_after_us=0, process_ring_after_us=0)
    there = reader.read([request]).readings["GPU-a"]
    script = (
        "from slurm_gpu.node.gpu.nvml import NvmlReader; from slurm_gpu.node.gpu.reading import Request\n"
        f"reader = NvmlReader(lambda *_: None); reader.devices()\n"
        f"print(repr(reader.read([{request!r}]).readings['GPU-a']))"
    )
    here = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert there.ring
    assert there.process_ring
    assert there.processes
    unlike = {"at_s": 0.0, "activity": None}
    namespace: dict[str, object] = {}
    exec("from slurm_gpu.node.gpu.reading import *", namespace)
    assert there._replace(**unlike) == eval(here.stdout, namespace)._replace(**unlike)


def test_a_gpu_that_hangs_costs_the_others_about_the_deadline(world: World, reader: ReaderProcess) -> None:
    faults.hang(world, 1)
    begin = time.monotonic()
    results = read(reader)
    assert time.monotonic() - begin < DEADLINE_S + 0.1
    assert {uuid: failure.trouble for uuid, failure in results.failures.items()} == {"GPU-b": Trouble.HUNG}
    results, waited_s = read_when_ready(reader)
    assert set(results.readings) == {"GPU-a", "GPU-c"}
    assert results.failures["GPU-b"].trouble is Trouble.HUNG
    assert waited_s < 2  # the start of a Python, on a busy machine
    assert uuids(reader) == ["GPU-a", "GPU-c"]


def test_a_reader_that_gets_no_processor_is_no_gpu_that_hangs(reader: ReaderProcess) -> None:
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGSTOP)
    assert read(reader) == Results({}, {}, ())
    results, _ = read_when_ready(reader)
    assert set(results.readings) == set(GPUS)


def test_a_gpu_that_hung_is_tried_again_at_growing_intervals_and_disturbs_nobody(
    world: World, reader: ReaderProcess, clock: FakeClock
) -> None:
    faults.hang(world, 1)
    read(reader)
    assert uuids(reader) == ["GPU-a", "GPU-c"]
    asked = world.calls()["nvmlInitWithFlags"]
    clock.advance(59)
    uuids(reader)
    assert world.calls()["nvmlInitWithFlags"] == asked
    clock.advance(2)
    uuids(reader)  # lets another process try

    def another_tried() -> bool:
        assert set(read(reader).readings) == {"GPU-a", "GPU-c"}
        return world.calls()["nvmlInitWithFlags"] > asked

    wait_for(another_tried)
    assert uuids(reader) == ["GPU-a", "GPU-c"]
    faults.hang(world, 1, [])
    wait_for(lambda: "GPU-b" in uuids(reader))
    assert set(read(reader).readings) == set(GPUS)


def wait_for(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_gpu_that_hangs_at_the_start_is_left_out(world: World, start: Callable[..., ReaderProcess]) -> None:
    faults.hang(world, 0)
    # Time enough for a process to start on a busy machine: one that has not yet said how many GPUs there
    # are is taken for a driver that does not start.
    reader = start(start_deadline_s=1.5)
    with pytest.raises(ReaderStartingError):
        reader.devices()
    wait_for(lambda: bool(read(reader).readings))
    assert uuids(reader) == ["GPU-b", "GPU-c"]


def test_a_driver_that_takes_long_to_start_stops_nobody(
    world: World, start: Callable[..., ReaderProcess]
) -> None:
    faults.hang(world, 0, ["nvmlInitWithFlags"])
    reader = start(start_wait_s=0.02)
    begin = time.monotonic()
    with pytest.raises(ReaderStartingError, match="still starting"):
        reader.devices()
    assert read(reader) == Results({}, {}, ())
    assert time.monotonic() - begin < 0.5
    faults.hang(world, 0, [])
    wait_for(lambda: bool(read(reader).readings))
    assert uuids(reader) == GPUS


def test_a_driver_that_never_starts_is_given_up_and_tried_again(
    world: World, start: Callable[..., ReaderProcess], clock: FakeClock
) -> None:
    faults.hang(world, 0, ["nvmlInitWithFlags"])
    reader = start(start_wait_s=0.5, start_deadline_s=0.4)
    with pytest.raises(NvmlError, match=r"does not answer within 0\.4 s"):
        reader.devices()
    with pytest.raises(NvmlError, match="another starts in 1 s"):
        reader.devices()
    faults.hang(world, 0, [])
    reader._start_deadline_s = 10.0  # the next may take its time where the machine is busy
    clock.advance(1.1)
    wait_for(lambda: bool(read(reader).readings))


def test_a_reader_that_is_killed_costs_one_look(world: World, reader: ReaderProcess) -> None:
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGKILL)
    assert read(reader) == Results({}, {}, ())
    results, _ = read_when_ready(reader)
    assert set(results.readings) == set(GPUS)
    assert results.failures == {}


def test_a_lost_gpu_is_told_from_one_that_hangs(world: World, reader: ReaderProcess) -> None:
    faults.lose(world, 1)
    assert read(reader).failures["GPU-b"] == Failure(Trouble.LOST, "GPU is lost")
    assert uuids(reader) == ["GPU-a", "GPU-c"]
    faults.restore(world, 1)
    assert uuids(reader) == GPUS
    assert set(read(reader).readings) == set(GPUS)


def test_without_a_driver_it_says_so_until_there_is_one(
    world: World, start: Callable[..., ReaderProcess]
) -> None:
    faults.driver(world, loaded=False)
    reader = start()
    for _ in range(2):
        with pytest.raises(NvmlError, match="Driver Not Loaded"):
            reader.devices()
    faults.driver(world, loaded=True)
    assert uuids(reader) == GPUS


def test_a_driver_that_went_while_the_reader_restarted_is_told(world: World, reader: ReaderProcess) -> None:
    faults.driver(world, loaded=False)
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGKILL)
    failures: list[Failure] = []

    def told() -> bool:
        failures.extend(read(reader).failures.values())
        return bool(failures)

    wait_for(told)
    assert {failure.trouble for failure in failures} == {Trouble.DRIVER}
    faults.driver(world, loaded=True)
    assert uuids(reader) == GPUS


def test_a_driver_that_is_reloaded_costs_a_new_reader(world: World, reader: ReaderProcess) -> None:
    before = reader.pid
    faults.swap(world, 0, "GPU-new")
    assert {failure.trouble for failure in read(reader).failures.values()} == {Trouble.DRIVER}
    assert uuids(reader) == ["GPU-new", "GPU-b", "GPU-c"]
    assert reader.pid != before


def test_a_gpu_is_not_tried_again_while_the_driver_holds_the_killed_reader(
    world: World, reader: ReaderProcess, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.hang(world, 1)
    with monkeypatch.context() as held:
        held.setattr(readerchild.Child, "is_gone", lambda *_: False)
        read(reader)
        assert uuids(reader) == ["GPU-a", "GPU-c"]
        faults.hang(world, 1, [])
        clock.advance(10_000)
        held.setattr(readerprocess, "Child", lambda **_: pytest.fail("another process was started"))
        assert uuids(reader) == ["GPU-a", "GPU-c"]
    wait_for(lambda: "GPU-b" in uuids(reader))


@pytest.mark.parametrize(
    "says", ["garbage", "[]", "[[]]", '["end"]', '[["gpu", "x"]]', '[["end", [], 1]]', '[["log"]]']
)
def test_nonsense_on_the_pipe_is_a_crash(
    start: Callable[..., ReaderProcess], monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    monkeypatch.setattr(readerchild, "COMMAND", ("sh", "-c", f"echo '{says}'; exec sleep 60"))
    reader = start()
    for _ in range(2):
        with pytest.raises(NvmlError, match="nonsense"):
            reader.devices()
    with pytest.raises(NvmlError, match="another starts in 1 s"):
        reader.devices()


def test_a_device_at_which_the_reader_crashes_again_and_again_is_left_out(
    start: Callable[..., ReaderProcess], monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    fake = """import json, mmap, sys
leave_out = json.loads(sys.argv[2])
progress = mmap.mmap(int(sys.argv[4]), 2)
found = [["gpu", i, [[f"GPU-{i}", i]]] for i in (0, 1) if i not in leave_out]
print(json.dumps([["count", 2], *found, ["end"]]), flush=True)
for line in sys.stdin:
    for number, (uuid, *_) in enumerate(json.loads(line)[1]):
        progress[1] = number
        progress[0] = 0
        if uuid == "GPU-1":
            sys.exit(1)
        print(json.dumps([["reading", uuid, [1.0] + 18 * [None]]]), flush=True)
    print('[["end", []]]', flush=True)"""
    monkeypatch.setattr(readerchild, "COMMAND", (sys.executable, "-c", fake))
    reader = start()
    assert uuids(reader) == ["GPU-0", "GPU-1"]
    for _ in range(3):
        clock.advance(100)
        wait_for(lambda: bool(read(reader, "GPU-0", "GPU-1").readings))
    clock.advance(100)
    wait_for(lambda: bool(read(reader, "GPU-0", "GPU-1").readings))
    results = read(reader, "GPU-0", "GPU-1")
    assert set(results.readings) == {"GPU-0"}
    assert results.failures["GPU-1"].trouble is Trouble.HUNG


def test_the_reader_never_outlives_the_daemon(world: World) -> None:
    script = (
        "from slurm_gpu.clock import SystemClock\n"
        "from slurm_gpu.node.gpu.readerprocess import ReaderProcess\n"
        "import time; reader = ReaderProcess(SystemClock(), start_wait_s=10); reader.devices()\n"
        "print(reader.pid, flush=True); time.sleep(60)"
    )
    daemon = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert daemon.stdout is not None
    child = Path("/proc") / daemon.stdout.readline().decode().strip()
    assert child.exists()
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    wait_for(lambda: not child.exists() or "Z" in (child / "stat").read_text().split()[2])


def test_it_follows_devices_until_it_is_asked_for_anything_else(world: World, reader: ReaderProcess) -> None:
    points = [Point(world.now_ns(), 40, 5000), Point(world.now_ns() + 1000 * 10**9, 40, 5000)]
    world.register(0, points, pid=os.getpid())
    reader.follow(["GPU-c", "GPU-a"], 0.05, math.inf)
    assert reader.follows
    followed: list[tuple[str, Reading]] = []

    def enough() -> bool:
        followed.extend(reader.followed())
        return len(followed) >= 6

    wait_for(enough)
    assert [uuid for uuid, _ in followed[:4]] == ["GPU-c", "GPU-a"] * 2
    for uuid, reading in followed:
        assert reading.memory is not None
        assert (reading.memory.used > 4000 * 2**20) == (uuid == "GPU-a")
    assert set(read(reader).readings) == set(GPUS)
    assert not reader.follows
    reader.followed()  # what came before it was asked
    asked, at_s = world.calls()["nvmlDeviceGetMemoryInfo_v2"], SystemClock().monotonic()
    wait_for(lambda: SystemClock().monotonic() > at_s + 0.2)
    assert world.calls()["nvmlDeviceGetMemoryInfo_v2"] == asked


def test_it_follows_no_longer_than_it_was_told_to(world: World, reader: ReaderProcess) -> None:
    until_s = SystemClock().monotonic() + 0.2
    reader.follow(["GPU-a"], 0.05, until_s)
    wait_for(lambda: SystemClock().monotonic() > until_s + 0.2)
    followed = reader.followed()
    assert 1 <= len(followed) <= 4
    assert all(reading.at_s < until_s + 0.05 for _, reading in followed)


def test_a_gpu_that_hangs_while_it_is_followed_is_left_out(world: World, reader: ReaderProcess) -> None:
    reader.follow(["GPU-a", "GPU-b"], 0.05, math.inf)
    wait_for(lambda: bool(reader.followed()))
    faults.hang(world, 1)

    def given_up() -> bool:
        reader.followed()
        return not reader.follows

    wait_for(given_up)
    results, _ = read_when_ready(reader)
    assert set(results.readings) == {"GPU-a", "GPU-c"}
    assert results.failures["GPU-b"].trouble is Trouble.HUNG


def test_a_gpu_that_hangs_while_it_is_followed_is_known_to_whoever_asks_next(
    world: World, reader: ReaderProcess
) -> None:
    reader.follow(["GPU-b"], 0.05, math.inf)
    wait_for(lambda: bool(reader.followed()))
    faults.hang(world, 1)
    asked = world.calls()["nvmlDeviceGetMemoryInfo_v2"]
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > asked)  # it is asked, and hangs
    begin = time.monotonic()
    results = read(reader, "GPU-c", "GPU-b", "GPU-a")
    assert time.monotonic() - begin < DEADLINE_S + 0.1
    assert {uuid: failure.trouble for uuid, failure in results.failures.items()} == {"GPU-b": Trouble.HUNG}
    results, _ = read_when_ready(reader)
    assert set(results.readings) == {"GPU-a", "GPU-c"}


def test_a_reader_that_has_nothing_to_follow_any_more_is_left_in_peace(
    world: World, reader: ReaderProcess
) -> None:
    before, until_s = reader.pid, SystemClock().monotonic() + 0.1
    reader.follow(["GPU-a"], 0.05, until_s)
    wait_for(lambda: bool(reader.followed()))
    wait_for(lambda: SystemClock().monotonic() > until_s + 2 * DEADLINE_S)
    reader.followed()
    assert not reader.follows
    assert set(read(reader).readings) == set(GPUS)
    assert reader.pid == before


def test_a_gpu_that_is_lost_in_the_moment_in_which_it_is_asked_for_costs_no_reader(
    world: World, reader: ReaderProcess
) -> None:
    before = reader.pid
    reader.follow(["GPU-b"], 0.01, math.inf)
    wait_for(lambda: bool(reader.followed()))
    faults.lose(world, 1)
    asked = world.calls()["nvmlDeviceGetMemoryInfo_v2"]
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > asked)
    assert read(reader).failures["GPU-b"] == Failure(Trouble.LOST, "GPU is lost")
    assert reader.pid == before


def test_a_gpu_that_is_lost_while_it_is_followed_ends_that(world: World, reader: ReaderProcess) -> None:
    reader.follow(["GPU-a", "GPU-b"], 0.05, math.inf)
    wait_for(lambda: bool(reader.followed()))
    faults.lose(world, 1)

    def ended() -> bool:
        reader.followed()
        return not reader.follows

    wait_for(ended)
    assert read(reader).failures["GPU-b"] == Failure(Trouble.LOST, "GPU is lost")


def test_a_reader_that_is_killed_while_it_follows_is_replaced(world: World, reader: ReaderProcess) -> None:
    reader.follow(["GPU-a"], 0.05, math.inf)
    wait_for(lambda: bool(reader.followed()))
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGKILL)

    def noticed() -> bool:
        reader.followed()
        return not reader.follows

    wait_for(noticed)
    results, _ = read_when_ready(reader)
    assert set(results.readings) == set(GPUS)


def test_a_slurm_gpud_that_sleeps_long_finds_all_that_was_followed(
    world: World, reader: ReaderProcess
) -> None:
    reader.follow(["GPU-a"], 0.0005, math.inf)
    # The pipe holds no more than some 64 KiB of it.
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > 300)
    assert len(reader.followed()) > 250
    assert set(read(reader).readings) == set(GPUS)


def test_slurm_gpud_itself_never_loads_nvml() -> None:
    script = "import slurm_gpu.node.main, sys; sys.exit('pynvml' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
