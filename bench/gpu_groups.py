"""Run a group of programs together on one GPU for bench/colocation_gpu.py, and NVIDIA's MPS for them."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

READY_WITHIN_S = 180.0
ENDS_WITHIN_S = 20.0
SETTLES_S = 0.2
"""Minimum seconds from the order to the window, so that all processes receive the order in time."""
_POLL_S = 0.1

Memory = Callable[[], float | None]
"""Return the MiB in use on the GPU; None if unknown."""


class Window(NamedTuple):
    """The time for which all programs run together before counting starts, and the counted time."""

    warmup_s: float
    seconds: float


class GroupResult(NamedTuple):
    """The result of a group."""

    per_s: tuple[float, ...]
    """Steps per second of each program."""
    memory_mib: float | None
    """The maximum total memory of all programs."""


class GroupError(Exception):
    """A program of the group failed."""

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


class NotSharedError(Exception):
    """This way of sharing is not available here."""


@dataclass
class _Worker:
    """One program and its messages: each line as JSON, None at its end."""

    name: str
    process: subprocess.Popen[str]
    said: queue.SimpleQueue[dict[str, Any] | None]
    errors: Path

    @classmethod
    def start(
        cls, name: str, device: str, scale: float, environment: Mapping[str, str], errors: Path
    ) -> _Worker:
        command = [sys.executable, str(Path(__file__).with_name("gpu_worker.py")), name, device, str(scale)]
        with errors.open("w") as file:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        worker = cls(name, process, queue.SimpleQueue(), errors)
        threading.Thread(target=worker._read, daemon=True).start()
        return worker

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.said.put(json.loads(line))
        self.said.put(None)

    def next(self, within_s: float) -> dict[str, Any]:
        """Return the program's next message; raise GroupError if the program failed."""
        try:
            said = self.said.get(timeout=within_s)
        except queue.Empty:
            raise GroupError(f"{self.name} sent nothing for {within_s:.0f} s") from None
        if said is None:
            self.said.put(None)  # for the process that ends it
            words = self.errors.read_text(errors="replace").strip().splitlines()
            raise GroupError(f"{self.name} ended: {words[-1] if words else self.process.wait()}")
        if "out_of_memory" in said:
            raise GroupError(f"{self.name} ran out of memory", out_of_memory=True)
        return said

    def order(self, begin_s: float, end_s: float) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its next message has the reason
            self.process.stdin.write(f"{begin_s} {end_s}\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Kill the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        while self.said.get() is not None:
            pass


class _Peak(AbstractContextManager["_Peak"]):
    """The maximum increase of used memory, sampled ten times a second."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._first = memory()
        self.most: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._over.wait(_POLL_S):
            now = self._memory()
            if now is not None and self._first is not None:
                self.most = max(self.most or 0.0, now - self._first)

    def __enter__(self) -> _Peak:
        if self._first is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._first is not None:
            self._thread.join()


def run_together(
    group: Sequence[str],
    device: str,
    scale: float,
    window: Window,
    environment: Mapping[str, str],
    memory: Memory,
) -> GroupResult:
    """Start programs together, and count their steps in the same window; raise GroupError if one fails."""
    workers: list[_Worker] = []
    with tempfile.TemporaryDirectory() as directory, _Peak(memory) as peak:
        try:
            for at, name in enumerate(group):
                errors = Path(directory, f"{at}")
                workers.append(_Worker.start(name, device, scale, environment, errors))
            for worker in workers:
                worker.next(READY_WITHIN_S)
            begin_s = time.monotonic() + window.warmup_s + SETTLES_S
            for worker in workers:
                worker.order(begin_s, begin_s + window.seconds)
            # A batch that begins within the window may end long after it.
            within_s = window.warmup_s + 3 * window.seconds + READY_WITHIN_S
            said = [worker.next(within_s) for worker in workers]
        finally:
            for worker in workers:
                worker.end()
    taken = peak.most if peak.most is not None else sum(one["memory_mib"] for one in said)
    return GroupResult(tuple(one["steps"] / window.seconds for one in said), taken)


def nvml_memory(index: int) -> Memory:
    """Return the used memory of a GPU by NVML; None without pynvml."""
    try:
        import pynvml
    except ImportError:
        return lambda: None
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return lambda: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**20


class Mps(AbstractContextManager[dict[str, str]]):
    """A separate MPS service in its own directory; a service of the site is never used, started or ended."""

    def __init__(self, environment: Mapping[str, str], program: str = "nvidia-cuda-mps-control") -> None:
        self._program = program
        self._directory = tempfile.TemporaryDirectory(prefix="slurm-gpu-mps-")
        at = Path(self._directory.name)
        self._environment = {
            **environment,
            "CUDA_MPS_PIPE_DIRECTORY": str(at / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(at / "log"),
        }

    def __enter__(self) -> dict[str, str]:
        """Return the environment of programs that use the service; raise NotSharedError if it fails."""
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            Path(self._environment[name]).mkdir()
        # Programs see only the device that the service was given, so its index is 0.
        served = {**self._environment, "CUDA_VISIBLE_DEVICES": "0"}
        why = self._start(served)
        if why is not None:
            self.__exit__()
            raise NotSharedError(why)
        return served

    def _start(self, served: Mapping[str, str]) -> str | None:
        """Return the reason why the service does not work, or None."""
        if shutil.which(self._program) is None:
            return f"{self._program} is not installed"
        done = self._control(["-d"], None)
        if done.returncode != 0:
            return f"{self._program} -d: {_last(done.stderr or done.stdout)}"
        try:
            run_together(("stream",), "cuda", 0.01, Window(0.0, 0.5), served, lambda: None)
        except GroupError as error:
            return f"a program that MPS was to serve did not run: {error}"
        if not self._control([], "get_server_list\n").stdout.split():
            return "the programs ran, but MPS served no program"
        return None

    def __exit__(self, *_: object) -> None:
        if shutil.which(self._program) is not None:
            self._control([], "quit\n")
        self._directory.cleanup()

    def _control(self, arguments: Sequence[str], text: str | None) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._program, *arguments],
                env=self._environment,
                input=text,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess([], 1, "", "does not answer")


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "refused"
