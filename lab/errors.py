"""What can go wrong with the lab, as one exception with a message for a person."""


class LabError(Exception):
    """The lab cannot do what was asked; the message says why and what would help."""
