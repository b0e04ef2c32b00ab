"""A session lasts until its time limit, and no other cookie gives access."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import InputError
from slurm_gpu.monitor.signin.revoked_sessions import FILE_NAME, RevokedSessions
from slurm_gpu.monitor.signin.sessions import KEY_BYTES, Sessions, session_key

KEY = b"k" * KEY_BYTES


class Wall:
    now_s = 1_795_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def sessions(wall: Wall) -> Sessions:
    return Sessions(KEY, wall, lifetime_s=1000, idle_s=100)


def test_a_cookie_brings_its_session_back(sessions: Sessions) -> None:
    session = sessions.begin("alice", 1001)
    assert sessions.open(sessions.seal(session)) == session


def test_a_session_ends_after_its_idle_time(sessions: Sessions, wall: Wall) -> None:
    cookie = sessions.seal(sessions.begin("alice", 1001))
    wall.now_s += 99
    assert sessions.open(cookie) is not None
    wall.now_s += 1
    assert sessions.open(cookie) is None


def test_a_used_session_continues_but_not_after_its_lifetime(sessions: Sessions, wall: Wall) -> None:
    session = sessions.begin("alice", 1001)
    began_s = wall.now_s
    while (found := sessions.open(sessions.seal(session))) is not None:
        session = sessions.seen(found) or found
        wall.now_s += 50
    assert wall.now_s == began_s + 1000


def test_a_cookie_is_not_renewed_with_each_request(sessions: Sessions, wall: Wall) -> None:
    session = sessions.begin("alice", 1001)
    wall.now_s += 9
    assert sessions.seen(session) is None
    wall.now_s += 1
    assert sessions.seen(session) is not None


def test_signing_out_ends_a_session_for_every_copy_of_its_cookie(sessions: Sessions, wall: Wall) -> None:
    session = sessions.begin("alice", 1001)
    stolen = sessions.seal(session)
    other = sessions.seal(sessions.begin("alice", 1001))
    sessions.end(session)
    assert sessions.open(stolen) is None
    assert sessions.open(other) is not None


def test_a_cookie_from_the_future_is_none(sessions: Sessions, wall: Wall) -> None:
    cookie = sessions.seal(sessions.begin("alice", 1001))
    wall.now_s -= 61
    assert sessions.open(cookie) is None


def test_another_key_opens_nothing(sessions: Sessions, wall: Wall) -> None:
    cookie = Sessions(b"x" * KEY_BYTES, wall).seal(sessions.begin("root", 0))
    assert sessions.open(cookie) is None


@given(st.data())
def test_no_change_of_a_cookie_opens_anything_else(data: st.DataObject) -> None:
    sessions = Sessions(KEY, Wall())
    session = sessions.begin("alice", 1001)
    cookie = sessions.seal(session)
    at = data.draw(st.integers(0, len(cookie) - 1))
    sign = data.draw(st.characters(min_codepoint=33, max_codepoint=0x2FF))
    cut = data.draw(st.integers(0, 1))
    changed = cookie[:at] + sign + cookie[at + cut :]
    assert changed == cookie or sessions.open(changed) is None


@given(st.text(max_size=300))
def test_no_text_is_a_cookie_or_an_error(text: str) -> None:
    assert Sessions(KEY, Wall()).open(text) is None


def test_a_short_key_is_none(wall: Wall) -> None:
    with pytest.raises(ValueError, match="at least 32 bytes, not 5"):
        Sessions(b"short", wall)


def test_without_a_file_each_start_has_a_key_of_its_own() -> None:
    assert session_key(None) != session_key(None)


def test_the_key_s_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(InputError, match=r"cannot be read \(No such file or directory\); create it: "):
        session_key(path)
    path.write_bytes(KEY[:-1])
    path.chmod(0o600)
    with pytest.raises(InputError, match="has 31 bytes, but at least 32 are required"):
        session_key(path)
    path.write_bytes(KEY)
    assert session_key(path) == KEY
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(InputError, match=f"other users may read it .mode {mode:04o}."):
            session_key(path)


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file away needs root")
def test_a_key_that_another_user_could_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(InputError, match="belongs to uid 65534"):
        session_key(path)


# Sessions that were ended early


def test_revoked_sessions_are_stored_until_they_would_have_expired(wall: Wall, tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    ended = RevokedSessions(wall, path)
    ended.add("first", wall.now_s + 10)
    wall.now_s += 10
    ended.add("second", wall.now_s + 10)
    assert json.loads(path.read_text()) == {"second": wall.now_s + 10}
    assert path.stat().st_mode & 0o777 == 0o600
    assert "second" in RevokedSessions(wall, path)


def test_a_disk_that_is_full_keeps_no_user_signed_in(
    wall: Wall, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ended = RevokedSessions(wall, tmp_path / "none" / FILE_NAME)
    ended.add("one", wall.now_s + 10)
    assert "one" in ended
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", '{"x": "y"}', "{", "[" * 100_000])
def test_a_damaged_list_of_who_signed_out_is_no_empty_one(wall: Wall, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(InputError, match="who signed out would otherwise be signed in again"):
        RevokedSessions(wall, tmp_path / FILE_NAME)


def test_however_many_sign_out_memory_is_bounded(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_gpu.monitor.signin.revoked_sessions.MOST", 3)
    ended = RevokedSessions(wall)
    for number in range(5):
        ended.add(str(number), wall.now_s + 10)
    assert [str(number) in ended for number in range(5)] == [False, False, True, True, True]
