"""Taking a repository out of other people's apt sources: that one, and nothing else."""

from __future__ import annotations

import pytest

from gb10.apt_sources import NOTE, without_repository
from gb10.facts.probes.toolkit_state import names_repository

REPOSITORY = "nvidia.github.io/libnvidia-container/stable/deb"
LINE = f"deb [signed-by=/usr/share/keyrings/n.gpg] https://{REPOSITORY}/$(ARCH) /\n"
OTHER = "deb https://deb.example.org/debian trixie main\n"
STANZA = f"Types: deb\nURIs: https://{REPOSITORY}/arm64\nSuites: /\nSigned-By: /usr/share/keyrings/n.gpg\n"
OTHER_STANZA = "Types: deb\nURIs: https://deb.example.org/debian\nSuites: trixie\nComponents: main\n"
LIST, SOURCES = "/etc/apt/sources.list.d/nvidia.list", "/etc/apt/sources.list.d/nvidia.sources"


def taken(path: str, content: str) -> str:
    """The new content; nothing names the repository any more, and a second time changes nothing."""
    new = without_repository(path, content, REPOSITORY)
    assert not names_repository(new, REPOSITORY)
    assert without_repository(path, new, REPOSITORY) == new
    return new


def test_one_line_format() -> None:
    assert taken(LIST, LINE) == NOTE + LINE


def test_other_lines_stay_to_the_letter() -> None:
    content = f"# my sources\n{OTHER}\n  {LINE}# {LINE}{LINE.rstrip()}"
    assert taken(LIST, content) == f"# my sources\n{OTHER}\n{NOTE}  {LINE}# {LINE}{NOTE}{LINE.rstrip()}"


def test_a_file_that_does_not_name_it_is_untouched() -> None:
    assert without_repository(LIST, OTHER, REPOSITORY) == OTHER
    assert without_repository(SOURCES, OTHER_STANZA, REPOSITORY) == OTHER_STANZA
    commented = "".join(f"# {line}\n" for line in STANZA.splitlines())
    assert without_repository(SOURCES, commented, REPOSITORY) == commented


def test_deb822() -> None:
    assert taken(SOURCES, STANZA) == "Enabled: no\n" + STANZA


@pytest.mark.parametrize("between", ["\n", "\n\n", " \t\n", "\n# a comment\n"])
def test_only_the_stanza_that_names_it(between: str) -> None:
    content = OTHER_STANZA + between + STANZA + between + OTHER_STANZA
    new = taken(SOURCES, content)
    assert new.startswith(OTHER_STANZA)
    assert new.endswith(OTHER_STANZA)
    assert new.count("Enabled: no") == 1
    assert new.replace("Enabled: no\n", "") == content
    assert names_repository(new, "deb.example.org/debian")


@pytest.mark.parametrize("line", ["Enabled: yes\n", "enabled:yes\n", "Enabled:  no\n"])
def test_a_switch_that_is_there_is_turned(line: str) -> None:
    assert taken(SOURCES, STANZA + line).lower().count("enabled") == 1


def test_comments_above_stay_above() -> None:
    assert taken(SOURCES, f"# from the vendor\n{STANZA}") == f"# from the vendor\nEnabled: no\n{STANZA}"


def test_a_uri_on_a_continued_line() -> None:
    content = f"Types: deb\nURIs:\n https://{REPOSITORY}/arm64\nSuites: /\n"
    assert taken(SOURCES, content) == "Enabled: no\n" + content


def test_empty() -> None:
    assert without_repository(SOURCES, "", REPOSITORY) == ""
    assert without_repository(LIST, "", REPOSITORY) == ""
