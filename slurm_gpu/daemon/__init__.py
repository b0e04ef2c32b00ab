"""Provide functions that the daemons share: logging, systemd notifications, and returning freed memory."""
