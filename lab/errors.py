"""The exception for failures of the lab, with a message for its user."""


class LabError(Exception):
    """The lab cannot carry out a request; the message states the reason and a remedy."""
