"""Read step timings from a Parquet file, in a process whose memory limit depends on the file's metadata.

Pages can unpack to more data than the metadata announces, and pyarrow does not limit memory. Therefore
`read_parquet` runs this module as a program, which writes the columns as an Arrow stream.
"""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import slurm_gpu
from slurm_gpu.errors import OutsideError, UsageError

_COMMAND = (sys.executable, "-S", "-P", "-m", "slurm_gpu.cli.stepsparquet")
_REFUSED = 2
_MOST_MESSAGE = 1000
# Maximum size of an unpacked column. Each row takes 100 bytes of memory, although a million equal rows take
# only a few bytes in the file.
_MOST_COLUMN_BYTES = 1 << 28
_FEW_ROWS = 1_000_000
# Memory for reading the metadata, and a margin for reading the columns. pyarrow 26 takes 30 MiB.
_MARGIN_BYTES = 1 << 27
# Memory per unpacked value while its column is built.
_VALUE_BYTES = 16


def read_parquet(path: Path, names: Sequence[str], words: Sequence[str], most_rows: int) -> Any:
    """Return a pyarrow.Table of the columns in `names` that the file has; raise UsageError if it is invalid.

    Columns in `words` are dictionary-encoded text; the other columns are numbers.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise UsageError("--steps: Parquet needs pyarrow: install slurm-gpu[report], or use CSV") from None
    here = Path(slurm_gpu.__file__).resolve().parent.parent
    ended = subprocess.run(
        (*_COMMAND, str(path), ",".join(names), ",".join(words), str(most_rows)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        # Other allocators may reserve 1 GiB at once.
        env={
            **os.environ,
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)]),
        },
    )
    if ended.returncode == 0:
        return pyarrow.ipc.open_stream(ended.stdout).read_all()
    if ended.returncode == _REFUSED:
        raise UsageError(ended.stderr.decode(errors="replace"))
    if ended.returncode < 0:  # the C++ code aborts when an allocation fails
        raise UsageError(_too_large(path))
    why = (ended.stderr.decode(errors="replace").strip().splitlines() or ["it exited"])[-1]
    raise OutsideError(f"--steps {path}: the process that read it failed: {why}")


def main() -> None:
    """Write the columns to standard output, or a message to standard error."""
    path, names, words = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")
    try:
        table = _read(path, names, words, int(sys.argv[4]))
    except UsageError as error:
        sys.stderr.write(str(error)[:_MOST_MESSAGE])
        sys.exit(_REFUSED)
    import pyarrow.ipc

    with pyarrow.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)


def _read(path: Path, names: Sequence[str], words: Sequence[str], most_rows: int) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"--steps {path}: not a regular file")
        used_bytes = _data_bytes()
        _limit(used_bytes + _MARGIN_BYTES)
        with pyarrow.parquet.ParquetFile(path) as file:
            here = file.schema_arrow.names
            if twice := sorted(name for name in names if here.count(name) > 1):
                raise UsageError(f"--steps {path}: has column {twice[0]} {here.count(twice[0])} times")
            wanted = [name for name in names if name in here]
            for name in wanted:
                _check_type(path, name, file.schema_arrow.field(name).type, is_text=name in words)
            n_bytes = _announced_bytes(path, file.metadata, wanted, most_rows, status.st_size)
        _limit(used_bytes + _MARGIN_BYTES + status.st_size + n_bytes)
        # Keep text dictionary-encoded, because decoded text may take far more memory.
        text = [name for name in words if name in wanted]
        with pyarrow.parquet.ParquetFile(path, read_dictionary=text, pre_buffer=False) as file:
            return file.read(wanted, use_threads=False)
    except MemoryError:
        raise UsageError(_too_large(path)) from None
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise UsageError(
            f"--steps {path}: cannot be read as Parquet (names of CSV files end in .csv): {error}"
        ) from error


def _too_large(path: Path) -> str:
    return f"--steps {path}: takes more memory to read than its metadata announces"


def _limit(n_bytes: int) -> None:
    """Limit the anonymous memory that this process may reserve."""
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _data_bytes() -> int:
    """Return the anonymous memory of this process."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[5]
    return int(pages) * resource.getpagesize()


def _announced_bytes(path: Path, metadata: Any, wanted: Sequence[str], most_rows: int, n_bytes: int) -> int:
    """Return the memory that the columns need according to the metadata; raise UsageError above a limit."""
    n_rows = metadata.num_rows
    if n_rows > most_rows:
        raise UsageError(
            f"--steps {path}: has {n_rows:,} rows, but at most {most_rows:,} are allowed; "
            "time fewer steps (every=10)"
        )
    if n_rows > max(_FEW_ROWS, 2 * n_bytes):
        raise UsageError(
            f"--steps {path}: has {n_rows:,} rows in {n_bytes:,} bytes, so it has no timings of a job"
        )
    sizes: Counter[str] = Counter()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            sizes[chunk.path_in_schema] += chunk.total_uncompressed_size
    for name in wanted:
        if sizes[name] > _MOST_COLUMN_BYTES:
            raise UsageError(
                f"--steps {path}: column {name} unpacks to {sizes[name] >> 20} MiB, "
                f"but at most {_MOST_COLUMN_BYTES >> 20} MiB are allowed; time fewer steps (every=10)"
            )
    return sum(2 * sizes[name] + _VALUE_BYTES * n_rows for name in wanted)


def _check_type(path: Path, name: str, kind: Any, *, is_text: bool) -> None:
    import pyarrow

    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    fits = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    if is_text:
        fits = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    if not fits:
        raise UsageError(
            f"--steps {path}: column {name} has type {kind}, expected {'text' if is_text else 'numbers'}"
        )


if __name__ == "__main__":
    main()
