"""Lab hosts for the tests: one that is deployed once, and put back to that state for each module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyinfra.connectors.sshuserclient.client import get_host_keys

from gb10.desired import Desired
from tests import turns
from tests.lab import appliance, deploying
from tests.lab.host import LabHost

# Another name gives two runs on one machine a host each.
NAME = os.environ.get("GB10_LAB_TEST_HOST", "test")
SETTLED = "settled"


def pytest_configure() -> None:
    if turns.run() == turns.FIRST:
        turns.take(turns.MAKING)
    if turns.run() == turns.SECOND:
        turns.take(turns.WORKING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/lab/" in item.nodeid:
            item.add_marker(pytest.mark.lab)
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """The lab's own tests come before any other host is up, those that want the machine alone come last."""
    return 2 if item.get_closest_marker("alone") else int("test_lab_host.py" not in item.nodeid)


@pytest.fixture(scope="session", autouse=True)
def _needs_root() -> None:
    if os.geteuid() != 0:
        pytest.exit("lab tests boot a host with systemd-nspawn: run them as root, or `make test-unit`", 2)


@pytest.fixture(scope="session")
def machine_alone(first_deploy: FirstDeploy) -> None:  # which the other run waits for
    """Nothing else runs here: what is timed or measured is not slowed by other tests."""
    turns.take(turns.WORKING)


@pytest.fixture(autouse=True)
def _alone(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("alone"):
        request.getfixturevalue("machine_alone")


@pytest.fixture(autouse=True)
def _known_hosts_are_read_again() -> None:
    """pyinfra reads the file once in a process; here hosts come and go in one."""
    get_host_keys.cache.clear()


@dataclass(frozen=True)
class FirstDeploy:
    """A bare host that was deployed: the host, what it should be, and what the deploy printed."""

    host: LabHost
    box: Desired
    output: str
    built_here: bool  # False: the image was one that this machine had built before
    compiled: str  # snapshot of the host after it had built the image, in this session or an earlier one


@pytest.fixture(scope="session")
def first_deploy() -> Iterator[FirstDeploy]:
    """From a bare host with two old lanes to a settled one, once a session."""
    second = turns.run() == turns.SECOND
    if second:
        turns.take(turns.MAKING)
        turns.give(turns.MAKING)
    host = LabHost(NAME).reset()
    try:
        box = deploying.description(host)
        compiled = f"compiled-{box.image.rpartition(':')[2]}"
        # The image is given only to a host that has compiled it before, or where the first run's has: the
        # build is tested on every machine.
        given = (second or compiled in host.snapshots()) and deploying.give_image(host, box.image)
        done = deploying.deploy(host)
        assert done.returncode == 0, done.stdout
        host.snapshot(SETTLED)
        if not given:
            deploying.keep_image(host, box.image)
            host.forget_snapshots("compiled-")
            host.snapshot(compiled)
        if turns.run() == turns.FIRST:
            appliance.ensure()  # for the second run, while nobody waits for the lab
            turns.give(turns.MAKING)
        yield FirstDeploy(host, box, done.stdout, not given, compiled)
    finally:
        host.down()


@pytest.fixture(scope="module")
def settled(first_deploy: FirstDeploy) -> LabHost:
    """The deployed host as it was after its first deploy, freshly booted."""
    return first_deploy.host.reset(to=SETTLED)


@pytest.fixture(scope="session")
def box(first_deploy: FirstDeploy) -> Desired:
    """What should be on the host."""
    return first_deploy.box


@pytest.fixture(scope="module")
def bare() -> Iterator[LabHost]:
    """A bare host with its two old lanes, for tests in which the deploy refuses or begins."""
    host = LabHost("bare").reset()
    yield host
    host.down()
