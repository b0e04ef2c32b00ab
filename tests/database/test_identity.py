import grp
import os
import pwd

import pytest

from slurm_gpu import munge
from slurm_gpu.config.site import Operators
from slurm_gpu.errors import MungedUnavailableError
from slurm_gpu.http.identity import Authenticator, NotAuthenticatedError
from tests.database.samples import SLURM_UID, FakeClock

DAEMON = pwd.getpwnam("daemon")
NO_SUCH_UID = 3_999_999_999


def authenticator(operators: Operators, munge_socket: str | None = None) -> Authenticator:
    return Authenticator(operators, lambda: SLURM_UID, FakeClock(), munge_socket)


def test_root_and_slurm_user_see_and_write_everything() -> None:
    for uid in (0, SLURM_UID):
        caller = authenticator(Operators()).by_uid(uid)
        assert (caller.sees_all, caller.writes) == (True, True)


def test_operators_see_everything_and_write_nothing() -> None:
    group = grp.getgrgid(DAEMON.pw_gid).gr_name
    for operators in (Operators(users=("daemon",)), Operators(unix_groups=("no-such-group", group))):
        caller = authenticator(operators).by_uid(DAEMON.pw_uid)
        assert (caller.sees_all, caller.writes) == (True, False)


def test_everyone_else_sees_their_own() -> None:
    caller = authenticator(Operators(users=("carol",), unix_groups=("no-such-group",))).by_uid(DAEMON.pw_uid)
    assert (caller.sees_all, caller.writes) == (False, False)
    assert caller.may_see(DAEMON.pw_uid)
    assert not caller.may_see(1001)
    assert not caller.may_see(None)


def test_a_uid_without_a_name_is_not_a_user() -> None:
    caller = authenticator(Operators(users=("None", ""), unix_groups=("root",))).by_uid(NO_SUCH_UID)
    assert (caller.user, caller.sees_all) == (None, False)
    assert not caller.may_see(None)


def test_without_slurm_s_configuration_only_root_writes() -> None:
    unknown = Authenticator(Operators(), lambda: None, FakeClock())
    assert unknown.by_uid(0).writes
    assert not unknown.by_uid(SLURM_UID).writes


def test_an_unreachable_munged_decides_nothing_about_the_caller() -> None:
    with pytest.raises(MungedUnavailableError):
        authenticator(Operators(), "/nonexistent").by_credential("MUNGE x", "GET", "/", b"")


def test_a_credential_binds_method_target_and_body(munge_socket: str) -> None:
    who = authenticator(Operators(), munge_socket)
    digest = munge.request_digest("POST", "/v1/node", b"body")
    for method, target, body in (
        ("GET", "/v1/node", b"body"),
        ("POST", "/", b"body"),
        ("POST", "/v1/node", b""),
    ):
        with pytest.raises(NotAuthenticatedError, match="created for another request"):
            who.by_credential(f"MUNGE {munge.encode(digest, munge_socket)}", method, target, body)
    credential = munge.encode(digest, munge_socket)
    assert who.by_credential(f"munge  {credential} ", "POST", "/v1/node", b"body").uid == os.getuid()
    with pytest.raises(NotAuthenticatedError, match="Replayed"):
        who.by_credential(f"MUNGE {credential}", "POST", "/v1/node", b"body")
