"""Provide functions for all daemons: logging, notifying systemd, and returning freed memory."""
