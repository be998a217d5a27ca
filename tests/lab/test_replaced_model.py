"""Another file under a model's name: the next deploy brings the right one back, and loses nothing."""

from __future__ import annotations

import pytest

from tests.lab import deploying, drifting, lane
from tests.lab.drift_changes import TINY_B
from tests.lab.host import LabHost

ASIDE = f"{TINY_B}.set-aside-*"
NAME = TINY_B.removeprefix("/srv/models/")


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


def test_it_is_fetched_anew_and_the_lane_reads_it_again(host: LabHost) -> None:
    assert lane.chat(host, "tiny-b")[0] == 200
    right, container = host.ssh(f"sha256sum < {TINY_B}").stdout, lane.container_id(host)
    host.ssh(f"printf x | dd of={TINY_B} bs=1 seek=900 conv=notrunc status=none", sudo=True)
    wrong = host.ssh(f"sha256sum < {TINY_B}").stdout
    assert wrong != right

    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    assert {"models: files", "router: runs what is described"} <= set(deploying.changed(done.stdout))
    assert host.ssh(f"sha256sum < {TINY_B}").stdout == right
    assert host.ssh(f"sha256sum < {ASIDE}").stdout == wrong
    # Who had loaded it may hold what was read of the other file.
    assert lane.container_id(host) != container
    lane.wait_answering(host)
    assert lane.chat(host, "tiny-b")[0] == 200
    assert deploying.changed(deploying.deploy(host).stdout) == []
    drifting.assert_clean(host)


def test_what_was_set_aside_goes_by_its_name_alone(host: LabHost) -> None:
    aside = host.ssh(f"ls {ASIDE}").stdout.split()[0]
    listed = deploying.gb10(host, "models").stdout
    assert f"{NAME}.set-aside-" in listed
    gone = deploying.gb10(host, "models", "rm", "--yes", aside.removeprefix("/srv/models/"))
    assert gone.returncode == 0, gone.stdout
    assert host.ssh(f"ls {TINY_B}*").stdout.split() == [TINY_B]
