"""A real munged accepts each credential once, and rejects modified and malformed credentials."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu import munge
from slurm_gpu.errors import MungeError
from tests.database.servers import running_munged


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    if shutil.which("munged") is None:
        pytest.skip("munged is not installed")
    # tmp_path may be too long: the path of a Unix socket has at most 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="sgmunge-") as directory,
        running_munged(Path(directory)) as place,
    ):
        yield str(place)


def test_credential_has_sender_and_payload(socket: str):
    for payload in (b"", b"\x00binary\xff", b"x" * 10_000):
        credential = munge.decode(munge.encode(payload, socket), socket)
        assert (credential.uid, credential.gid, credential.payload) == (os.geteuid(), os.getegid(), payload)


def test_credential_is_valid_once(socket: str):
    credential = munge.encode(b"once", socket)
    munge.decode(credential, socket)
    with pytest.raises(MungeError, match="Replayed credential"):
        munge.decode(credential, socket)


def test_modified_credential_is_rejected(socket: str):
    credential = munge.encode(b"payload", socket)
    middle = len(credential) // 2
    changed = credential[:middle] + ("A" if credential[middle] != "A" else "B") + credential[middle + 1 :]
    with pytest.raises(MungeError, match="MUNGE: "):
        munge.decode(changed, socket)


@pytest.mark.parametrize("text", ["", "nonsense", "MUNGE:", "ünïcödé"])
def test_malformed_credential_is_rejected(socket: str, text: str):
    with pytest.raises(MungeError, match="MUNGE: "):
        munge.decode(text, socket)


def test_missing_munged_is_an_error_with_the_socket(tmp_path: Path):
    missing = tmp_path / "no-socket"
    with pytest.raises(MungeError, match=str(missing)):
        munge.encode(b"", str(missing))


def test_credential_is_bound_to_method_target_and_body():
    base = munge.request_digest("POST", "/v1/node?x=1", b"body")
    assert len(base) == 64
    assert base != munge.request_digest("GET", "/v1/node?x=1", b"body")
    assert base != munge.request_digest("POST", "/v1/node?x=2", b"body")
    assert base != munge.request_digest("POST", "/v1/node?x=1", b"bodY")
