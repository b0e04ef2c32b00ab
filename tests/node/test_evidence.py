"""Evidence about a process is read within limits, from real processes and from hostile ones."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.application.evidence import ProcessEvidence, files_in_maps, gather, imports_in, script_of
from slurm_gpu.node.process.procfs import Processes
from tests.node.fakeproc import write


@pytest.mark.parametrize(
    ("executable", "words", "script", "module"),
    [
        ("python3.11", "python3 train.py --lr 1", "train.py", None),
        ("python3.11", "python3 -u -W ignore -X dev /home/u/train.py", "/home/u/train.py", None),
        ("python3", "python -m torch.distributed.run train.py", None, "torch.distributed.run"),
        ("python3", "python -um pytest", None, "pytest"),
        ("python3.12", "/env/bin/python /env/bin/torchrun --nproc-per-node 4", "/env/bin/torchrun", None),
        ("python3", "python -c print(1) train.py", None, None),
        ("python3", "python -", None, None),
        ("python3", "python", None, None),
        ("python3", "python -m", None, None),
        ("R", "/usr/lib/R/bin/exec/R --no-echo --file=fit.R --args x", "fit.R", None),
        ("julia", "julia --project run.jl", "run.jl", None),
        ("bash", "bash -c ls", None, None),
        ("lmp", "lmp -in in.lj", None, None),
        (None, "", None, None),
    ],
)
def test_scripts_of_interpreters(
    executable: str | None, words: str, script: str | None, module: str | None
) -> None:
    assert script_of(executable, words.split(" ")) == (script, module)


@given(st.sampled_from(["python3", "R", "bash"]), st.lists(st.text(max_size=6), max_size=8))
def test_any_arguments_have_at_most_a_script_or_a_module(executable: str, words: list[str]) -> None:
    script, module = script_of(executable, words)
    assert script is None or module is None


def test_imports() -> None:
    text = """
import os, numpy as np
import torch.nn as nn
from pytorch_lightning import Trainer
    from keras.models import Model
x = "import tensorflow"
# import jax
from . import local
importlib.import_module("flax")
"""
    assert imports_in(text) == {"os", "numpy", "torch", "pytorch_lightning", "keras"}


@given(st.text())
def test_imports_of_anything(text: str) -> None:
    assert all(name.isidentifier() for name in imports_in(text))


def test_maps() -> None:
    maps = (
        b"55d0-55d1 r-xp 00000000 103:02 12   /usr/bin/python3.11\n"
        b"7f00-7f01 r-xp 00000000 103:02 12   /x/site-packages/torch/lib/libtorch_cuda.so (deleted)\n"
        b"7f00-7f01 rw-p 00000000 00:00 0 \n"
        b"7f00-7f01 rw-p 00000000 00:00 0   [heap]\n"
        b"7f00-7f01 rw-s 00000000 00:05 1   /dev/nvidia0\n"
    )
    assert files_in_maps(maps) == {
        "/usr/bin/python3.11",
        "/x/site-packages/torch/lib/libtorch_cuda.so",
        "/dev/nvidia0",
    }


def test_mapped_data_files_hide_no_library() -> None:
    data = [b"7f00-7f01 r--s 0 0:0 1   /data/shard-%05d" % number for number in range(10_000)]
    library = b"7f00-7f01 r-xp 0 0:0 1   /usr/lib/libtorch_cuda.so"
    package = b"7f00-7f01 r-xp 0 0:0 1   /x/site-packages/jax/core"
    assert files_in_maps(b"\n".join([*data, library, package])) == {
        "/usr/lib/libtorch_cuda.so",
        "/x/site-packages/jax/core",
    }


@pytest.mark.parametrize(
    "line", [b"7f00 r-xp 0 0:0 1 " + b"/ " * 20_000, b"7f00 rw-p 0 0:0 0 " + b" " * 40_000]
)
def test_no_path_makes_reading_maps_slow(line: bytes) -> None:
    maps = b"\n".join([line] * 50) + b"\n"
    began = time.process_time()
    files_in_maps(maps)
    assert time.process_time() - began < 1


@given(st.binary())
def test_maps_of_any_kind(data: bytes) -> None:
    assert all(path.startswith("/") for path in files_in_maps(data))


@contextmanager
def running(*words: str, cwd: Path) -> Iterator[int]:
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd) as run:
        assert run.stdout is not None
        run.stdout.readline()
        yield run.pid
        run.communicate()


WAIT = "import sys; print(flush=True); sys.stdin.read()\n"


def test_a_real_python_with_a_mapped_library(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "torch" / "lib" / "libtorch_cuda.so"
    write(library, "x" * 5000)
    write(
        tmp_path / "train.py",
        f"import json\nimport mmap\nf = open({str(library)!r})\n"
        f"m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\nif 0: import lightning\n" + WAIT,
    )
    with running(sys.executable, "train.py", "--lr", "0.1", cwd=tmp_path) as pid:
        evidence = gather(Processes(), pid)
    assert evidence.executable is not None
    assert evidence.executable.startswith("python")
    assert (evidence.script, evidence.module) == ("train.py", None)
    assert evidence.arguments.endswith("train.py --lr 0.1")
    assert "libtorch_cuda.so" in evidence.libraries
    assert evidence.packages == {"torch"}
    assert {"json", "mmap", "sys"} <= evidence.imports


def test_a_script_that_is_not_a_plain_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    root = tmp_path / "proc"
    write(root / "7" / "cmdline", "python3\0pipe.py\0")
    (root / "7" / "exe").symlink_to("/usr/bin/python3")
    (root / "7" / "cwd").symlink_to(tmp_path)
    assert gather(Processes(root), 7).imports == frozenset()


def test_a_script_that_its_user_cannot_read_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "proc"
    write(tmp_path / "secret.py", "import torch\n")
    write(root / "7" / "cmdline", "python3\0secret.py\0")
    (root / "7" / "exe").symlink_to("/usr/bin/python3")
    (root / "7" / "cwd").symlink_to(tmp_path)
    assert gather(Processes(root), 7).imports == {"torch"}
    if os.geteuid() == 0:
        os.chown(tmp_path / "secret.py", 12345, 12345)
        (tmp_path / "secret.py").chmod(0o600)
        assert gather(Processes(root), 7).imports == frozenset()


def test_a_process_that_has_exited(tmp_path: Path) -> None:
    assert gather(Processes(tmp_path), 7) == ProcessEvidence(pid=7)
    assert gather(Processes(tmp_path), 7).is_empty


def test_giant_arguments_are_truncated(tmp_path: Path) -> None:
    write(tmp_path / "7" / "cmdline", "a\0" * 100_000)
    assert len(gather(Processes(tmp_path), 7).arguments) <= 4096
