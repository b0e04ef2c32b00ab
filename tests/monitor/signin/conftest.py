"""Fixtures of the tests of signing in."""

from tests.database.conftest import munge_socket, short_path

__all__ = ["munge_socket", "short_path"]
