"""What a model has said: without its thoughts, and the program in it."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

# Some templates open the thought themselves, and a cut answer never closes it. A program may have these words
# too, in quotes.
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)|\A.*?</think>(?![\"'])", re.DOTALL)
# A fence may stand anywhere: nobody shows a program by four blanks alone.
_MARKDOWN = MarkdownIt("commonmark").disable("code")
_PYTHON = ("python", "python3", "py", "py3")


def spoken(answer: str) -> str:
    """An answer without the thought before it."""
    return _THOUGHT.sub("", answer)


def program_of(answer: str) -> str | None:
    """The program in an answer: its longest Python block, or the longest that names no language. The last of
    two: a program is shown with an example of its use, or written once more."""
    tokens = [token for token in _MARKDOWN.parse(spoken(answer)) if token.type == "fence"]
    blocks = [((token.info.split() or [""])[0].lower(), token.content) for token in tokens]
    for languages in (_PYTHON, ("",)):
        named = [code for language, code in blocks if language in languages]
        if named:
            return max(reversed(named), key=len)
    return None
