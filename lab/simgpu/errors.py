"""Exceptions for invalid requests to simgpu and for an unsuitable environment."""


class RequestError(ValueError):
    """A schedule, a device or an option is invalid; the message quotes it."""


class WorldError(Exception):
    """The world file is missing, full or of another version."""
