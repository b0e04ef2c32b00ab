"""Readers refuse hostile input before it takes memory; each reader is measured in a separate process."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

# The most memory that a process may use; numpy and pyarrow take 150 MiB of it.
MAX_MIB = 600
CHILD = r"""
import re, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from slurm_gpu.errors import SlurmGpuError
path = Path(sys.argv[1])
said = "was taken"
try:
    {read}
except (SlurmGpuError, ValueError) as error:
    said = f"{{type(error).__name__}}: {{error}}"
# Not ru_maxrss, which takes in the parent's from before exec.
peak_kib = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
print(max(peak_kib, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10)
print(said)
"""
TABLES = "from slurm_gpu.colocation.tables.read import read_tables; read_tables(path)"
MODEL = "from slurm_gpu.colocation.learned.model_file import read_arrays; read_arrays(path)"
PROFILES = "from slurm_gpu.colocation.profiles.profile_file import read_profiles; read_profiles(path)"
YAML = "from slurm_gpu.config.yaml_source import read_yaml; read_yaml(path)"
JSON = "from slurm_gpu.colocation.tables.strict_json import read_json; read_json(path)"
HOSTS = "from slurm_gpu.text.hostlist import expand; expand(path.read_text())"
STEPS = "from slurm_gpu.cli.runs.steps_file import timings_of; timings_of(path)"
HEAD = "dp_rank,stage,rank,step,optype,duration,mb_id"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def parquet(path: Path, build: str) -> Path:
    """Write a Parquet file in a separate process, because building its large strings takes memory."""
    pytest.importorskip("pyarrow")
    script = f"import numpy as np, pyarrow as pa, pyarrow.parquet as pq, sys; n = 3; t = {build}"
    script += "; pq.write_table(pa.table(t), sys.argv[1], compression='zstd')"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    return path


def large_strings(path: Path) -> Path:
    numbers = "dict.fromkeys(['dp_rank', 'stage', 'rank', 'step', 'mb_id', 'duration'], np.arange(n))"
    found = parquet(
        path / "s.parquet", f"{numbers} | {{'optype': [str(i) + 'x' * 95_000_000 for i in range(n)]}}"
    )
    assert found.stat().st_size < 100_000
    return found


def repeated_rows(path: Path) -> Path:
    numbers = "dict.fromkeys(['dp_rank', 'stage', 'rank', 'step', 'mb_id', 'duration'], np.zeros(n, int))"
    found = parquet(
        path / "r.parquet", f"(n := 8_000_000, {numbers} | {{'optype': ['forward-compute'] * n}})[1]"
    )
    assert found.stat().st_size < 300_000
    return found


def varint(value: int, width: int = 0) -> bytes:
    """Return a number in Thrift's compact protocol, in at least `width` bytes."""
    value, content = value << 1, bytearray()
    while value > 0x7F or len(content) + 1 < width:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def understated(path: Path, values: dict[int, int]) -> Path:
    """Replace each of these values in the footer by 1000, the given number of times."""
    content = path.read_bytes()
    at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[at:]
    for value, n in values.items():
        assert footer.count(varint(value)) >= n
        footer = footer.replace(varint(value), varint(1000, len(varint(value))), n)
    return written(path, content[:at] + footer)


def understated_strings(path: Path) -> Path:
    import pyarrow.parquet

    group = pyarrow.parquet.ParquetFile(large_strings(path)).metadata.row_group(0)
    return understated(
        path / "s.parquet", {group.column(6).total_uncompressed_size: 1, group.total_byte_size: 1}
    )


def understated_rows(path: Path) -> Path:
    """Understate the number of rows of the whole file, which precedes those of row groups and columns."""
    numbers = "dict.fromkeys(['dp_rank', 'stage', 'rank', 'step', 'mb_id', 'duration'], np.zeros(n, int))"
    text = "pa.DictionaryArray.from_arrays(np.zeros(n, 'i4'), ['forward-compute'])"
    return understated(
        parquet(path / "u.parquet", f"(n := 30_000_000, {numbers} | {{'optype': {text}}})[1]"),
        {30_000_000: 1},
    )


def npz(path: Path, header: bytes) -> Path:
    with zipfile.ZipFile(path / "m.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("description.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return path / "m.npz"


def zeros_npz(path: Path) -> Path:
    file = io.BytesIO()
    np.save(file, np.zeros(50 << 20, dtype=np.float32))
    with zipfile.ZipFile(path / "z.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("weight0.npy", file.getvalue())
    return path / "z.npz"


def many_parts(path: Path) -> Path:
    """Return a zip file whose directory lists 640,000 parts."""
    n = 640_000
    entry = b"PK\x01\x02" + bytes(24) + (6).to_bytes(2, "little") + bytes(16)
    directory = b"".join(entry + b"%06x" % number for number in range(n))
    end = b"PK\x05\x06" + bytes(4) + b"\xff\xff\xff\xff" + len(directory).to_bytes(4, "little")
    return written(path / "p.npz", directory + end + bytes(6))


def zeros_zip(path: Path) -> Path:
    with (
        zipfile.ZipFile(path / "f.zip", "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("header.json", "w") as file,
    ):
        for _ in range(600):
            file.write(bytes(1 << 20))
    return path / "f.zip"


CASES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "Parquet of large strings": (large_strings, STEPS, "column optype unpacks to"),
    "Parquet of one row again and again": (repeated_rows, STEPS, "no timings of a job"),
    "Parquet of large strings with a footer of small ones": (
        understated_strings,
        STEPS,
        "takes more memory to read than its metadata announce",
    ),
    "Parquet of many rows with a footer of few": (
        understated_rows,
        STEPS,
        "takes more memory to read than its metadata announce",
    ),
    "CSV of steps with thousands of short cells": (
        lambda path: written(
            path / "s.csv",
            f"{HEAD},{','.join(f'c{n}' for n in range(600))}\n".encode()
            + b"12," * 606
            + b"12\n"
            + (b"123," * 606 + b"123\n") * 12_000,
        ),
        STEPS,
        "no row is a computation",
    ),
    "CSV of steps of empty lines": (
        lambda path: written(path / "s.csv", HEAD.encode() + b"\n" * 50_000_000),
        STEPS,
        "0 values for 7 columns",
    ),
    "CSV of steps of one line": (
        lambda path: written(path / "s.csv", HEAD.encode() + b"x" * 200_000_000),
        STEPS,
        "line 1: more than",
    ),
    "JSON of empty lists": (
        lambda path: written(path / "t.json", b"[" + b"[]," * 10_000_000 + b"[]]"),
        TABLES,
        "values; at most 2000000",
    ),
    "JSON of objects with one key": (
        lambda path: written(
            path / "t.json", b"{" + b",".join(b'"%d":{}' % n for n in range(200_000)) + b"}"
        ),
        TABLES,
        "was taken",
    ),
    "JSON without end": (
        lambda _: Path("/dev/zero"),
        JSON,
        "larger than the maximum of 32 MiB",
    ),
    "CSV of profiles of commas": (
        lambda path: written(path / "p.csv", b"," * 30_000_000 + b"\n"),
        PROFILES,
        "values; at most 2000000",
    ),
    "CSV of pairs of short lines": (
        lambda path: written(path / "p.csv", b"a,b\n" * 7_000_000),
        TABLES,
        "values; at most 2000000",
    ),
    "CSV of one quoted cell": (
        lambda path: written(path / "p.csv", b'"' + b"x" * 30_000_000),
        TABLES,
        "field larger than field limit",
    ),
    "model with an array of a terabyte": (
        lambda path: npz(path, b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n"),
        MODEL,
        "is not a model or is damaged",
    ),
    "model with a text of a terabyte": (
        lambda path: npz(path, b"{'descr': '<U250000000000', 'fortran_order': False, 'shape': (), }\n"),
        MODEL,
        "is not a model or is damaged",
    ),
    "model of zeros": (
        zeros_npz,
        MODEL,
        "a model has at most",
    ),
    "model of many parts": (
        many_parts,
        MODEL,
        "has more than 1000 parts",
    ),
    "model without end": (
        lambda _: Path("/dev/zero"),
        MODEL,
        "larger than the maximum of 32 MiB",
    ),
    "forecasts' model of zeros": (
        zeros_zip,
        "from slurm_gpu.forecast.packing import PackedArchive; PackedArchive(path.read_bytes())",
        "parts of",
    ),
    "YAML without end": (
        lambda _: Path("/dev/zero"),
        YAML,
        "larger than the maximum of 4 MiB",
    ),
    "YAML of short items": (
        lambda path: written(path / "p.yaml", b"a: [" + b"1," * 200_000 + b"1]"),
        YAML,
        "more than 100000 values",
    ),
    "notice without end": (
        lambda path: (path / "never_used.txt").symlink_to("/dev/zero") or path,
        "from slurm_gpu.notices.texts import load_templates; load_templates(path)",
        "larger than the maximum of 1 MiB",
    ),
    "shipment of zeros": (
        lambda path: written(path / "s.gz", gzip.compress(bytes(1 << 28), 9)),
        "from slurm_gpu.database.http.error_responses import ShipmentError\n"
        "    from slurm_gpu.database.ingest.shipment import parse_shipment\n"
        "    try: parse_shipment(path.read_bytes(), 'gzip')\n"
        "    except ShipmentError as error: raise ValueError(error.status) from None",
        "413",
    ),
    "hostlist of long numbers": (
        lambda path: written(path / "h", b"n[" + b"0" * 60_000 + b"-99999]"),
        HOSTS,
        "is not a number or a range",
    ),
    "hostlist of a long name": (
        lambda path: written(path / "h", b"n" * 60_000 + b"[1-99999]"),
        HOSTS,
        "at most 255 characters",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_in_little_memory(name: str, tmp_path: Path) -> None:
    make, read, message = CASES[name]
    child = CHILD.format(read=read)
    ended = subprocess.run(
        [sys.executable, "-c", child, str(make(tmp_path))], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    peak_mib, _, said = ended.stdout.partition("\n")
    assert message in said
    assert int(peak_mib) < MAX_MIB, said
