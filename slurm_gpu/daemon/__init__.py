"""Functions that the daemons share: logging, systemd notification, memory."""
