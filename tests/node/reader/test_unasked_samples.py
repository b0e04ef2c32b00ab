"""A reader that looks at memory of its own accord: until it is asked, or it or a GPU fails."""

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
    assert results.failures["GPU-b"].kind is ReadError.HUNG


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
    assert {uuid: failure.kind for uuid, failure in results.failures.items()} == {"GPU-b": ReadError.HUNG}
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
    asked = world.calls()["nvmlDeviceGetMemoryInfo_v2"]  # before: it asks once more, and never again
    faults.lose(world, 1)
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > asked)
    assert read(reader).failures["GPU-b"] == Failure(ReadError.LOST, "GPU is lost")
    assert reader.pid == before


def test_a_gpu_that_is_lost_while_it_is_followed_ends_that(world: World, reader: ReaderProcess) -> None:
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


def test_a_slurm_gpud_that_sleeps_long_finds_all_that_was_followed(
    world: World, reader: ReaderProcess
) -> None:
    reader.follow(["GPU-a"], 0.0005, math.inf)
    # The pipe holds no more than some 64 KiB of it.
    wait_for(lambda: world.calls()["nvmlDeviceGetMemoryInfo_v2"] > 300)
    assert len(reader.followed()) > 250
    assert set(read(reader).readings) == set(GPUS)
