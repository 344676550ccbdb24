"""What a person gives a command in a file or on standard input, read as JSON, with errors that name the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from worker.cli.screen import Code, CommandError


def read_input() -> str:
    """Standard input, as text.

    Raises:
        CommandError: there is none.
    """
    if sys.stdin is None:
        raise CommandError("standard input is closed: there is nothing to read", Code.USAGE)
    return sys.stdin.read()


def read_mapping(file: Path, what: str, holding: str) -> dict[str, Any]:
    """The mapping that a JSON file holds; `-` is standard input.

    Args:
        file: the file, as it was typed.
        what: what it is read for, such as "the request".
        holding: what the mapping must be of, such as "id to definition".

    Raises:
        CommandError: it cannot be read, is not JSON, or is no mapping.
    """
    try:
        given = json.loads(read_input() if str(file) == "-" else file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {what}: {error.strerror}: {file}", Code.USAGE) from None
    except RecursionError:
        raise CommandError(f"cannot read {what}: {file} is nested without end", Code.USAGE) from None
    except ValueError as error:
        raise CommandError(f"cannot read {what}: {file} is not JSON: {error}", Code.USAGE) from None
    if not isinstance(given, dict):
        raise CommandError(f"cannot read {what}: {file} must hold a mapping of {holding}", Code.USAGE)
    return given
