"""YAML with line numbers: a fault in a file is of use only when it says where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from gb10.faults import BadInput, Fault
from gb10.rendering import shown


@dataclass(frozen=True)
class Marked:
    """A value of a YAML file and its place. ``value`` is a scalar, a list of Marked, or a dict of them."""

    value: object
    file: str
    line: int
    keys: tuple[tuple[str, int], ...] = ()
    """For a mapping: each key in the order of the file with its line, repeated ones too."""

    def where(self, key: str) -> str:
        """``file:line key``, the way every fault says its place."""
        return f"{self.file}:{self.line} {key}"

    def items(self) -> Iterator[tuple[str, Marked]]:
        """The entries of a mapping; nothing for any other value."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def plain(self) -> object:
        """The value without marks."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value


def load_marked(path: Path) -> Marked:
    """Read a YAML file with marks. Raises BadInput: no file, not YAML, a key that is not a text."""
    name = shown(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadInput([Fault(f"{name}:{line}", "is not UTF-8", "save the file as UTF-8")]) from error
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise BadInput([Fault(name, what, f"put the file at {path}")]) from error
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return Marked(None, name, 1) if node is None else _mark(node, loader, name, set())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", error)).split())
        where = f"{name}:{mark.line + 1}" if mark else name
        raise BadInput(
            [Fault(where, f"not YAML ({problem})", "mend the line or the one above it")]
        ) from error
    finally:
        loader.dispose()


def _mark(node: yaml.Node, loader: yaml.SafeLoader, file: str, above: set[int]) -> Marked:
    line = node.start_mark.line + 1
    if id(node) in above:
        raise yaml.MarkedYAMLError(problem="an alias that holds itself", problem_mark=node.start_mark)
    above = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        values: dict[str, Marked] = {}
        keys: list[tuple[str, int]] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a text", problem_mark=key_node.start_mark)
            keys.append((key_node.value, key_node.start_mark.line + 1))
            marked = _mark(value_node, loader, file, above)
            values[key_node.value] = Marked(marked.value, file, key_node.start_mark.line + 1, marked.keys)
        return Marked(values, file, line, tuple(keys))
    if isinstance(node, yaml.SequenceNode):
        return Marked([_mark(item, loader, file, above) for item in node.value], file, line)
    return Marked(loader.construct_object(node), file, line)
