"""A token can be used once, within a minute, and the number of tokens is limited."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm_gpu.monitor.signin.tokens import (
    GOOD_FOR_S,
    MOST_TOKENS,
    TOKENS_OF_A_USER,
    FullError,
    TokenOwner,
    Tokens,
)

ALICE = TokenOwner("alice", 1001)


class Now:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def tokens(now: Now) -> Tokens:
    return Tokens(now)


def test_it_is_good_once(tokens: Tokens) -> None:
    token = tokens.issue(ALICE)
    assert tokens.take(token) == ALICE
    assert tokens.take(token) is None


def test_after_a_minute_it_is_good_no_more(tokens: Tokens, now: Now) -> None:
    first, second = tokens.issue(ALICE), tokens.issue(ALICE)
    now.now += GOOD_FOR_S - 1
    assert tokens.take(first) == ALICE
    now.now += 1
    assert tokens.take(second) is None


def test_no_other_text_is_one(tokens: Tokens) -> None:
    token = tokens.issue(ALICE)
    for other in ("", token[:-1], token + "A", token.swapcase(), "\ud800", "x" * 10_000):
        assert tokens.take(other) is None
    assert tokens.take(token) == ALICE


def test_only_the_latest_tokens_of_a_user_are_valid(tokens: Tokens) -> None:
    issued = [tokens.issue(ALICE) for _ in range(TOKENS_OF_A_USER + 2)]
    other = tokens.issue(TokenOwner("bob", 1002))
    assert [tokens.take(token) is not None for token in issued] == [False] * 2 + [True] * TOKENS_OF_A_USER
    assert tokens.take(other) is not None


def test_the_number_of_valid_tokens_is_limited(tokens: Tokens, now: Now) -> None:
    for uid in range(MOST_TOKENS):
        tokens.issue(TokenOwner(f"user{uid}", uid))
    with pytest.raises(FullError):
        tokens.issue(TokenOwner("late", 9999))
    now.now += GOOD_FOR_S
    assert tokens.take(tokens.issue(TokenOwner("late", 9999))) is not None


def test_concurrent_uses_of_a_link_sign_in_only_once() -> None:
    tokens = Tokens(lambda: 0.0)
    for _ in range(20):
        token = tokens.issue(ALICE)
        begin = threading.Barrier(8)

        def open_it(token: str = token, begin: threading.Barrier = begin) -> object:
            begin.wait()
            return tokens.take(token)

        with ThreadPoolExecutor(8) as threads:
            found = [one.result() for one in [threads.submit(open_it) for _ in range(8)]]
        assert found.count(ALICE) == 1
        assert found.count(None) == 7
