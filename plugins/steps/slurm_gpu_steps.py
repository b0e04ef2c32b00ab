"""Record the timings of training steps for `slurm-gpu diagnose ID --steps DIR`.

Copy this file next to your training script; it depends only on the standard library.

    steps = Steps(synchronize=torch.cuda.synchronize, every=10)
    for batch in loader:
        with steps.step():
            with steps.forward():
                loss = model(batch)
            loss.backward()

Each rank appends complete lines to its own CSV file, so the timings survive if the process is killed. If the
file cannot be written (for example, because the disk is full), the rank warns once, and the training
continues without timings.
"""

import contextlib
import fcntl
import os
import socket
import sys
import time

COLUMNS = "dp_rank,stage,rank,step,optype,duration,mb_id,node,local_rank"


def _number(*names):
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 0)


def _take(file):
    """Lock the file if its file system supports locks, so two training runs cannot mix their lines."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError("another process is writing to it; give each training run its own directory") from None
    except OSError:
        pass


class Steps:
    """Record the timings of one rank; `diagnose` compares ranks of the same pipeline `stage`.

    `dp_rank` is the number of the model replica (default: the number of the rank).
    """

    def __init__(self, directory=None, stage=0, dp_rank=None, every=1, synchronize=lambda: None):
        if every < 1:
            raise ValueError(f"every must be 1 or more, not {every}")
        rank = _number("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
        local = _number("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        directory = directory or f"slurm-gpu-steps-{os.environ.get('SLURM_JOB_ID', 'none')}"
        self._path = os.path.join(directory, f"rank-{rank:05}.csv")  # noqa: PTH118
        self._file = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            os.makedirs(directory, exist_ok=True)  # noqa: PTH103
            self._file = os.open(self._path, flags, 0o644)
            _take(self._file)
            os.ftruncate(self._file, 0)
        except OSError as error:
            self._give_up(error)
        self._write(f"{COLUMNS}\n")
        self._who = f"{rank if dp_rank is None else dp_rank},{stage},{rank}"
        self._where = f"{node},{local}"
        self._every, self._synchronize = every, synchronize
        self._number, self._timed, self._counts, self._lines = -1, False, {}, []

    @contextlib.contextmanager
    def step(self):
        """Time one step and write its timings when it ends. Every rank must call this for every step."""
        self._number += 1
        self._timed = self._file is not None and self._number % self._every == 0
        self._counts, self._lines = {}, []
        with self._time("step"):
            yield
        if self._lines:
            self._write("".join(self._lines))

    def forward(self):
        """Time the forward pass of one microbatch; the pass must not wait for other ranks."""
        return self._time("forward-compute")

    def backward(self):
        """Time the backward pass of one microbatch; the pass must not wait for other ranks."""
        return self._time("backward-compute")

    def _write(self, text):
        if self._file is None:
            return
        try:
            cut = os.write(self._file, text.encode()) < len(text.encode())
        except OSError as error:
            self._give_up(error)
        else:
            if cut:
                self._give_up("only part of a line could be written")

    def _give_up(self, why):
        print(f"slurm_gpu_steps: {self._path}: {why}; steps are no longer timed", file=sys.stderr)
        self._file = None

    @contextlib.contextmanager
    def _time(self, optype):
        if not self._timed:
            yield
            return
        self._synchronize()
        begin = time.perf_counter()
        yield
        self._synchronize()
        seconds = time.perf_counter() - begin
        count = self._counts[optype] = self._counts.get(optype, -1) + 1
        self._lines.append(f"{self._who},{self._number},{optype},{seconds:.6f},{count},{self._where}\n")
