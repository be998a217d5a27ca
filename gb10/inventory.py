"""Inventory and group data, read as pyinfra reads them, with or without a host that answers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State
from pyinfra.connectors.ssh import connector_data_meta
from pyinfra.context import ctx_state
from pyinfra_cli.inventory import make_inventory

from gb10.boxdata import BoxData
from gb10.boxdata_source import assignments, read_box_data
from gb10.catalogue import load_catalogue
from gb10.cmake_options import load_cmake_options
from gb10.desired import Desired
from gb10.faults import BadInput, Fault
from gb10.lock import load_lock
from gb10.preset_options import load_preset_options
from gb10.rendering import TOP, shown
from gb10.watch_config import Baseline, read_baselines

CONNECTION_KEYS = frozenset(connector_data_meta)


def load_inventory(path: Path) -> Inventory:
    """The inventory file ``path`` with all group data. Raises `BadInput` when Python cannot run them."""
    if not path.is_file():
        raise BadInput([Fault(shown(path), "no such inventory file", "name one with --inventory FILE")])
    # As the pyinfra command does: data files may import from the top folder.
    if str(TOP) not in sys.path:
        sys.path.append(str(TOP))
    # pyinfra's file loader notes in the current state which file it executes.
    try:
        with ctx_state.use(State()):
            inventory: Inventory = make_inventory(str(path), cwd=str(TOP))
    except PyinfraError:
        raise
    except Exception as error:  # data files are Python: they may do anything
        # pyinfra wraps what a file raised when it ran.
        raise BadInput([_fault_of_file(getattr(error, "exception", error), path)]) from None
    return inventory


def _fault_of_file(error: Exception, path: Path) -> Fault:
    file, line = str(path), None
    if isinstance(error, SyntaxError) and error.filename:
        file, line, what = error.filename, error.lineno, error.msg
    else:
        what = f"{type(error).__name__}: {error}"
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).resolve() in (path.resolve(), *(TOP / "group_data").glob("*.py")):
                file, line = frame.filename, frame.lineno
    where = Path(file).relative_to(TOP) if Path(file).is_relative_to(TOP) else file
    return Fault(f"{where}:{line}" if line else str(where), what, "correct the file")


def _data_files(groups: list[str]) -> list[Path]:
    # The order in which pyinfra lets a later group win: `all` first.
    ordered = ["all", *(group for group in groups if group != "all")]
    return [TOP / "group_data" / f"{group}.py" for group in ordered]


def _places(host: Host) -> dict[str, str]:
    """Where each key of ``host`` is set, as far as that is a data file."""
    places = assignments(_data_files(list(host.groups)), TOP)
    # What the inventory says of the host itself wins over its groups.
    own = {**host.inventory.host_data.get(host.name, {}), **host.inventory.override_data}
    return {key: place for key, place in places.items() if key not in own}


def box_data(host: Host) -> BoxData:
    """The checked data of ``host``. Raises `BadInput`."""
    data: Mapping[str, object] = host.data.dict()  # type: ignore[no-untyped-call]
    return read_box_data(data, host=host.name, places=_places(host), connection_keys=CONNECTION_KEYS)


def _flag_faults(host: Host, data: BoxData) -> list[Fault]:
    """Build flags that the pinned llama.cpp does not declare: it would swallow them."""
    options = load_cmake_options()
    if options.commit != data.llama_commit:
        what = f"the list of build options is of {options.ref}, commit {options.commit[:12]}"
        return [Fault(f"llama_commit {data.llama_commit[:12]}", what, "run `gb10 pin llama.cpp`")]
    places = _places(host)
    faults: list[Fault] = []
    for key in ("image_cmake_flags", "image_accelerator_flags"):
        flags: Mapping[str, str] = getattr(data, key)
        where = {name: f"{places.get(key, f'data of host {host.name}')} {key}.{name}" for name in flags}
        faults += options.faults(flags, where)
    return faults


def desired(host: Host) -> Desired:
    """What should be on ``host``. Raises `BadInput` with every fault of data, catalogue, lock and
    baselines."""
    data = box_data(host)
    faults: list[Fault] = _flag_faults(host, data)
    catalogue = lock = None
    try:
        catalogue = load_catalogue(TOP / data.catalogue, load_preset_options())
    except BadInput as error:
        faults += error.faults
    try:
        lock = load_lock(TOP / data.models_lock)
    except BadInput as error:
        faults += error.faults
    baselines: dict[str, Baseline] = {}
    try:
        shown = f"{data.watch_baselines}/{host.name}.json"
        baselines = read_baselines(TOP / shown, shown)
    except BadInput as error:
        faults += error.faults
    if catalogue is None or lock is None or faults:
        raise BadInput(faults)
    return Desired(data, catalogue, lock, baselines=baselines)
