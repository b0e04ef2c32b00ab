"""The exception for failures of the lab, with a message for its user."""


class LabError(Exception):
    """The lab cannot do what was asked; the message says why and what would help."""
