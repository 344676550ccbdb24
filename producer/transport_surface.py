"""Every part of kombu's inside that the queue's wire leans on, checked against the kombu that is installed.

kombu promises none of these names. A release that changes one must be met with a clear error at import, and not with
messages that are lost.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from kombu import connection
from kombu.transport import redis as stock
from kombu.transport import virtual

KOMBU: Final = (5, 7)
"""The release series of kombu that the names below were read from."""

SURFACE: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (virtual.Message, ("__init__", "_raw")),
    (virtual.QoS, ("ack", "append", "can_consume", "can_consume_max_estimate", "_delivered", "_flush")),
    (stock.QoS, ("ack", "append", "reject", "restore_by_tag", "restore_unacked", "restore_visible")),
    (
        stock.Channel,
        (
            *("QoS", "Message", "ack_emulation", "global_keyprefix", "priority_steps", "visibility_timeout"),
            *("unacked_key", "unacked_index_key", "active_queues", "client", "conn_or_acquire", "close"),
            *("_brpop_start", "_brpop_read", "_brpop_sent_at", "_in_poll", "_flush_brpop_reauth", "_queue_cycle"),
            *("_after_fork", "_basic_cancel", "_create_client", "_on_connection_disconnect", "brpop_timeout"),
            *("_put", "_queue_bind", "_size", "_expires", "connection_class", "connection_class_ssl"),
            *("from_transport_options",),
            *("_lookup", "_q_for_pri", "_get_message_priority", "_maybe_update_queues_expire"),
        ),
    ),
    (stock, ("_socket_readable",)),
    (stock.SentinelChannel, ("connection_class", "connection_class_ssl")),
    (virtual.Transport, ("_callbacks", "_deliver")),
    (stock.Transport, ("Channel", "cycle", "close_connection", "register_with_event_loop")),
    (stock.MultiChannelPoller, ("_channels", "get", "on_poll_start")),
    (connection, ("resolve_aliases",)),
)
"""Class and the names of it that are used or replaced."""


def check_installed_kombu() -> None:
    """Refuse a kombu whose Redis transport is another than the one this was written for.

    Raises:
        ImportError: another release series, or a name that is gone.
    """
    installed, wanted = version("kombu"), ".".join(map(str, KOMBU))
    if tuple(int(part) for part in installed.split(".")[:2]) != KOMBU:
        raise ImportError(
            f"the queue's wire is written for kombu {wanted}, found {installed}: install 'kombu~={wanted}.0'"
        )
    gone = [f"{owner.__name__}.{name}" for owner, names in SURFACE for name in names if not _has(owner, name)]
    if gone:
        raise ImportError(
            f"kombu {installed} has no {', '.join(gone)} in its Redis transport: install another release of {wanted}"
        )


def _has(owner: Any, name: str) -> bool:
    """Whether a class has an attribute, or its instances get it when they are made."""
    return hasattr(owner, name) or name in owner.__init__.__code__.co_names
