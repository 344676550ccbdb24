"""A login that a server refuses: how it is recognised and what the user is told, at a worker's start and in commands.

A server that is away comes back, and is waited for. One that answers, and does not let us in, says the same tomorrow:
somebody has to change a setting. No message here holds a password.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Final

from celery import bootsteps
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import AuthenticationError, NoPermissionError

from worker.broker_scripts import UNREACHABLE, channel_of

logger = logging.getLogger(__name__)

_LONGEST_CHAIN: Final = 8
"""Errors of a chain that are looked at: a real chain is shorter, and a chain may be a ring."""


def refused(error: BaseException | None) -> str | None:
    """The server's words, if an error or what caused it is its refusal to let somebody in or to obey them."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return None
        if isinstance(error, AuthenticationError | NoPermissionError):
            return str(error).rstrip(".")
        error = error.__cause__ or error.__context__
    return None


def advice(setting: str, url: str, said: str) -> str:
    """One line: which setting, which server, what it said and what to write. The URL's password is left out."""
    where = ";".join(map(maybe_sanitize_url, url.split(";")))
    return (
        f"{setting}: the server at {where} refuses this login: {said}. Set it to redis://USER:PASSWORD@HOST, special "
        "characters percent-encoded, with a user that the server knows and that has the rights in docs/security.md"
    )


class LoginStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Tries both logins before anything is loaded. A server that is away is the consumer's matter."""

    requires = ("worker.ending:EndingStep",)

    def start(self, parent: Any) -> None:
        """Connect once.

        Raises:
            SystemExit: a server answers, and refuses. The log says which, in one line.
        """
        settings = parent.app.settings
        for setting, url, greet in (
            ("LAYA_BROKER_URL", settings.broker_url, _greet_broker),
            ("LAYA_RESULT_URL", settings.results, _greet_store),
        ):
            try:
                greet(parent.app)
            except UNREACHABLE as error:
                if (said := refused(error)) is not None:
                    logger.critical("%s", advice(setting, url, said))
                    raise SystemExit(os.EX_CONFIG) from None


def _greet_broker(app: Any) -> None:
    with channel_of(app):
        pass


def _greet_store(app: Any) -> None:
    if app.settings.results == app.settings.broker_url:
        return
    with contextlib.suppress(NoPermissionError):  # it has let us in, and results need no PING
        app.backend.client.ping()
