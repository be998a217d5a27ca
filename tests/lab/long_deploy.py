"""A deploy that takes long: preflight, the lock, and one piece of work that outlives the connection."""

from collections.abc import Iterator

from pyinfra import host
from pyinfra.api.command import FunctionCommand
from pyinfra.api.operation import operation

from gb10 import interrupt
from gb10.inventory import desired
from gb10.operations import detached
from gb10.stages import preflight


class Silent:
    """A reader of a job that says nothing."""

    def progress(self, lines: list[str]) -> str:
        return ""

    def failure(self, lines: list[str]) -> list[str]:
        return lines


@operation()
def long() -> Iterator[FunctionCommand]:
    job = detached.Job("try", "gb10-try.service", "/run/gb10-try", ("sleep", "25"))
    yield from detached.commands(job, Silent())


interrupt.is_a_failure()
box = preflight.check(desired(host))
preflight.hold(box)
long(name="try: a long one")
