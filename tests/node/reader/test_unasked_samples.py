"""A reader samples memory unasked until it receives a request, or until it or a GPU fails."""

import math
import os
import signal
import time

from lab.simgpu import faults
from lab.simgpu.load import Point
from lab.simgpu.world import World
from slurm_gpu.clock import SystemClock
from slurm_gpu.node.gpu.reader_process import ReaderProcess
from slurm_gpu.node.gpu.reading import Failure, ReadError, Reading
from tests.node.reader.asking import DEADLINE_S, GPUS, read, read_when_ready, wait_for


def test_the_reader_follows_devices_until_another_request(world: World, reader: ReaderProcess) -> None:
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
    reader.followed()  # discard samples from before the request
    asked, at_s = world.calls()["nvmlDeviceGetMemoryInfo_v2"], SystemClock().monotonic()
    wait_for(lambda: SystemClock().monotonic() > at_s + 0.2)
    assert world.calls()["nvmlDeviceGetMemoryInfo_v2"] == asked


def test_the_reader_stops_following_at_the_given_time(world: World, reader: ReaderProcess) -> None:
    until_s = SystemClock().monotonic() + 0.2
    reader.follow(["GPU-a"], 0.05, until_s)
    wait_for(lambda: SystemClock().monotonic() > until_s + 0.2)
    asked = world.calls()["nvmlDeviceGetMemoryInfo_v2"]
    wait_for(lambda: SystemClock().monotonic() > until_s + 0.4)
    assert world.calls()["nvmlDeviceGetMemoryInfo_v2"] == asked
    assert len(reader.followed()) <= 4


def test_a_gpu_that_hangs_while_followed_is_left_out(world: World, reader: ReaderProcess) -> None:
    reader.follow(["GPU-a", "GPU-b"], 0.05, math.inf)
    wait_for(lambda: bool(reader.followed()))
    faults.hang(world, 1)

    def has_stopped() -> bool:
        reader.followed()
        return not reader.follows

    wait_for(has_stopped)
    results, _ = read_when_ready(reader)
    assert set(results.readings) == {"GPU-a", "GPU-c"}
    assert results.failures["GPU-b"].kind is ReadError.HUNG


def test_a_hang_while_following_is_reported_to_the_next_read(world: World, reader: ReaderProcess) -> None:
    reader.follow(["GPU-b"], 0.05, math.inf)
    wait_for(lambda: bool(reader.followed()))
    faults.hang(world, 1)
    asked = world.calls()["nvmlDeviceGetMemoryInfo_v2"]
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > asked)  # the GPU is queried and hangs
    begin = time.monotonic()
    results = read(reader, "GPU-c", "GPU-b", "GPU-a")
    assert time.monotonic() - begin < DEADLINE_S + 0.1
    assert {uuid: failure.kind for uuid, failure in results.failures.items()} == {"GPU-b": ReadError.HUNG}
    results, _ = read_when_ready(reader)
    assert set(results.readings) == {"GPU-a", "GPU-c"}


def test_a_reader_that_has_stopped_following_is_not_restarted(world: World, reader: ReaderProcess) -> None:
    before, until_s = reader.pid, SystemClock().monotonic() + 0.1
    reader.follow(["GPU-a"], 0.05, until_s)
    wait_for(lambda: bool(reader.followed()))
    wait_for(lambda: SystemClock().monotonic() > until_s + 2 * DEADLINE_S)
    reader.followed()
    assert not reader.follows
    assert set(read(reader).readings) == set(GPUS)
    assert reader.pid == before


def test_a_gpu_lost_just_before_a_request_does_not_restart_the_reader(
    world: World, reader: ReaderProcess
) -> None:
    before = reader.pid
    reader.follow(["GPU-b"], 0.01, math.inf)
    wait_for(lambda: bool(reader.followed()))
    asked = world.calls()[
        "nvmlDeviceGetMemoryInfo_v2"
    ]  # before the loss: the reader queries once more and stops
    faults.lose(world, 1)
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > asked)
    assert read(reader).failures["GPU-b"] == Failure(ReadError.LOST, "GPU is lost")
    assert reader.pid == before


def test_a_gpu_lost_while_followed_ends_the_following(world: World, reader: ReaderProcess) -> None:
    reader.follow(["GPU-a", "GPU-b"], 0.05, math.inf)
    wait_for(lambda: bool(reader.followed()))
    faults.lose(world, 1)

    def ended() -> bool:
        reader.followed()
        return not reader.follows

    wait_for(ended)
    assert read(reader).failures["GPU-b"] == Failure(ReadError.LOST, "GPU is lost")


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


def test_a_delayed_slurm_gpud_receives_all_followed_samples(world: World, reader: ReaderProcess) -> None:
    reader.follow(["GPU-a"], 0.0005, math.inf)
    # The pipe holds only about 64 KiB.
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > 300)
    assert len(reader.followed()) > 250
    assert set(read(reader).readings) == set(GPUS)
