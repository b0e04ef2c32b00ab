"""Run Slurm's commands, and report why one failed."""

from __future__ import annotations

import codecs
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from slurm_gpu.errors import SlurmError

PING_TIMEOUT_S = 5.0
QUERY_TIMEOUT_S = 60.0
ACCOUNTING_TIMEOUT_S = 600.0

_PIECE_BYTES = 1 << 20

# Maximum length of a command in an error: enough to recognise the command, without its list of columns.
_SHOWN_CHARACTERS = 80

_ENVIRONMENT = {
    "SLURM_TIME_FORMAT": "%s",
    "SLURM_BITSTR_LEN": "0",  # array expressions in full, not cut at 64 characters
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
}
_FOREIGN = ("SACCT_", "SCONTROL_", "SQUEUE_", "SLURM_CLUSTERS", "SLURM_JOB_ID", "SLURM_FEDERATION")


def query_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the caller's environment with the settings for the output of Slurm's commands."""
    return {k: v for k, v in environ.items() if not k.startswith(_FOREIGN)} | _ENVIRONMENT


# The end of the message of Slurm's commands if there is neither a slurm.conf nor a slurmctld that sends it.
_NO_CONFIGURATION = "Could not establish a configuration source"

# Runs a command with exactly this environment and a timeout in seconds, and returns its standard output.
# Raises SlurmError with the command and its standard error if it fails.
CommandRunner = Callable[[Sequence[str], Mapping[str, str], float], str]
# Runs a command in the same way, but yields its output, which may be large, in pieces, with a timeout for
# each. It may raise SlurmError after some pieces.
Stream = Callable[[Sequence[str], Mapping[str, str], float], Generator[str, None, None]]


def run_command(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
    """Run a Slurm command and return its output."""
    _check_configuration(argv, environ)
    try:
        done = subprocess.run(
            argv, env=environ, timeout=timeout_s, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise _not_run(argv, error) from None
    except subprocess.TimeoutExpired:
        raise _timed_out(argv, timeout_s) from None
    if done.returncode != 0:
        raise _failed(argv, done.returncode, done.stderr.strip() or done.stdout.strip())
    return done.stdout.decode("utf-8", "replace")


def stream_command(
    argv: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> Generator[str, None, None]:
    """Run a Slurm command and yield its output in pieces. Closing the generator ends the command."""
    _check_configuration(argv, environ)
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            raise _not_run(argv, error) from None
        with process:
            try:
                yield from _pieces(process, argv, timeout_s)
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise _timed_out(argv, timeout_s) from None
            finally:
                process.kill()  # this has no effect if the process has ended
        if process.returncode != 0:
            errors.seek(0)
            raise _failed(argv, process.returncode, errors.read().strip())


def _pieces(process: subprocess.Popen[bytes], argv: Sequence[str], timeout_s: float) -> Iterator[str]:
    assert process.stdout is not None
    out = process.stdout.fileno()
    ready = select.poll()  # select() supports no descriptor above 1023
    ready.register(out, select.POLLIN)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while ready.poll(timeout_s * 1000):
        piece = os.read(out, _PIECE_BYTES)
        yield decoder.decode(piece, final=not piece)
        if not piece:
            return
    raise _timed_out(argv, timeout_s)


def in_one_piece(run: CommandRunner) -> Stream:
    """Return a stream that yields the whole output of `run`."""

    def stream(
        argv: Sequence[str], environ: Mapping[str, str], timeout_s: float
    ) -> Generator[str, None, None]:
        yield run(argv, environ, timeout_s)

    return stream


def _check_configuration(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    # Slurm's commands retry for a minute if the file that SLURM_CONF names is missing.
    conf = environ.get("SLURM_CONF")
    if conf and not Path(conf).exists():
        raise SlurmError(f"`{_shown(argv)}` cannot be run: SLURM_CONF={conf} does not exist")


def _not_run(argv: Sequence[str], error: OSError) -> SlurmError:
    if isinstance(error, FileNotFoundError):
        return SlurmError(f"{argv[0]} is not on the PATH; install Slurm's client commands")
    return SlurmError(f"`{_shown(argv)}` cannot be run: {error.strerror}")


def _timed_out(argv: Sequence[str], timeout_s: float) -> SlurmError:
    return SlurmError(f"`{_shown(argv)}` gave no answer within {timeout_s:g} s")


def _failed(argv: Sequence[str], returncode: int, output: bytes) -> SlurmError:
    words = output.decode("utf-8", "replace") or "it printed nothing"
    if _NO_CONFIGURATION in words:
        return SlurmError(
            f"`{_shown(argv)}` found no slurm.conf on this host: set SLURM_CONF to its path, or copy the "
            "file from the controller to /etc/slurm"
        )
    return SlurmError(f"`{_shown(argv)}` failed ({returncode}): {words}")


def _shown(argv: Sequence[str]) -> str:
    return shorten(" ".join(argv), _SHOWN_CHARACTERS, placeholder=" …")
