"""An exception or error of a binding call costs one field of that GPU; the reader survives."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.nvml import SOURCES
from lab.simgpu.creation import create
from lab.simgpu.specs import GpuSpec, hopper
from lab.simgpu.world import World
from slurm_gpu.errors import NvmlError
from slurm_gpu.node.gpu.nvml import NvmlReader
from slurm_gpu.node.gpu.nvml_calls import address
from slurm_gpu.node.gpu.reading import Reading, ReadRequest
from tests.node.nonsense import replace_library
from tests.node.simulated import load_library, shut_down_nvml

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")

FUNCTIONS = [
    line[2:-1] for line in (SOURCES / "functions.def").read_text().splitlines() if line.startswith("X(")
]
# All codes of nvml.h, and some that it may define in the future.
CODES = [*range(1, 31), 999, 1000, -1]
RAISED: list[type[Exception]] = [ValueError, OSError, MemoryError, ctypes.ArgumentError, KeyError]
NO_TEXT = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
START_NS = 1_800_000_000 * 10**9
# Without these functions no GPU is found at all.
VITAL = {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"}
OF_A_GPU = {"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet"}
Fault = int | Exception | None


class Faulty:
    """The library with one function that fails for the first GPU, or always if it has no GPU argument."""

    def __init__(self, library: Any, name: str) -> None:
        self._library, self._name = library, name
        self.fault: Fault = None
        self.is_missing = False
        self.handle: int | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(self._library, name)
        if name != self._name:
            return real
        if self.is_missing:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            of_gpu = name.startswith("nvmlDevice") or name in OF_A_GPU
            of_gpu = of_gpu and len(arguments) > 0 and isinstance(arguments[0], ctypes._Pointer)
            if self.fault is None or (of_gpu and address(arguments[0]) != self.handle):
                return real(*arguments)
            if isinstance(self.fault, Exception):
                raise self.fault
            return self.fault

        return call


@pytest.fixture
def world(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    load_library(nvml_library)
    path = tmp_path / "gpus.world"
    create(path, [hopper("GPU-a", minor=0), GpuSpec("GPU-b", minor=1)], boot=START_NS / 1e9)
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    world = World(path)
    world.stop_clock(START_NS + 100 * 10**9)
    pynvml.nvmlInit()
    yield world
    shut_down_nvml()


def read(reader: NvmlReader, uuid: str) -> Reading | None:
    request = ReadRequest(uuid, detailed=True, processes=True, ring_after_us=0, process_ring_after_us=0)
    return reader.read([request]).readings.get(uuid)


def is_whole(reading: Reading | None) -> bool:
    return reading is not None and None not in (
        *(reading.memory, reading.power_w, reading.temp_c, reading.sm_clock_mhz, reading.throttle),
        *(reading.energy_mj, reading.ring, reading.processes, reading.util_pct, reading.ecc_corrected),
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reader_survives_and_reads_the_other_gpu(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    library = Faulty(pynvml.nvmlLib, name)
    messages: list[str] = []
    faults: list[Fault] = [*CODES, *(kind("oops") for kind in RAISED), NO_TEXT, None]
    with replace_library(monkeypatch, library):
        library.handle = address(pynvml.nvmlDeviceGetHandleByIndex(0))
        reader = NvmlReader(lambda _, text: messages.append(text))
        for fault in faults:
            reader.devices()
            assert is_whole(read(reader, "GPU-a")), (name, fault)
            library.fault = fault
            try:
                found = {facts.uuid for facts in reader.devices()}
            except NvmlError:
                assert name in VITAL, fault
            else:
                no_handle = name == "nvmlDeviceGetHandleByIndex_v2" and fault is not None
                assert no_handle or "GPU-b" in found, fault
                assert no_handle or is_whole(read(reader, "GPU-b")), fault
                read(reader, "GPU-a")
                read(reader, "GPU-gone")
            library.fault = None
        reader.close()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_missing_function_does_not_stop_the_reader(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    library = Faulty(pynvml.nvmlLib, name)
    library.is_missing = True
    with replace_library(monkeypatch, library):
        reader = NvmlReader(lambda *_: None)
        try:
            reader.devices()
        except NvmlError:
            assert name in VITAL
        for uuid in ("GPU-a", "GPU-b"):
            read(reader, uuid)
        reader.close()


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlSystemGetDriverVersion"]
)
def test_a_text_that_is_not_utf_8_is_a_gap(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = getattr(pynvml.nvmlLib, name)

    class Spoilt(Faulty):
        def __getattr__(self, asked: str) -> Callable[..., Any]:
            if asked != name:
                return super().__getattr__(asked)

            def call(*arguments: Any) -> int:
                code = int(real(*arguments))
                answer = next(a for a in arguments if hasattr(a, "_obj") or isinstance(a, ctypes.Array))
                answer = getattr(answer, "_obj", answer)
                ctypes.memset(ctypes.addressof(answer), 0xB5, ctypes.sizeof(answer) - 1)
                return code

            return call

    with replace_library(monkeypatch, Spoilt(pynvml.nvmlLib, "")):
        reader = NvmlReader(lambda *_: None)
        found = reader.devices()
        assert [facts.uuid for facts in found] == ["GPU-a", "GPU-b"]
        field = {"nvmlDeviceGetName": "name", "nvmlDeviceGetPciInfo_v3": "pci_bus_id"}.get(name, "driver")
        assert [getattr(facts, field) for facts in found] == [None, None]
        assert is_whole(read(reader, "GPU-a"))
        reader.close()
