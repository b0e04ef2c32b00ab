"""Jobs are recognised by the most specific traces of their processes; no other traces are stored."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.node.application.containers import in_container, root_mount
from slurm_gpu.node.application.evidence import ProcessEvidence
from slurm_gpu.node.application.recognition import (
    PROCESSES_PER_SCAN,
    Recognition,
    RecognizedApplication,
    file_size,
    recognise,
    tidy,
)
from slurm_gpu.node.application.rules import SHIPPED, check_rules, load_rules
from slurm_gpu.node.process.procfs import Processes
from tests.node.fakeproc import FakeProc, write

SHIPPED_RULES = load_rules(SHIPPED[0])


def found(**traces: object) -> RecognizedApplication | None:
    return recognise(ProcessEvidence(pid=1, **traces), SHIPPED_RULES, lambda name: len(name))  # type: ignore[arg-type]


TORCH = frozenset({"libtorch_cuda.so", "libtorch_python.so", "libcudart.so.12", "libcuda.so.1"})


@pytest.mark.parametrize(
    ("traces", "name"),
    [
        ({"executable": "python3.11", "libraries": TORCH}, "PyTorch"),
        ({"executable": "python3", "libraries": TORCH, "imports": {"lightning"}}, "PyTorch Lightning"),
        (
            {"executable": "python3", "libraries": TORCH, "packages": {"torch", "tokenizers"}},
            "Hugging Face Transformers",
        ),
        ({"executable": "python3", "libraries": TORCH, "imports": {"deepspeed", "trl"}}, "DeepSpeed"),
        ({"executable": "python3", "libraries": TORCH, "packages": {"vllm"}}, "vLLM"),
        ({"executable": "python3", "module": "torch.distributed.run", "imports": {"torch"}}, "PyTorch"),
        ({"executable": "python3", "script": "torchrun"}, "PyTorch"),
        ({"executable": "python3", "libraries": {"libtensorflow_framework.so.2"}}, "TensorFlow"),
        ({"executable": "python3", "libraries": TORCH | {"libtensorflow_cc.so.2"}}, "PyTorch"),
        ({"executable": "python3", "packages": {"jaxlib"}}, "JAX"),
        ({"executable": "lmp_kokkos", "libraries": {"libcuda.so.1"}}, "LAMMPS"),
        ({"executable": "gmx_mpi"}, "GROMACS"),
        ({"executable": "namd3"}, "NAMD"),
        ({"executable": "pmemd.cuda.MPI"}, "AMBER"),
        ({"executable": "qmcpack_complex"}, "QMCPACK"),
        ({"executable": "python3", "packages": {"hoomd"}}, "HOOMD-blue"),
        ({"executable": "vasp_std"}, "VASP"),
        ({"executable": "pw.x"}, "Quantum ESPRESSO"),
        ({"executable": "cp2k.psmp"}, "CP2K"),
        ({"executable": "python3", "libraries": {"libOpenMM.so"}}, "OpenMM"),
        ({"executable": "relion_refine_mpi"}, "RELION"),
        ({"executable": "python3", "script": "run_alphafold.py", "imports": {"jax"}}, "AlphaFold"),
        ({"executable": "all_reduce_perf"}, "NCCL tests"),
        ({"executable": "python3", "script": "jupyter-lab"}, "Jupyter"),
        ({"executable": "python3", "module": "ipykernel_launcher"}, "Jupyter"),
        ({"executable": "python3", "module": "ipykernel_launcher", "libraries": TORCH}, "PyTorch"),
        ({"executable": "R"}, "R"),
        ({"executable": "MATLAB"}, "MATLAB"),
        ({"executable": "julia"}, "Julia"),
        ({"executable": "ollama"}, "Ollama"),
        ({"executable": "llama-server"}, "llama.cpp"),
        ({"executable": "blender"}, "Blender"),
        ({"executable": "comsollauncher"}, "COMSOL"),
        ({"executable": "caffe"}, "Caffe"),
        ({"executable": "python3"}, "Python"),
        ({"executable": "my_solver", "libraries": {"libcudart.so.12"}}, "CUDA program"),
        ({"executable": "bash"}, None),
        ({"executable": "my_solver"}, None),
        ({}, None),
    ],
)
def test_the_shipped_rules(traces: dict[str, object], name: str | None) -> None:
    finding = found(**{k: frozenset(v) if isinstance(v, set) else v for k, v in traces.items()})
    assert (None if finding is None else finding.rule.name) == name


@pytest.mark.parametrize(
    ("executable", "arguments", "parameters"),
    [
        (
            "python3",
            "python3 train.py --batch-size 256 --lr=1e-3 --epochs 90 --model resnet50 --token hf_SECRET",
            {"batch_size": "256", "learning_rate": "1e-3", "epochs": "90", "model": "resnet50"},
        ),
        (
            "python3",
            "python3 run.py --per_device_train_batch_size=8 --model_name_or_path /home/alice/Llama-2-7b/",
            {"batch_size": "8", "model": "Llama-2-7b"},
        ),
        ("lmp", "lmp -sf gpu -in in.lj", {"input_bytes": "5", "accelerator": "gpu"}),
        (
            "gmx",
            "gmx mdrun -s a.tpr -nb gpu",
            {"command": "mdrun", "input_bytes": "5", "nonbonded_on": "gpu"},
        ),
        (
            "all_reduce_perf",
            "./build/all_reduce_perf -b 8 -e 8G -g 4",
            {"test": "all_reduce", "max_bytes": "8G", "gpus_per_process": "4"},
        ),
    ],
)
def test_parameters(executable: str, arguments: str, parameters: dict[str, str]) -> None:
    libraries = TORCH if executable == "python3" else frozenset()
    finding = found(executable=executable, arguments=arguments, libraries=libraries)
    assert finding is not None
    assert finding.parameters == parameters


def test_the_model_of_vllm_is_recognised() -> None:
    finding = found(
        executable="python3",
        packages=frozenset({"vllm"}),
        arguments="python3 /env/bin/vllm serve meta-llama/Llama-3-8B --tensor-parallel-size 4 --api-key XYZ",
    )
    assert finding is not None
    assert finding.parameters == {"model": "meta-llama/Llama-3-8B", "tensor_parallel": "4"}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("resnet50", "resnet50"),
        ("meta-llama/Llama-2-7b", "meta-llama/Llama-2-7b"),
        ("/home/alice/models/mine", "mine"),
        ("~/models/mine/", "mine"),
        ("~alice", "alice"),
        ("../alice/mine", "mine"),
        ("$HOME/mine", "mine"),
        ("s3://bucket/key/mine", "mine"),
        ("data:/home/alice/x", "x"),
        ("'quoted'", "quoted"),
        ("a\x1b[31m\u202eb", "a?[31m?b"),
        ("x" * 500, "x" * 64),
        ("/", None),
        (" ", None),
    ],
)
def test_values_are_tidied(value: str, kept: str | None) -> None:
    assert tidy(value) == kept


@given(st.text())
def test_a_kept_value_is_short_plain_and_no_home_directory(value: str) -> None:
    kept = tidy(value)
    if kept is not None:
        assert 0 < len(kept) <= 64
        assert re.fullmatch(r"[ -~]+", kept)
        assert "/home/" not in kept
        assert not kept.startswith(("/", "~"))


RULES = check_rules(
    parse_yaml(
        """
version: 1
applications:
  Special: {priority: 60, any: [{executable: app, arguments: '--special'}]}
  General: {any: [{executable: [app, tool]}], parameters: {n: '-n (\\d{1,3})'}}
""",
        "rules.yaml",
    )
)


def process(
    proc: FakeProc, pid: int, arguments: str, *, executable: str = "app", size: int = 1 << 20
) -> None:
    proc.process(pid)
    directory = proc.root / str(pid)
    text = (directory / "stat").read_text().replace(f" {1 << 20} ", f" {size} ")
    (directory / "stat").write_text(text)
    write(directory / "cmdline", arguments.replace(" ", "\0") + "\0")
    (directory / "exe").unlink(missing_ok=True)
    (directory / "exe").symlink_to(f"/opt/{executable}")


def test_a_finding_names_its_rule_and_the_matching_traces() -> None:
    finding = recognise(
        ProcessEvidence(pid=1, executable="app", arguments="app -n 12"), RULES, lambda _: None
    )
    assert finding is not None
    assert (finding.rule.name, finding.rule.place) == ("General", "rules.yaml:5:3")
    assert (finding.because, finding.parameters) == (["executable app"], {"n": "12"})


def test_the_best_finding_is_kept_and_unchanged_processes_are_not_read_again(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    job = Recognition(RULES, Processes(proc.root))
    process(proc, 5, "app")
    job.scan([5])
    assert job.best is not None
    assert job.best.rule.name == "General"
    (proc.root / "5" / "cmdline").write_text("app\0--special\0")
    job.scan([5])
    assert job.best.rule.name == "General"  # no sign of a change
    process(proc, 5, "app --special", size=400 << 20)  # it has loaded a library
    job.scan([5])
    assert job.best.rule.name == "Special"
    process(proc, 5, "tool -n 1", executable="tool", size=800 << 20)
    job.scan([5])
    assert job.best.rule.name == "Special"
    job.scan([])
    assert job.best.rule.name == "Special"


def test_a_scan_reads_few_processes_and_the_next_continues(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    for pid in range(1, PROCESSES_PER_SCAN + 2):
        process(proc, pid, "x", executable="x")
    process(proc, PROCESSES_PER_SCAN + 1, "app")
    job = Recognition(RULES, Processes(proc.root))
    pids = range(1, PROCESSES_PER_SCAN + 2)
    job.scan(pids)
    assert job.best is None
    job.scan(pids)
    assert job.best is not None


def test_only_sizes_of_the_user_s_own_files_are_reported(tmp_path: Path) -> None:
    directory = tmp_path / "proc" / "7"
    directory.mkdir(parents=True)
    (directory / "cwd").symlink_to(tmp_path)
    (directory / "root").symlink_to("/")
    write(tmp_path / "in.lj", "x" * 321)
    processes = Processes(tmp_path / "proc")
    assert file_size(processes, 7, "in.lj") == 321
    assert file_size(processes, 7, str(tmp_path / "in.lj")) == 321
    assert file_size(processes, 7, "proc") is None
    assert file_size(processes, 7, "none") is None
    assert file_size(processes, 7, "a\0b") is None
    if os.geteuid() == 0:
        os.chown(tmp_path / "in.lj", 12345, 12345)
        assert file_size(processes, 7, "in.lj") is None


def namespaces(root: Path, pid: int, name: str) -> None:
    directory = root / str(pid) / "ns"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mnt").unlink(missing_ok=True)
    (directory / "mnt").symlink_to(name)


@pytest.mark.parametrize(
    ("file", "content", "contained"),
    [
        ("root/.singularity.d/env", "", True),
        ("root/.dockerenv", "", True),
        ("cgroup", "0::/system.slice/docker-abc.scope\n", True),
        ("mountinfo", "1 2 3:4 /var/lib/enroot/pyxis_7 / rw - ext4 /dev/sda rw\n", True),
        ("environ", "A=1\0APPTAINER_CONTAINER=/x.sif\0", True),
        ("environ", "container=podman\0", True),
        ("environ", "MY=container=podman\0", False),
        ("mountinfo", "1 2 3:4 / / rw - xfs /dev/sda rw\n9 1 3:4 /docker /mnt rw - xfs /dev/sda rw\n", False),
    ],
)
def test_containers(tmp_path: Path, file: str, content: str, contained: bool) -> None:

    namespaces(tmp_path, os.getpid(), "mnt:[1]")
    namespaces(tmp_path, 7, "mnt:[2]")
    write(tmp_path / "7" / file, content)
    assert in_container(Processes(tmp_path), 7) is contained
    namespaces(tmp_path, 7, "mnt:[1]")
    assert in_container(Processes(tmp_path), 7) is False
    assert in_container(Processes(tmp_path), 8) is None


def test_container_marks_of_the_node_s_own_image_are_ignored(tmp_path: Path) -> None:
    namespaces(tmp_path, os.getpid(), "mnt:[1]")
    namespaces(tmp_path, 7, "mnt:[2]")
    for pid in (7, os.getpid()):
        write(tmp_path / str(pid) / "root" / ".dockerenv", "")
    assert in_container(Processes(tmp_path), 7) is False
    write(tmp_path / "7" / "root" / ".singularity.d" / "env", "")
    assert in_container(Processes(tmp_path), 7) is True


@given(st.binary())
def test_mountinfo_of_any_kind(data: bytes) -> None:
    root_mount(data)


def test_a_real_python_of_this_machine() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        job = Recognition(SHIPPED_RULES, Processes())
        job.scan([run.pid])
        assert job.best is not None
        assert (job.best.rule.name, job.container) == ("Python", False)
        run.communicate()
