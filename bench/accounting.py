"""Generate a file of rows in sacct's format, and answer queries from it like sacct.

Rows are ordered by eligible time. Each column ends with one byte instead of the delimiter. A second file has
three numbers for each row: eligible time, end time (0: running) and offset in the first file.

As a program, `accounting.py DIRECTORY sacct-options…` answers the queries of slurm-gpudbd. It keeps no table
in memory and, unlike sacct, does not query slurmdbd; a benchmark therefore measures the reader.
"""

from __future__ import annotations

import mmap
import os
import sys
from array import array
from bisect import bisect_left

TYPE_CHECKING = False  # importing typing and these modules would take longer than an answer
if TYPE_CHECKING:
    import random
    from pathlib import Path

END = b"\x1f"
ROWS, INDEX = "rows", "index"
FROM_S = 1_700_000_000
SPAN_S = 2 * 365 * 86400
LONGEST_S = 8 * 86400
"""The maximum time in seconds from the eligible time of a job to its end."""
HELP = (
    "JobID Cluster JobIDRaw JobName User UID Account QOS Partition State ExitCode Submit Eligible Start End "
    "ElapsedRaw Suspended TimelimitRaw NNodes NodeList ReqTRES AllocTRES AdminComment"
)
_NAMES = ("train", "finetune", "eval", "gromacs", "lammps", "preprocess", "bash", "vasp_relax", "pretrain")
_SHAPES = (  # nodes, GPUs and cores per node, weight
    *((1, 1, 8),) * 50,
    *((1, 0, 4),) * 18,
    *((1, 2, 16),) * 10,
    *((1, 4, 32),) * 8,
    *((1, 8, 64),) * 6,
    *((2, 8, 64),) * 5,
    *((4, 8, 64),) * 2,
    (16, 8, 64),
)
_STATES = (
    ("COMPLETED",) * 78 + ("FAILED",) * 10 + ("TIMEOUT",) * 5 + ("CANCELLED by 1001",) * 4 + ("NODE_FAIL",)
)
N_NODES = 64


def generate(directory: Path, n_rows: int, cluster: str, seed: int = 0) -> None:
    """Write `n_rows` of two years: arrays, het jobs, requeues, and jobs cancelled while pending."""
    import random

    dice = random.Random(seed)
    rows: list[tuple[int, int, str]] = []
    # Slurm numbers jobs in the order of their submission.
    for job_id, eligible_s in enumerate(sorted(FROM_S + dice.randrange(SPAN_S) for _ in range(n_rows)), 1):
        rows += _job(dice, cluster, job_id, eligible_s)[: n_rows - len(rows)]
    rows.sort(key=lambda row: row[0])
    index = array("q")
    with (directory / ROWS).open("wb") as out:
        for eligible_s, end_s, row in rows:
            index.extend((eligible_s, end_s, out.tell()))
            out.write(row.encode())
    with (directory / INDEX).open("wb") as out:
        index.tofile(out)


def _job(dice: random.Random, cluster: str, job_id: int, eligible_s: int) -> list[tuple[int, int, str]]:
    """Return the rows of one job: (eligible, end, text)."""
    user = min(int(dice.expovariate(0.03)), 999)
    n_nodes, n_gpus, n_cores = dice.choice(_SHAPES)
    kind = dice.random()
    shown = str(job_id)
    if kind < 0.2:
        shown = f"{max(1, job_id - dice.randrange(50))}_{dice.randrange(1000)}"
    elif kind < 0.21:
        shown = f"{job_id}+0"
    submit_s = eligible_s
    rows = []
    n_before = dice.random() < 0.02  # a run that was requeued
    for n_left in reversed(range(1 + n_before)):
        start_s = submit_s + min(int(dice.expovariate(1 / 1800)), 86400)
        length_s = min(int(dice.lognormvariate(7.5, 1.8)), 3 * 86400)
        cancelled = not n_left and dice.random() < 0.03
        state = "REQUEUED" if n_left else "CANCELLED by 1001" if cancelled else dice.choice(_STATES)
        end_s = start_s if cancelled else start_s + length_s
        first = dice.randrange(N_NODES - n_nodes)
        tres = f"billing={n_cores},cpu={n_cores * n_nodes},mem={n_nodes * n_cores * 8}G,node={n_nodes}"
        gpus = f",gres/gpu={n_nodes * n_gpus}" if n_gpus else ""
        typed = f",gres/gpu:a100={n_nodes * n_gpus}" if n_gpus else ""
        nodes = f"n{first + 1}" if n_nodes == 1 else f"n[{first + 1}-{first + n_nodes}]"
        columns = (
            shown,
            cluster,
            str(job_id),
            f"{dice.choice(_NAMES)}-{dice.randrange(10_000)}",
            f"user{user:03d}",
            str(2000 + user),
            f"team{user % 40}",
            "normal",
            "gpu" if n_gpus else "cpu",
            state,
            "0:0",
            str(submit_s),
            str(submit_s),
            str(start_s),
            str(end_s),
            "0" if cancelled else str(length_s),
            "00:00:00",
            str(dice.choice((60, 1440, 4320))),
            str(n_nodes),
            "None assigned" if cancelled else nodes,
            tres + gpus,
            "" if cancelled else tres + typed + gpus,
            "slurm-gpu/1 t=3f9 r=gpus" if dice.random() < 0.3 else "",
        )
        rows.append((submit_s, end_s, END.decode().join((*columns, "")) + "\n"))
        submit_s = end_s + 1
    return rows


def answer(directory: str, begin_s: int, end_s: int, delimiter: bytes) -> None:
    """Print all rows that were eligible before `end_s` and had not ended at `begin_s`."""
    text, index = _mapped(f"{directory}/{ROWS}"), memoryview(_mapped(f"{directory}/{INDEX}")).cast("q")
    n = len(index) // 3

    def first_from(time_s: int) -> int:
        return bisect_left(range(n), time_s, key=lambda row: index[3 * row])

    def place(row: int) -> int:
        return index[3 * row + 2] if row < n else len(text)

    out = sys.stdout.buffer
    whole, after = first_from(begin_s), first_from(end_s + 1)
    for row in range(first_from(begin_s - LONGEST_S), whole):
        if index[3 * row + 1] >= begin_s:
            out.write(text[place(row) : place(row + 1)].replace(END, delimiter))
    for row in range(whole, after, 4096):
        out.write(text[place(row) : place(min(after, row + 4096))].replace(END, delimiter))


def _mapped(path: str) -> mmap.mmap:
    return mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ)


def main(directory: str, *options: str) -> None:
    """Print what sacct prints for these options."""
    given = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    if "helpformat" in given:
        print(HELP)
    elif "jobs" not in given:  # all jobs have ended
        begin_s, end_s = (int(given[name].removeprefix("uts")) for name in ("starttime", "endtime"))
        answer(directory, begin_s, end_s, given["delimiter"].encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
