"""A message as it comes out of a take: on record already, and perhaps no message at all.

Reads and checks it, and knows the marks that the wire puts on a message. What becomes of one that cannot be read is
`producer.transport_records`' matter.
"""

from __future__ import annotations

from json import JSONDecodeError
from typing import Any, Final

from kombu.transport import virtual
from kombu.utils.json import loads

SENT: Final = "laya_sent"
"""Property of a message of ours, its last: when it was first published, in Unix seconds. Its age in the queue."""

RETURNED: Final = "laya-returned"
"""Header of a message that a living worker gave back after it had begun it: nobody died of it."""

OVERDUE: Final = "laya-overdue"
"""Header of a message that came back overdue: how often it did."""


class MalformedMessage(ValueError):
    """What was on the list is no message of kombu's."""


class Taken(dict[str, Any]):
    """The raw message of a take, which put it on record.

    Attributes:
        held: whether a consumer has it and will acknowledge it; kombu's consumers without acknowledgement never do.
    """

    held = False

    @classmethod
    def read(cls, raw: bytes) -> Taken:
        """Read what a take brought.

        Raises:
            MalformedMessage: Lua's JSON is laxer than Python's, and kombu's has types that can fail to be made.
        """
        try:
            return cls(loads(raw))
        except Exception as error:
            raise _malformed(error) from error


class Message(virtual.Message):
    """A message for a consumer."""

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        """Decode the envelope.

        Raises:
            MalformedMessage: a part is missing, or its body is not encoded as it says.
        """
        try:
            super().__init__(payload, channel=channel, **kwargs)
        except Exception as error:
            raise _malformed(error) from error
        if not isinstance(self.content_type, str | None) or not isinstance(self.content_encoding, str | None):
            raise MalformedMessage("the type or the encoding of its content is no text")


def _malformed(error: Exception) -> MalformedMessage:
    # Other errors quote what they are about: a date that is none, the key that is missing.
    text = f": {error}" if isinstance(error, JSONDecodeError) else ""
    return MalformedMessage(f"{type(error).__name__}{text}")
