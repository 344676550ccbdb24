"""How tasks look in Flower, and that nobody looks without a password. Needs nothing of Flower's.

What is shown of a task's arguments and answer was decided where it was published and answered; here it is only made
short enough for a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

CONFIG: Final = Path(__file__).with_name("flowerconfig.py")
"""The file that Flower is to run; see there."""

NO_LOGIN: Final = (
    "flower: it shows and controls all workers, so it does not start without a login. "
    "Set FLOWER_BASIC_AUTH=user:password, or give --auth with a provider (https://flower.readthedocs.io)"
)

LONGEST: Final = 200
"""Characters of a cell."""

_NAMES: Final = {"laya.submit_prediction": "prediction", "laya.submit_predictions": "predictions"}
_OPTIONS: Final = ("--basic_auth=", "--basic-auth=", "--auth=")
_VARIABLES: Final = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH")


def has_login(command_line: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether Flower is told whom to let in."""
    given = [value for word in command_line for option in _OPTIONS if (value := _after(option, word))]
    return bool(given) or any(environment.get(name) for name in _VARIABLES)


def readable(task: Any) -> Any:
    """A task as the table shows it: a short name, an error in place of a result, cells of a bounded length.

    Flower hands in a copy.
    """
    task.name = _NAMES.get(task.name, task.name)
    if not task.result and task.exception:
        task.result = task.exception
    for field in ("args", "kwargs", "result", "exception", "traceback"):
        text = getattr(task, field, None)
        if isinstance(text, str) and len(text) > LONGEST:
            setattr(task, field, text[: LONGEST - 1] + "…")
    return task


def keep_apart(app: Any) -> None:
    """Give Flower records of its own: it consumes answers of workers, and has no business with their messages."""
    own = f"{app.settings.namespace}.flower"
    keys = {"unacked_key": own, "unacked_index_key": f"{own}.index", "unacked_mutex_key": f"{own}.mutex"}
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, **keys}


def _after(option: str, word: str) -> str:
    return word.removeprefix(option) if word.startswith(option) else ""
