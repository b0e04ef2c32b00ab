"""What can be wrong with what simgpu was asked for, or with the place it runs in."""


class RequestError(ValueError):
    """A schedule, a device or an option that cannot be meant; the message quotes it."""


class WorldError(Exception):
    """The world file is missing, full or of another version."""
