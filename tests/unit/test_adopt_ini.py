"""A preset file, read as llama.cpp reads it. What is said here of llama.cpp was seen in the real program."""

from __future__ import annotations

import pytest

from gb10.adopt_ini import Ini, read_ini
from gb10.adopt_report import Note
from gb10.adopt_settings import section_settings
from gb10.faults import BadInput
from gb10.presets import render_presets
from tests.unit.boxes import box
from tests.unit.catalogues import OPTIONS
from tests.unit.test_presets import MODELS, read_as_llama_cpp


def pairs(ini: Ini) -> dict[str, dict[str, str]]:
    return {section.name: {key.name: key.value for key in section.keys} for section in ini.sections}


def read(text: str) -> dict[str, dict[str, str]]:
    return pairs(read_ini(text, "models.ini"))


def settings(text: str) -> tuple[dict[str, str], list[Note]]:
    """The options of the one section in force, and the notes."""
    notes: list[Note] = []
    (section,) = read_ini(text, "f").sections
    found = section_settings(section, "f", OPTIONS, notes)
    return {key: setting.value for key, setting in found.items()}, notes


def faults(text: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read_ini(text, "f")
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("k=v", "v"),
        ("k   \t= \t v  \t", "v"),
        ("k = a b\tc", "a b\tc"),
        ("k =", ""),
        ("k = ; nothing", ""),
        ("k = a;b", "a"),
        ("k = a#b", "a"),
        ("k = a ; b", "a"),
        ('k = "a b"', '"a b"'),
        ("k = 'a'", "'a'"),
        ("k = a=b", "a=b"),
        ("k = [a]", "[a]"),
        ("k = \u00e4\u2028\u00f6", "\u00e4\u2028\u00f6"),
        ("k = v \f", "v \f"),
        ("LLAMA_ARG_CTX_SIZE = 1", None),
        ("k.2-x_y = v", None),
    ],
)
def test_values(line: str, value: str | None) -> None:
    (found,) = read(f"[a]\n{line}\n")["a"].items()
    assert found[1] == value if value is not None else found[0] == line.split()[0]


def test_sections_and_line_ends() -> None:
    text = "x = 1\r\n[a] ; c\rk = 1\n\t \n  ; blanks before a comment\n[b]\n[a]#again\nk2 = 2"
    assert read(text) == {"default": {"x": "1"}, "b": {}, "a": {"k2": "2"}}
    (again,) = [section for section in read_ini(text, "f").sections if section.name == "a"]
    assert again.replaced == (2,)
    assert again.line == 7


def test_a_blank_before_the_bracket_is_in_the_name() -> None:
    assert read("[ a ]\nk = v\n") == {"a ": {"k": "v"}}


def test_all_faulty_lines_at_once() -> None:
    found = faults("[a]\n  k = v\nnonsense\n9k = v\n[b] words\n [c]\n[ ]\nk = v\n")
    assert [line.split(" ")[0] for line in found] == ["f:2:", "f:3:", "f:4:", "f:5:", "f:6:", "f:7:"]
    assert "first column" in found[0]
    assert "byte order mark" in faults("\ufeff[a]\n")[0]


def test_the_same_as_a_second_reading_of_the_grammar() -> None:
    whole = box()
    text = render_presets(whole.catalogue, device="CUDA0", models_dir=MODELS)
    assert read(text) == read_as_llama_cpp(text)


def test_comments_stay_where_they_were() -> None:
    ini = read_ini("; file\n\n; a\n; b\n[s] # s\n\n; k\nk = v ; behind\n# end\n", "f")
    (section,) = ini.sections
    assert (ini.head, ini.foot) == (("file",), ("end",))
    assert (section.above, section.comment) == (("a", "b"), "s")
    assert (section.keys[0].above, section.keys[0].comment) == (("k",), "behind")


@pytest.mark.parametrize(
    ("line", "lost", "comment", "whole"),
    [
        ("k = a ; words", "", "words", True),
        ("k = a;b", ";b", "", True),
        ('k = {"a": "b;c"}', ';c"}', "", False),
        ('k = {"a": "b ; c"}', '; c"}', "", False),
        ('k = {"a": 1} # {', "", "{", True),
    ],
)
def test_a_cut_value_is_told_from_a_comment(line: str, lost: str, comment: str, whole: bool) -> None:
    ((key,),) = (section.keys for section in read_ini(f"[a]\n{line}\n", "f").sections)
    assert (key.lost, key.comment, key.whole) == (lost, comment, whole)


def test_two_names_of_one_option() -> None:
    # llama.cpp walks the keys in the order of their bytes: capitals, then c, then ctx-size.
    values, notes = settings("[a]\nctx-size = 1\nc = 2\nLLAMA_ARG_CTX_SIZE = 3\n")
    assert values == {"ctx-size": "1"}
    assert [note.what for note in notes] == ["[a] LLAMA_ARG_CTX_SIZE = 3", "[a] c = 2"]


def test_negated_names_and_truth() -> None:
    assert settings("[a]\nno-jinja = true\n")[0] == {"jinja": "false"}
    assert settings("[a]\nLLAMA_ARG_NO_KV_UNIFIED = 0\n")[0] == {"kv-unified": "true"}
    assert settings("[a]\njinja = off\n")[0] == {"jinja": "off"}


def test_what_no_child_could_start_with_is_dropped() -> None:
    values, notes = settings("[a]\nversion = 1\nctx-size = 32k\ntemp =\nno-mmap = 1\nfoo = 1\n-c = 1\n"[:-7])
    assert values == {}
    assert sorted(note.what.split(" ")[1] for note in notes) == ["ctx-size", "foo", "no-mmap", "temp"]
