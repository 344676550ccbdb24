"""How large a request may be: numbers that a backend checks before it publishes, and a worker before it works.

Each is a setting; the error that refuses a request names it. They are checked in `producer.request_checks` and
`producer.jsonform`.
"""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may hold.

    Attributes:
        payload: bytes of the message as JSON in UTF-8 (`LAYA_MAX_PAYLOAD`).
        questions: questions of one request (`LAYA_MAX_QUESTIONS`).
        options: options of one question (`LAYA_MAX_OPTIONS`).
        depth: levels of lists and mappings inside one another (`LAYA_MAX_DEPTH`).
        text: characters of one text, in the state or in a question (`LAYA_MAX_TEXT`).
        batch: requests of one message (`LAYA_MAX_BATCH`).
    """

    payload: int = MEBIBYTE
    questions: int = 1000
    options: int = 4096
    depth: int = 64
    text: int = MEBIBYTE // 2
    batch: int = 1000


DEFAULT = Limits()

DEEPEST = 256
"""Levels that `LAYA_MAX_DEPTH` may allow: Python's JSON reader gives up at about a thousand, in a thread that has its
own frames below."""
