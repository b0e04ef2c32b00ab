"""Commands return the right exit codes and print errors without tracebacks."""

import os
import sys
from pathlib import Path

import pytest

from slurm_gpu import __version__
from slurm_gpu.cli import main as main_module
from slurm_gpu.cli.examples import EXAMPLES
from slurm_gpu.errors import NotAllowedError, SlurmError
from tests.cli.conftest import CommandLine

ROOT = Path(__file__).resolve().parents[2]


def test_version_and_help(slurm_gpu: CommandLine):
    assert slurm_gpu("--version") == 0
    assert slurm_gpu.out == f"slurm-gpu {__version__}\n"
    assert slurm_gpu("--help") == 0
    assert "doctor" in slurm_gpu.out


@pytest.mark.parametrize("command", main_module.SUMMARIES)
def test_every_summary_of_a_command_fits_80_columns(slurm_gpu: CommandLine, command: str):
    assert slurm_gpu(command, "--help") == 0
    _, _, commands = slurm_gpu.out.partition("\nCommands:\n")
    assert "..." not in commands


@pytest.mark.parametrize("command", main_module.SUMMARIES)
def test_every_command_can_be_loaded_and_has_help(slurm_gpu: CommandLine, command: str):
    assert slurm_gpu(command, "--help") == 0
    assert f"slurm-gpu {command}" in slurm_gpu.out


@pytest.mark.parametrize("argv", [("nonsense",), ("jobs", "--colour"), ("job",), ("jobs", "--limit", "0")])
def test_wrong_usage_exits_with_2(slurm_gpu: CommandLine, argv: tuple[str, ...]):
    assert slurm_gpu(*argv) == 2
    assert slurm_gpu.err.startswith("slurm-gpu: ")
    assert slurm_gpu.err.endswith("--help`.\n")


def test_an_invalid_site_file_exits_with_2_and_lists_every_mistake(slurm_gpu: CommandLine):
    slurm_gpu.config.write_text("cluster: neuron\nzones: 5\nteam: 6\n")
    assert slurm_gpu("jobs") == 2
    assert f"{slurm_gpu.config}:2:8: zones must contain" in slurm_gpu.err
    assert f"{slurm_gpu.config}:3:7: team: 6" in slurm_gpu.err
    assert slurm_gpu.out == ""


def test_another_site_file_can_be_named(slurm_gpu: CommandLine, tmp_path):
    other = tmp_path / "other.yaml"
    assert slurm_gpu("--config", str(other), "jobs") == 2
    assert slurm_gpu.err == f"slurm-gpu: {other}: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("argv", [["nodes"], ["explain", "--", "sbatch", "--gpus=1", "x"]])
def test_a_named_site_file_is_read_even_if_no_setting_is_needed(
    slurm_gpu: CommandLine, tmp_path: Path, argv: list[str]
):
    broken = tmp_path / "broken.yaml"
    broken.write_text("zones: 5\n")
    assert slurm_gpu("--config", str(broken), *argv) == 2
    assert f"{broken}:1:8: zones must contain" in slurm_gpu.err
    assert slurm_gpu.out == ""


def test_a_mistyped_command_is_reported_with_the_nearest_one(slurm_gpu: CommandLine):
    assert slurm_gpu("jbos") == 2
    assert "no such command 'jbos'. Did you mean 'jobs'?" in slurm_gpu.err
    assert slurm_gpu("policy", "aply") == 2
    assert "'apply'" in slurm_gpu.err


def test_the_help_of_each_command_ends_with_examples_that_name_it(slurm_gpu: CommandLine):
    assert EXAMPLES.keys() == main_module.SUMMARIES.keys()
    for command, examples in EXAMPLES.items():
        assert slurm_gpu(command, "--help") == 0
        _, _, shown = slurm_gpu.out.partition("\n  Examples:\n")
        for typed, meaning in examples:
            assert f"  {meaning}\n      {typed}\n" in shown
            assert typed.split()[:2] == ["slurm-gpu", command]


def test_failures_of_slurm_exit_with_3(slurm_gpu: CommandLine):
    def no_slurm():
        raise SlurmError(
            "`scontrol show node` failed (1): slurm_load_node error: Unable to contact slurmctld"
        )

    slurm_gpu.site.connect_slurm = no_slurm
    assert slurm_gpu("nodes") == 3
    assert slurm_gpu.err.startswith("slurm-gpu: `scontrol show node` failed (1)")
    assert "Traceback" not in slurm_gpu.err


def test_a_request_that_is_not_allowed_exits_with_2(slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise NotAllowedError("not allowed: only operators may see them (reported by slurm-gpudbd at /run/x)")

    monkeypatch.setattr(slurm_gpu.database, "acts", refuse)
    assert slurm_gpu("audit") == 2
    assert (
        slurm_gpu.err
        == "slurm-gpu: not allowed: only operators may see them (reported by slurm-gpudbd at /run/x)\n"
    )


def test_the_daemon_that_is_down_is_named(slurm_gpu: CommandLine):
    def no_slurm():
        raise SlurmError("`scontrol ping` failed (1): Slurmctld(primary) at head is DOWN")

    slurm_gpu.site.connect_slurm = no_slurm
    assert slurm_gpu("nodes") == 3
    assert slurm_gpu.err.splitlines()[1:] == [
        "slurmctld does not answer: run `slurm-gpu doctor` to see what to start"
    ]


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("alembic", "install slurm-gpu-db, or slurm-gpu[db] with pip"),
        ("numpy.linalg", "install slurm-gpu-db, or slurm-gpu[db] with pip"),
        ("pyarrow", "install slurm-gpu-report, or slurm-gpu[report] with pip"),
        ("rich", "install slurm-gpu-client, or slurm-gpu[client] with pip"),
        ("yaml", "reinstall slurm-gpu"),
    ],
)
def test_a_missing_python_module_is_named_with_its_package(slurm_gpu: CommandLine, module: str, remedy: str):
    def no_module():
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    slurm_gpu.site.connect_slurm = no_module
    assert slurm_gpu("nodes") == 3
    assert slurm_gpu.err == (f"slurm-gpu: the Python module {module} is not installed: {remedy}\n")


def test_each_module_is_in_the_lock_file_of_its_package():
    for module, (package, extra) in main_module.CARRIED_BY.items():
        library = {"sklearn": "scikit-learn"}.get(module, module)
        lock = (ROOT / f"packaging/requirements/{extra}.txt").read_text()
        assert package == f"slurm-gpu-{extra}"
        assert f"\n{library}==" in lock


@pytest.mark.parametrize("argv", [["jobs", "--help"], ["nodes"], ["nodes", "--csv"]])
def test_a_closed_pipe_exits_with_0(slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch, argv: list[str]):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main_module.main(argv, slurm_gpu.site) == 0


def test_with_slurm_gpu_debug_errors_are_raised(slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_GPU_DEBUG", "1")
    slurm_gpu.database.state = None
    slurm_gpu.config.write_text("cluster: [\n")
    with pytest.raises(Exception, match="is not valid YAML"):
        slurm_gpu("jobs")


def test_an_unexpected_exception_exits_with_3(slurm_gpu: CommandLine):
    def broken():
        raise KeyError("n7")

    slurm_gpu.site.connect_slurm = broken
    assert slurm_gpu("nodes") == 3
    assert slurm_gpu.err == "slurm-gpu: KeyError: 'n7' (SLURM_GPU_DEBUG=1 prints a traceback)\n"


def test_an_unknown_user_is_reported_for_both_names_of_the_option(slurm_gpu: CommandLine):
    for option in ("--as", "--user"):
        assert slurm_gpu("explain", option, "no-such-user", "--", "sbatch", "--wrap=true") == 2
        assert "--as (--user): 'no-such-user' is not a user of this host" in slurm_gpu.err
    assert slurm_gpu("quota", "--user", "no-such-user") == 2
    assert "--user: 'no-such-user' is not a user of this host" in slurm_gpu.err


@pytest.mark.parametrize(
    "argv",
    [
        ("quota",),
        ("forecast", "--", "sbatch", "--wrap=true"),
        ("explain", "--", "sbatch", "--wrap=true"),
    ],
)
def test_a_caller_without_a_user_name_gets_a_message_with_the_uid(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert slurm_gpu(*argv) == 2
    assert (
        "uid 4000000001 has no user name on this host (getent passwd 4000000001): run this as another user"
        in slurm_gpu.err
    )
    assert "None" not in slurm_gpu.err
