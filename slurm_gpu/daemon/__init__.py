"""Provide functions for all daemons: log messages, notify systemd, and return freed memory."""
