"""The world is a file that Python writes and the library reads with the same layout."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import NvmlError

from lab import nvml as nvml_sources
from lab.simgpu import layout
from lab.simgpu.creation import create, function_names
from lab.simgpu.errors import RequestError
from lab.simgpu.load import Point
from lab.simgpu.specs import GpuSpec
from lab.simgpu.world import World


class TestAttaching:
    def test_without_a_world_the_driver_is_not_loaded(self, nvml, tmp_path):
        with pytest.raises(NvmlError, match="DriverNotLoaded"):
            nvml.request(world=str(tmp_path / "missing"))

    def test_a_foreign_file_is_refused(self, nvml, node, tmp_path):
        nvml.request(call="nvmlShutdown", args=[])
        foreign = tmp_path / "foreign"
        foreign.write_bytes(bytes(node.path.stat().st_size))
        with pytest.raises(NvmlError, match="LibRmVersionMismatch"):
            nvml.request(world=str(foreign))
        nvml.request(world=str(node.path))

    def test_nothing_works_before_init(self, nvml, node):
        nvml.request(call="nvmlShutdown", args=[])
        with pytest.raises(NvmlError, match="Uninitialized"):
            node.call("nvmlDeviceGetCount")
        nvml.request(world=str(node.path))

    def test_everyone_may_write_the_world(self, node):
        assert node.path.stat().st_mode & 0o777 == 0o666

    def test_a_writer_killed_with_the_lock_leaves_no_lock(self, node):
        source = (
            "import os, signal, sys; from pathlib import Path; from lab.simgpu.world import World\n"
            "with World(Path(sys.argv[1])).locked(): os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run(
            ["python3", "-c", source, str(node.path)], cwd=nvml_sources.SOURCES.parent.parent, check=False
        )
        node.work(0, (0, 50, 0), (10, 50, 0))
        node.now_s += 1
        assert node.call("nvmlDeviceGetUtilizationRates", 0)["gpu"] == 50


CONSTANTS = ["MAX_DEVICES", "MAX_INSTANCES", "MAX_TARGETS", "GPU_SLICES", "MAX_XIDS", "PROCESS_MPS"]


def test_a_schedule_is_made_once_nothing_delays_it_any_more(node):
    """Test that a schedule is made only after the delay, so readers get no samples from before it."""
    order = []

    def schedule():
        order.append("made")
        assert node.call("nvmlDeviceGetComputeRunningProcesses", 0) == []
        now_ns = node.world.now_ns()
        return [Point(now_ns, 50, 1000), Point(now_ns + 10**10, 50, 1000)]

    with ThreadPoolExecutor() as pool:
        with World(node.path).locked():
            begun = pool.submit(node.world.begin, [0, 1], schedule, pid=4242, started=0)
            order.append("the lock was free")
        slots, points = begun.result()
    assert order == ["the lock was free", "made"]
    assert len(set(slots)) == 2
    assert points[0].time_ns == node.world.now_ns()
    for gpu in (0, 1):
        assert [process["pid"] for process in node.call("nvmlDeviceGetComputeRunningProcesses", gpu)] == [
            4242
        ]


def test_python_and_c_agree_on_every_offset(tmp_path):
    lines = ["#include <stddef.h>", '#include "world.h"']
    for struct in (
        layout.PointStruct,
        layout.FaultsStruct,
        layout.DeviceStruct,
        layout.InstanceStruct,
        layout.ProcessStruct,
        layout.HistoryStruct,
        layout.XidStruct,
        layout.CallStruct,
        layout.WorldStruct,
    ):
        name = struct.__name__.removesuffix("Struct").lower()
        c_name = "world" if name == "world" else f"world_{name}"
        for field, _ in struct._fields_:
            offset = getattr(struct, field).offset
            lines.append(
                f'static_assert(offsetof(struct {c_name}, {field}) == {offset}, "{c_name}.{field}");'
            )
    lines += [
        f'static_assert(WORLD_MAGIC == {layout.MAGIC}ull, "magic");',
        f'static_assert(N_TOTALS == {len(layout.TOTALS)}, "totals");',
        *(f'static_assert({name} == {getattr(layout, name)}, "{name}");' for name in CONSTANTS),
        f'static_assert(WORLD_VERSION == {layout.VERSION}, "version");',
    ]
    source = tmp_path / "offsets.c"
    source.write_text("\n".join(lines) + "\n")
    command = ["cc", "-std=c11", "-fsyntax-only", f"-I{nvml_sources.SOURCES}", str(source)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr


def test_the_library_exports_its_functions_and_nothing_else(nvml_library):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(nvml_library)], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.split()[2] for line in listed.splitlines()) == sorted(function_names())


def test_a_world_needs_distinct_gpus(tmp_path):
    with pytest.raises(RequestError, match="GPU-x: more than one GPU"):
        create(tmp_path / "w", [GpuSpec("GPU-x", minor=0), GpuSpec("GPU-x", minor=1)])
    with pytest.raises(RequestError, match="pci_bus_id 'x'"):
        create(tmp_path / "w", [GpuSpec("GPU-x", pci_bus_id="x")])
    create(tmp_path / "w", [GpuSpec("GPU-x")])
    assert World(tmp_path / "w").devices[0].pci == (0, 7, 0)
