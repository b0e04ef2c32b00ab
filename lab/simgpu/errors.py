"""Exceptions for invalid requests to simgpu and for an unsuitable environment."""


class RequestError(ValueError):
    """A schedule, a device or an option that cannot be meant; the message quotes it."""


class WorldError(Exception):
    """The world file is missing, full or of another version."""
