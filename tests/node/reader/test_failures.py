"""Test with real processes that hung calls, slow drivers and crashed readers cost little."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.simgpu import faults
from lab.simgpu.load import Point
from lab.simgpu.world import World
from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu import reader_child as readerchild
from slurm_gpu.node.gpu import reader_process as readerprocess
from slurm_gpu.node.gpu.reader_process import ReaderProcess
from slurm_gpu.node.gpu.reading import (
    Failure,
    ReadError,
    ReaderStartingError,
    Reading,
    ReadRequest,
    Results,
)
from tests.node.fakes import FakeClock
from tests.node.reader.asking import DEADLINE_S, GPUS, ROOT, read, read_when_ready, uuids, wait_for


def test_a_reading_is_the_same_through_the_pipe(world: World, reader: ReaderProcess) -> None:
    now_ns = world.now_ns()
    points = [Point(now_ns, 40, 5000), Point(now_ns + 1000 * 10**9, 40, 5000)]
    world.register(0, points, pid=os.getpid())
    world.stop_clock(now_ns + 30 * 10**9)
    request = ReadRequest(
        uuid="GPU-a", detailed=True, processes=True, ring_after_us=0, process_ring_after_us=0
    )
    there = reader.read([request]).readings["GPU-a"]
    script = (
        "from slurm_gpu.node.gpu.nvml import NvmlReader; from slurm_gpu.node.gpu.reading import ReadRequest\n"
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


def test_a_hung_gpu_delays_the_others_by_about_the_deadline(world: World, reader: ReaderProcess) -> None:
    faults.hang(world, 1)
    begin = time.monotonic()
    results = read(reader)
    assert time.monotonic() - begin < DEADLINE_S + 0.1
    assert {uuid: failure.kind for uuid, failure in results.failures.items()} == {"GPU-b": ReadError.HUNG}
    results, waited_s = read_when_ready(reader)
    assert set(results.readings) == {"GPU-a", "GPU-c"}
    assert results.failures["GPU-b"].kind is ReadError.HUNG
    assert waited_s < 2  # Python starts slowly on a busy machine
    assert uuids(reader) == ["GPU-a", "GPU-c"]


def test_a_stopped_reader_is_not_reported_as_a_hung_gpu(reader: ReaderProcess) -> None:
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGSTOP)
    assert read(reader) == Results({}, {}, ())
    results, _ = read_when_ready(reader)
    assert set(results.readings) == set(GPUS)


def test_a_hung_gpu_is_retried_without_disturbing_the_others(
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
    uuids(reader)  # starts another process

    def another_tried() -> bool:
        assert set(read(reader).readings) == {"GPU-a", "GPU-c"}
        return world.calls()["nvmlInitWithFlags"] > asked

    wait_for(another_tried)
    assert uuids(reader) == ["GPU-a", "GPU-c"]
    faults.hang(world, 1, [])
    wait_for(lambda: "GPU-b" in uuids(reader))
    assert set(read(reader).readings) == set(GPUS)


def test_a_gpu_that_hangs_at_startup_is_left_out(world: World, start: Callable[..., ReaderProcess]) -> None:
    faults.hang(world, 0)
    # The deadline lets a process start on a busy machine: until it has reported the number of GPUs, a hang
    # counts as a driver that does not start.
    reader = start(start_deadline_s=1.5)
    with pytest.raises(ReaderStartingError):
        reader.devices()
    wait_for(lambda: bool(read(reader).readings))
    assert uuids(reader) == ["GPU-b", "GPU-c"]


def test_a_gpu_lost_or_hung_at_startup_is_reported_by_index(
    world: World, start: Callable[..., ReaderProcess]
) -> None:
    faults.lose(world, 1)
    faults.hang(world, 2)
    reader = start(start_deadline_s=1.5)
    wait_for(lambda: [*_found(reader)] == ["GPU-a"])
    assert {index: failure.kind for index, failure in reader.silent.items()} == {
        1: ReadError.LOST,
        2: ReadError.HUNG,
    }
    faults.restore(world, 1)
    wait_for(lambda: [*_found(reader)] == ["GPU-a", "GPU-b"])
    assert [*reader.silent] == [2]
    faults.hang(world, 2, [])


def _found(reader: ReaderProcess) -> list[str]:
    """Return the devices found so far."""
    try:
        return uuids(reader)
    except ReaderStartingError:
        return []


def test_a_slow_driver_start_does_not_block_the_caller(
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


def test_a_driver_that_never_starts_is_abandoned_and_retried(
    world: World, start: Callable[..., ReaderProcess], clock: FakeClock
) -> None:
    faults.hang(world, 0, ["nvmlInitWithFlags"])
    reader = start(start_wait_s=0.5, start_deadline_s=0.4)
    with pytest.raises(NvmlError, match=r"does not answer within 0\.4 s"):
        reader.devices()
    with pytest.raises(NvmlError, match="another starts in 1 s"):
        reader.devices()
    faults.hang(world, 0, [])
    reader._start_deadline_s = 10.0  # the next process may be slow on a busy machine
    clock.advance(1.1)
    wait_for(lambda: bool(read(reader).readings))


def test_a_killed_reader_costs_one_sample(world: World, reader: ReaderProcess) -> None:
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGKILL)
    assert read(reader) == Results({}, {}, ())
    results, _ = read_when_ready(reader)
    assert set(results.readings) == set(GPUS)
    assert results.failures == {}


def test_a_lost_gpu_is_distinguished_from_a_hung_one(world: World, reader: ReaderProcess) -> None:
    faults.lose(world, 1)
    assert read(reader).failures["GPU-b"] == Failure(ReadError.LOST, "GPU is lost")
    assert uuids(reader) == ["GPU-a", "GPU-c"]
    faults.restore(world, 1)
    assert uuids(reader) == GPUS
    assert set(read(reader).readings) == set(GPUS)


def test_a_missing_driver_is_reported_until_it_is_loaded(
    world: World, start: Callable[..., ReaderProcess]
) -> None:
    faults.driver(world, loaded=False)
    reader = start()
    for _ in range(2):
        with pytest.raises(NvmlError, match="Driver Not Loaded"):
            reader.devices()
    faults.driver(world, loaded=True)
    assert uuids(reader) == GPUS


def test_a_driver_unloaded_during_a_reader_restart_is_reported(world: World, reader: ReaderProcess) -> None:
    faults.driver(world, loaded=False)
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGKILL)
    failures: list[Failure] = []

    def is_reported() -> bool:
        failures.extend(read(reader).failures.values())
        return bool(failures)

    wait_for(is_reported)
    assert {failure.kind for failure in failures} == {ReadError.DRIVER}
    faults.driver(world, loaded=True)
    assert uuids(reader) == GPUS


def test_a_reloaded_driver_requires_a_new_reader(world: World, reader: ReaderProcess) -> None:
    before = reader.pid
    faults.swap(world, 0, "GPU-new")
    assert {failure.kind for failure in read(reader).failures.values()} == {ReadError.DRIVER}
    assert uuids(reader) == ["GPU-new", "GPU-b", "GPU-c"]
    assert reader.pid != before


def test_a_gpu_is_not_retried_until_the_killed_reader_has_exited(
    world: World, reader: ReaderProcess, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.hang(world, 1)
    with monkeypatch.context() as patch:
        patch.setattr(readerchild.ReaderChild, "is_gone", lambda *_: False)
        read(reader)
        assert uuids(reader) == ["GPU-a", "GPU-c"]
        faults.hang(world, 1, [])
        clock.advance(10_000)
        patch.setattr(readerprocess, "ReaderChild", lambda **_: pytest.fail("another process was started"))
        assert uuids(reader) == ["GPU-a", "GPU-c"]
    wait_for(lambda: "GPU-b" in uuids(reader))


@pytest.mark.parametrize(
    "output",
    [
        *("garbage", "[]", "[[]]", '["end"]', '[["gpu", "x"]]', '[["end", [], 1]]', '[["log"]]'),
        *('[["gpu", 0, [1]]]', '[["gpu", 0, [["GPU-0"]]]]'),
    ],
)
def test_nonsense_on_the_pipe_counts_as_a_crash(
    start: Callable[..., ReaderProcess], monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr(readerchild, "COMMAND", ("sh", "-c", f"echo '{output}'; exec sleep 60"))
    reader = start()
    for _ in range(2):
        with pytest.raises(NvmlError, match="invalid data"):
            reader.devices()
    with pytest.raises(NvmlError, match="another starts in 1 s"):
        reader.devices()


_ROW = [1.0, *[None] * (len(Reading._fields) - 1)]


@pytest.mark.parametrize(
    "answer",
    [
        *(["reading", "GPU-0", row] for row in ([], _ROW[:-1], [*_ROW, None], [1.0, [1], *_ROW[2:]])),
        *(["reading", "GPU-0", [1.0, 7, *_ROW[2:]]], ["reading", "GPU-0", [1.0, None, 7, *_ROW[3:]]]),
        *(["failure", "GPU-0", "asleep", "why"], ["followed", "GPU-0", _ROW[:-1]]),
        ["end", [["GPU-0", 79]]],
    ],
    ids=lambda answer: str(answer).replace("None, ", "")[:60],
)
def test_an_answer_of_the_wrong_shape_counts_as_a_crash(
    start: Callable[..., ReaderProcess],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    answer: list[Any],
) -> None:
    before = [["reading", "GPU-0", _ROW]] if answer[0] == "end" else []
    found = [["count", 1], ["gpu", 0, [["GPU-0", 0]]], ["end"]]
    script = f"echo '{json.dumps(found)}'; read line; echo '{json.dumps([*before, answer])}'; exec sleep 60"
    monkeypatch.setattr(readerchild, "COMMAND", ("sh", "-c", script))
    reader = start(deadline_s=10)
    assert uuids(reader) == ["GPU-0"]
    assert set(read(reader, "GPU-0").readings) == {uuid for _, uuid, _ in before}
    assert "invalid data" in caplog.text
    assert (reader.exits.total, reader.pid) == (1, None)


def test_a_device_that_crashes_the_reader_repeatedly_is_left_out(
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
        print(json.dumps([["reading", uuid, ROW]]), flush=True)
    print('[["end", []]]', flush=True)""".replace("ROW", repr(_ROW))
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
    assert results.failures["GPU-1"].kind is ReadError.HUNG


def test_the_reader_never_outlives_the_daemon(world: World) -> None:
    script = (
        "from slurm_gpu.clock import SystemClock\n"
        "from slurm_gpu.node.gpu.reader_process import ReaderProcess\n"
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


def test_slurm_gpud_itself_never_loads_nvml() -> None:
    script = "import slurm_gpu.node.main, sys; sys.exit('pynvml' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_gpu_name_that_is_not_utf_8_is_omitted(world: World, start: Callable[..., ReaderProcess]) -> None:
    world.content.devices[1].name = b"NVIDIA \xb5GPU"
    reader = start()
    assert [(facts.uuid, facts.name is None) for facts in reader.devices()] == [
        ("GPU-a", False),
        ("GPU-b", True),
        ("GPU-c", False),
    ]
    before = reader.pid
    assert set(read(reader).readings) == set(GPUS)
    assert (reader.pid, reader.exits.total) == (before, 0)
