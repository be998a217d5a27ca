"""The background services of the lab on the bridge's address: started by the first `up`, ended by the last `down`."""


def ensure() -> None:
    """Start what does not run."""


def end() -> None:
    """End what runs."""
