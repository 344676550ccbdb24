"""Ready-made hooks for a deployment: install one on a Router or an Agent, or name it in `LAYA_HOOKS`."""

from hooks.loads import LoadCount

__all__ = ["LoadCount"]
