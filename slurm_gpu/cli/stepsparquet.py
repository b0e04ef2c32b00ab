"""Read the timings of a Parquet file, in a process with no more memory than the file's metadata announce.

Metadata may understate what pages and encodings unpack to, and pyarrow has no limit of its own. So
`read_parquet` starts this module as a program, which sends the columns as an Arrow stream.
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
# Of a column, unpacked. Rows take 100 bytes of memory: so do a million rows of one value, which are some
# bytes of a file.
_MOST_COLUMN_BYTES = 1 << 28
_FEW_ROWS = 1_000_000
# Of memory, for the metadata, and besides what these announce. pyarrow 26 takes 30 MiB of it.
_MARGIN_BYTES = 1 << 27
# Of a value, unpacked, while its column is built.
_VALUE_BYTES = 16


def read_parquet(path: Path, names: Sequence[str], words: Sequence[str], most_rows: int) -> Any:
    """Return the columns of these names that a file has as a pyarrow.Table; raises UsageError.

    Columns of `words` are text, as dictionaries; the others are numbers.
    """
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise UsageError("--steps: Parquet needs pyarrow (slurm-gpu[report]); CSV does not") from None
    here = Path(slurm_gpu.__file__).resolve().parent.parent
    ended = subprocess.run(
        (*_COMMAND, str(path), ",".join(names), ",".join(words), str(most_rows)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        # Another allocator may reserve a GiB at once.
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
    if ended.returncode < 0:  # C++ ends the process where it cannot allocate
        raise UsageError(_too_large(path))
    why = (ended.stderr.decode(errors="replace").strip().splitlines() or ["it ended"])[-1]
    raise OutsideError(f"--steps {path}: the process that reads it failed: {why}")


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
            raise UsageError(f"--steps {path}: is no regular file")
        used_bytes = _data_bytes()
        _limit(used_bytes + _MARGIN_BYTES)
        with pyarrow.parquet.ParquetFile(path) as file:
            here = file.schema_arrow.names
            if twice := sorted(name for name in names if here.count(name) > 1):
                raise UsageError(f"--steps {path}: column {twice[0]} is there {here.count(twice[0])} times")
            wanted = [name for name in names if name in here]
            for name in wanted:
                _check_type(path, name, file.schema_arrow.field(name).type, is_text=name in words)
            n_bytes = _announced_bytes(path, file.metadata, wanted, most_rows, status.st_size)
        _limit(used_bytes + _MARGIN_BYTES + status.st_size + n_bytes)
        # Text stays a dictionary: what takes a few bytes there may be far more, written out.
        text = [name for name in words if name in wanted]
        with pyarrow.parquet.ParquetFile(path, read_dictionary=text, pre_buffer=False) as file:
            return file.read(wanted, use_threads=False)
    except MemoryError:
        raise UsageError(_too_large(path)) from None
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise UsageError(f"--steps {path}: cannot be read as Parquet (CSV ends in .csv): {error}") from error


def _too_large(path: Path) -> str:
    return f"--steps {path}: takes more memory to read than its metadata announce"


def _limit(n_bytes: int) -> None:
    """Limit the data of this process: anonymous memory that is reserved, used or not."""
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _data_bytes() -> int:
    """Return how much it has now."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[5]
    return int(pages) * resource.getpagesize()


def _announced_bytes(path: Path, metadata: Any, wanted: Sequence[str], most_rows: int, n_bytes: int) -> int:
    """Return what the columns take in memory by the metadata; raises UsageError where that is too much."""
    n_rows = metadata.num_rows
    if n_rows > most_rows:
        raise UsageError(
            f"--steps {path}: {n_rows:,} rows, {most_rows:,} at most; time fewer steps (every=10)"
        )
    if n_rows > max(_FEW_ROWS, 2 * n_bytes):
        raise UsageError(
            f"--steps {path}: {n_rows:,} rows in {n_bytes:,} bytes: these are no timings of a job"
        )
    sizes: Counter[str] = Counter()
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            sizes[chunk.path_in_schema] += chunk.total_uncompressed_size
    for name in wanted:
        if sizes[name] > _MOST_COLUMN_BYTES:
            raise UsageError(
                f"--steps {path}: column {name} unpacks to {sizes[name] >> 20} MiB, "
                f"{_MOST_COLUMN_BYTES >> 20} MiB at most; time fewer steps (every=10)"
            )
    return sum(2 * sizes[name] + _VALUE_BYTES * n_rows for name in wanted)


def _check_type(path: Path, name: str, kind: Any, *, is_text: bool) -> None:
    import pyarrow

    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    fits = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    if is_text:
        fits = pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
    if not fits:
        raise UsageError(f"--steps {path}: column {name} must not be of {kind}")


if __name__ == "__main__":
    main()
