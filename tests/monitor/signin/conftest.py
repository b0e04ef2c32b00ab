"""What the tests of signing in stand on."""

from tests.database.conftest import munge_socket, short_path

__all__ = ["munge_socket", "short_path"]
