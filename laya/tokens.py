"""What in a text is language and what is not: its Latin words apart from addresses, markup, identifiers and code.

Judging the words is `laya.latin`'s work. The patterns are slow next to the rest of language detection, so each is
tried only on tokens that give a reason to.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple

# Latin letters, accented ones of Europe, Africa, Azerbaijan and Vietnam among them, but no letters of formulas.
_LETTER: Final = "[a-zA-Z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff]"
_WORD: Final = re.compile(f"{_LETTER}+(?:'{_LETTER}+)*")
_HAS_LETTER: Final = re.compile(_LETTER)
_APOSTROPHES: Final = {ord(c): "'" for c in "\u2018\u2019\u02bb\u02bc\u02b9"}
_AROUND: Final = ".,;:!?\"'()[]*-\u2026\u00ab\u00bb\u201c\u201d\u201e\u2013\u2014\u00bf\u00a1"

_MARKUP: Final = re.compile(r"</?[a-zA-Z!][^<>]{0,300}>")
_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,20}://.*")
_PATH: Final = re.compile(r"(?<!\w)(?:[A-Za-z]:)?[.~]{0,2}[/\\][\w./\\-]+|(?<![\w-])[\w.-]+(?:[/\\][\w.-]+){2,}")
_HOST: Final = re.compile(
    r"""(?<![\w.-])(?:[\w-]+\.)+(?:com|org|net|io|dev|app|edu|gov|info|biz|co|eu|de|at|ch|fr|es|it|pt|br|mx|nl|be|dk
    |se|no|fi|pl|cz|sk|hu|ro|tr|id|vn|ru|ua|jp|cn|kr|in|uk|us|ca|au|py|js|ts|md|txt|csv|json|xml|html?|ya?ml|pdf
    |docx?|xlsx?|png|jpe?g|gif|zip|log|exe|sh|sql|css|java|cpp|rs|go|php|rb)\b(?!\()""",
    re.VERBOSE,
)
_IDENTIFIER: Final = re.compile(
    r"""
      &\#?\w{1,10};
    | \{[^{}]{0,80}\} | %\(\w+\)[a-z] | \$\w+ | [@\#]\w+   # placeholders, mentions
    | \b[a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*){2,}             # a.b.c
    | \b[A-Z]{2,}-(?=[\w-]*\d)[\w-]+                   # CVE-2024-12345
    | \b\w*\d\w* | \b\w*_\w* | \b[a-z]+[A-Z]\w*
    """,
    re.VERBOSE,
)

_PLACEHOLDER: Final = re.compile(r"\{[\w.]{0,40}\}")
_MAY_BE_CODE: Final = re.compile(r"[{}()\[\]\\;=<>|*_$#&\"0-9]")
_MAY_BE_NAME: Final = re.compile(r"[a-z][A-Z]|\s-|->|::|import")
# Of programs: brackets, calls, operators, prompts, directives.
_PROGRAM: Final = re.compile(
    r"""[{}\[\]\\] | \w\( | -> | :: | [=!<>+*|&-]= | && | \|\| | \w\.\w+\( | ;\s*$
    | ^\s*(?:[$#]\s | >>> | \#\w | import\s+[\w.]+\s*(?:,|;|$) | from\s+\S+\s+import\b)""",
    re.MULTILINE | re.VERBOSE,
)
# Of records and commands: fields and flags.
_RECORD: Final = re.compile(r"""[;=<>|*]|"\s*:|\s--?[a-zA-Z]""")
# Names that only machines have: snake_case, camelCase, numbers of documents and parts, digests, versions, addresses.
_NAME: Final = re.compile(
    r"""\w_\w | [a-z]{2}[A-Z][a-z] | \b[A-Z]{2,}-?\d{2,} | \b(?=[0-9a-f]{0,7}\d)[0-9a-f]{8,}\b | \b0x[0-9a-fA-F]{2}
    | \bv\d+(?:\.\d+)+ | \b\d{1,3}(?:\.\d{1,3}){3}\b""",
    re.VERBOSE,
)
_REQUEST: Final = re.compile(r"\b(?:GET|POST|PUT|PATCH|DELETE)\s+/")


class CodeMarks(NamedTuple):
    """How many signs of a program a text holds, of a record or command, and names that only machines have."""

    program: int
    record: int
    names: int


def words_of(text: str) -> list[str]:
    """The Latin words of a text as written, without what belongs to no language."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_APOSTROPHES)
    if "<" in text:
        text = _MARKUP.sub(" ", text)
    words = []
    for token in text.split():
        word = token.strip(_AROUND)
        if word.isalpha() and (word.islower() or word.istitle() or word.isupper()):
            if word.isascii() or _WORD.fullmatch(word):
                words.append(word)
        elif _HAS_LETTER.search(word):
            words.extend(_WORD.findall(_IDENTIFIER.sub(" ", _without_address(token))))
    return words


def count_code_marks(text: str) -> CodeMarks:
    """Look for what tells code from prose; addresses, markup and placeholders stand in prose as well."""
    if not _MAY_BE_CODE.search(text) and not _MAY_BE_NAME.search(text):
        return CodeMarks(0, 0, 0)
    text = _PLACEHOLDER.sub(" ", _MARKUP.sub(" ", text))
    bare = "\n".join(" ".join(map(_without_address, line.split(" "))) for line in text.split("\n"))
    requests = len(_REQUEST.findall(text))
    return CodeMarks(len(_PROGRAM.findall(bare)), len(_RECORD.findall(bare)), requests + len(_NAME.findall(bare)))


def _without_address(token: str) -> str:
    """A token without the URL, mail address, path or host name in it."""
    if "://" in token:
        token = _URL.sub(" ", token)
    if "@" in token and "." in token:
        return " "
    if "/" in token or "\\" in token:
        token = _PATH.sub(" ", token)
    return _HOST.sub(" ", token) if "." in token else token
