"""The two loops that slurm-gpud is compared with: each samples every GPU once a second and keeps sums.

    .venv/bin/python bench/plain_loops.py poll            the same quantities through pynvml, in this process
    .venv/bin/python bench/plain_loops.py fork COMMAND …  the output of COMMAND, such as nvidia-smi

Neither has jobs, shipping, storage or recovery: their cost is the minimum of sampling.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pynvml


def each_second(sample: Callable[[], None]) -> None:
    due = time.monotonic()
    while True:
        sample()
        due += 1.0
        time.sleep(max(0.0, due - time.monotonic()))


class Poll:
    """Read the metrics of a GPU that slurm-gpud samples every second."""

    _FIELDS = (
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    )

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        self._sums: dict[tuple[int, str], float] = {}
        self._seen_us = [0] * len(self._handles)

    def __call__(self) -> None:
        for gpu, handle in enumerate(self._handles):
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            _, samples = pynvml.nvmlDeviceGetSamples(
                handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, self._seen_us[gpu]
            )
            self._seen_us[gpu] = samples[-1].timeStamp if samples else self._seen_us[gpu]
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            values = {
                "util": rates.gpu,
                "mem_util": rates.memory,
                "ring": sum(sample.sampleValue.uiVal for sample in samples),
                "mem": memory.used,
                "power": pynvml.nvmlDeviceGetPowerUsage(handle),
                "temp": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
                "clock": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "throttle": pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
                "processes": len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            }
            for field in pynvml.nvmlDeviceGetFieldValues(handle, self._FIELDS):
                if field.nvmlReturn == pynvml.NVML_SUCCESS:
                    values[f"field {field.fieldId}"] = field.value.ullVal
            for name, value in values.items():
                self._sums[gpu, name] = self._sums.get((gpu, name), 0.0) + value


class Fork:
    """Start a program each time, and read its lines."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._sums: dict[tuple[str, int], float] = {}

    def __call__(self) -> None:
        read, write = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_CLOSE, read)]
        pid = os.posix_spawn(self._command[0], self._command, os.environ, file_actions=actions)
        os.close(write)
        with os.fdopen(read) as lines:
            for line in lines:
                cells = line.split(", ")
                for column, cell in enumerate(cells[2:]):
                    key = (cells[1], column)
                    self._sums[key] = self._sums.get(key, 0.0) + float(cell)
        _, status = os.waitpid(pid, 0)
        if status != 0:
            raise SystemExit(f"{self._command}: exit status {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["poll"]:
            each_second(Poll())
        case ["fork", *command] if command:
            each_second(Fork(command))
        case _:
            print(f"usage: {sys.argv[0]} poll | fork COMMAND …", file=sys.stderr)
            sys.exit(2)
