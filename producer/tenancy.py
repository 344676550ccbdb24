"""Whose request a message is: a header that a backend signs and a worker verifies, with a secret that both have.

A tenant's answers are kept apart from every other's, so its name must not be anybody's to write. The signature covers
the task and its arguments beside the name: a header that is copied onto another message is worth nothing there, neither
to ask what a tenant has asked nor to answer in its name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from laya.questions import shown
from producer.errors import InvalidRequest
from producer.settings import ProducerSettings

TENANT_HEADER: Final = "laya_tenant"
SIGNATURE_HEADER: Final = "laya_tenant_signature"

_VERSION: Final = "1"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Call = tuple[str, str, Sequence[Any], Mapping[str, Any]]
"""A message as far as it is signed: the task's name and id, its arguments and keyword arguments as JSON has them."""


def signed(tenant: str, call: Call, settings: ProducerSettings) -> dict[str, str]:
    """The headers that make a call `tenant`'s.

    Raises:
        InvalidRequest: the name is none, or there is no secret to sign it with.
    """
    if not isinstance(tenant, str) or not _NAME.fullmatch(tenant):
        raise InvalidRequest(
            f"tenant={shown(tenant)}: expected 1 to 64 letters, digits, dots, dashes or underscores",
            {"options": ["tenant"]},
        )
    if tenant == settings.namespace:
        raise InvalidRequest(
            f"tenant={shown(tenant)} is LAYA_NAMESPACE, the deployment's own: leave tenant out, or name another",
            {"options": ["tenant"]},
        )
    keys = settings.tenant_keys
    if not keys:
        raise InvalidRequest(
            f"tenant={shown(tenant)} needs a secret: set LAYA_TENANT_KEY to the same value here and on the workers",
            {"options": ["tenant"]},
        )
    return _headers(keys[0], tenant, call)


def signed_on(headers: Mapping[str, Any], call: Call, settings: ProducerSettings) -> dict[str, str]:
    """The headers that make a call its tenant's whose message has `headers`, which were verified; none for no tenant's.

    For a part of that message, sent on by itself: a signature holds for the whole alone.
    """
    tenant, keys = headers.get(TENANT_HEADER), settings.tenant_keys
    return _headers(keys[0], str(tenant), call) if tenant is not None and keys else {}


def verified(headers: Mapping[str, Any], call: Call, settings: ProducerSettings) -> str | None:
    """The tenant whose call a message is, None for one that names none.

    Raises:
        InvalidRequest: a name that is not signed, or not for this call or by a secret that this worker has.
    """
    tenant, signature = headers.get(TENANT_HEADER), headers.get(SIGNATURE_HEADER)
    if tenant is None and signature is None:
        return None
    if not isinstance(tenant, str) or not _NAME.fullmatch(tenant) or not isinstance(signature, str):
        raise InvalidRequest("the message names a tenant without a signature: name it with `tenant=`, which signs it")
    keys = settings.tenant_keys
    if not keys:
        raise InvalidRequest(
            f"the message is tenant {tenant}'s, and this worker cannot verify that: set LAYA_TENANT_KEY to the "
            "backend's secret"
        )
    version, _, given = signature.partition(":")
    try:
        matches = [
            hmac.compare_digest(given.encode(errors="replace"), _signature(key, tenant, call).encode()) for key in keys
        ]
    except (RecursionError, TypeError, ValueError):
        matches = []  # nothing that a backend of ours has signed
    if version != _VERSION or not any(matches):
        raise InvalidRequest(
            f"the message says that it is tenant {tenant}'s, and its signature does not match: give backends and "
            "workers the same LAYA_TENANT_KEY, and send no message twice under another id"
        )
    return tenant


def _headers(key: str, tenant: str, call: Call) -> dict[str, str]:
    return {TENANT_HEADER: tenant, SIGNATURE_HEADER: f"{_VERSION}:{_signature(key, tenant, call)}"}


def _signature(key: str, tenant: str, call: Call) -> str:
    name, task_id, args, kwargs = call
    # Keys stay in their order, as everywhere: another order is another question.
    body = json.dumps([list(args), dict(kwargs)], separators=(",", ":")).encode()
    message = hmac.new(key.encode(), digestmod=hashlib.sha256)
    for part in (*(text.encode() for text in (_VERSION, tenant, name, task_id)), hashlib.sha256(body).digest()):
        # The length in front, so that no two messages read the same.
        message.update(len(part).to_bytes(4, "big") + part)
    return message.hexdigest()
