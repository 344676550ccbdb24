"""Ready-made hooks for a deployment: install one on a Router or an Agent, or name it in `LAYA_HOOKS`.

Each is imported when it is first asked for, since each needs packages of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hooks.audit import AuditLog
    from hooks.loads import LoadCount
    from hooks.metrics import PrometheusMetrics
    from hooks.skip_cache import SkipCache
    from hooks.tracing import Tracing

__all__ = ["AuditLog", "LoadCount", "PrometheusMetrics", "SkipCache", "Tracing"]

_MODULES = {
    "AuditLog": "hooks.audit",
    "LoadCount": "hooks.loads",
    "PrometheusMetrics": "hooks.metrics",
    "SkipCache": "hooks.skip_cache",
    "Tracing": "hooks.tracing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
