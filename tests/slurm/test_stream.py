"""The output of a command is streamed in pieces, and the command ends when its reader stops."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import CommandClient
from slurm_gpu.slurm.runner import stream_command
from tests.slurm.recorded import RecordedSlurm

PATH = {"PATH": "/bin:/usr/bin"}


def test_pieces_come_before_the_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    command = ["sh", "-c", f"echo one; read word <{tmp_path / 'go'}; echo $word"]
    with closing(stream_command(command, PATH, 5.0)) as pieces:
        assert next(pieces) == "one\n"
        (tmp_path / "go").write_text("two\n")
        assert "".join(pieces) == "two\n"


def test_a_character_that_comes_in_two_pieces_is_one() -> None:
    command = r"printf '\303'; sleep 0.05; printf '\274\377'"
    assert "".join(stream_command(["sh", "-c", command], PATH, 5.0)) == "ü\N{REPLACEMENT CHARACTER}"


def test_a_failed_stream_raises_its_stderr_after_its_output() -> None:
    pieces = stream_command(["sh", "-c", "echo row; echo no >&2; exit 4"], PATH, 5.0)
    assert next(pieces) == "row\n"
    with pytest.raises(SlurmError, match=r"failed \(4\): no"):
        list(pieces)


def test_much_stderr_does_not_block_a_command() -> None:
    command = "head -c 300000 /dev/zero >&2; echo done"
    assert "".join(stream_command(["sh", "-c", command], PATH, 5.0)) == "done\n"


def test_a_silent_or_missing_command_is_an_error() -> None:
    with pytest.raises(SlurmError, match=r"`sleep 5` gave no answer within 0\.05 s"):
        list(stream_command(["sleep", "5"], PATH, 0.05))
    with pytest.raises(SlurmError, match="sacct-that-is-not-there is not on the PATH"):
        list(stream_command(["sacct-that-is-not-there"], {}, 5.0))


def test_closing_the_stream_ends_the_command() -> None:
    with closing(stream_command(["sh", "-c", "echo $$; exec sleep 100"], PATH, 5.0)) as pieces:
        pid = int(next(pieces))
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_accounting_is_read_from_a_stream() -> None:
    slurm = RecordedSlurm()
    whole = [run.job_id for run in CommandClient(slurm, {}).accounting(0)]

    def letter_by_letter(argv, environ, timeout_s):
        yield from slurm(argv, environ, timeout_s)

    assert [run.job_id for run in CommandClient(slurm, {}, letter_by_letter).accounting(0)] == whole
