"""Fixtures for the tests of the sign-in."""

from tests.database.conftest import munge_socket, short_path

__all__ = ["munge_socket", "short_path"]
