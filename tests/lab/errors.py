"""The lab's one kind of failure."""


class LabError(Exception):
    """Something the lab cannot do; the message is one line: what is wrong and what to do."""
