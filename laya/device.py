"""Which device a checkpoint runs on, and in which precision its forward pass computes.

Decides and nothing more: loading weights and running passes is left to the checkpoint kinds.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

AUTO = "auto"

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""The precisions by the names that checkpoints and callers use."""

_NATIVE_BF16 = 8  # CUDA compute capability from which bfloat16 has its own units


def pick_device(device: str | int | torch.device | None = None) -> torch.device:
    """The device to use: the one asked for, or with None or ``"auto"`` the first of CUDA, MPS, XPU, CPU.

    Raises:
        ValueError: ``device`` does not name a device.
        RuntimeError: the device asked for is not there.
    """
    if device is None or device == AUTO:
        return torch.device(next((kind for kind in ("cuda", "mps", "xpu") if _count(kind)), "cpu"))
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} names no device: use 'auto', 'cpu', 'cuda', 'cuda:N', 'mps' or 'xpu' ({error})"
        ) from None
    there = _count(wanted.type)
    if there <= (wanted.index or 0):
        raise RuntimeError(
            f"device={device!r} was asked for, but {_described(wanted.type, there)}; "
            f"use another device, or device='auto' to take what is there"
        )
    return wanted


def read_precision(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The torch dtype that a caller's ``dtype`` names; None stays None.

    Raises:
        ValueError: ``dtype`` is not one of bf16, fp16 and fp32.
    """
    if dtype is None:
        return None
    found = PRECISIONS.get(dtype) if isinstance(dtype, str) else dtype
    if found not in PRECISIONS.values():
        raise ValueError(f"dtype={dtype!r} is not a precision: use one of {', '.join(PRECISIONS)}")
    return found


def name_of_precision(dtype: torch.dtype) -> str:
    """The name of a precision: ``bf16``, ``fp16`` or ``fp32``; torch's own for any other."""
    return next((name for name, one in PRECISIONS.items() if one == dtype), str(dtype))


def pick_precision(device: torch.device, amp_dtype: str, wanted: torch.dtype | None = None) -> torch.dtype:
    """The dtype of a forward pass on ``device``.

    Without ``wanted``: on CUDA the checkpoint's ``amp_dtype`` where bfloat16 is native (compute capability 8),
    else fp16; fp32 on every other kind of device.

    Raises:
        ValueError: the device does not compute in the precision that is wanted.
    """
    if wanted is None:
        if device.type != "cuda":
            return torch.float32
        return PRECISIONS[amp_dtype] if _has_bf16(device) else torch.float16
    if device.type == "cpu" and wanted == torch.float16:
        raise ValueError("dtype='fp16' does not run on the CPU: use 'fp32' or 'bf16'")
    if device.type == "cuda" and wanted == torch.bfloat16 and not _has_bf16(device):
        raise ValueError(f"dtype='bf16' needs a CUDA compute capability of 8, {device} has less: use 'fp16'")
    return wanted


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """The context that a forward pass runs in: autocast to ``dtype``, or nothing for fp32."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def to_host(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Have what is being computed copied to the host; what is returned waits for it.

    On CUDA the copy follows what was launched before it and nothing that is launched later, so that a pass can be
    launched behind this one and hold up neither. Elsewhere this waits at once.
    """
    if tensors[0].device.type != "cuda":
        here = tuple(tensor.cpu() for tensor in tensors)
        return lambda: here
    copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # sleeps: others need the processor
    copied.record(torch.cuda.current_stream(tensors[0].device))

    def arrived() -> tuple[Tensor, ...]:
        copied.synchronize()
        return copies

    return arrived


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """The context for the parts of a pass that stay in fp32 whatever the rest computes in."""
    return torch.autocast(device.type, enabled=False)


def _has_bf16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= _NATIVE_BF16


def _count(kind: str) -> int:
    """How many devices of this kind are there."""
    if kind == "cpu":
        return 1
    if kind == "cuda":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    if kind == "xpu":
        return torch.xpu.device_count() if torch.xpu.is_available() else 0
    return 0


def _described(kind: str, there: int) -> str:
    return f"there is no {kind} here" if there == 0 else f"there is only {there} {kind} here, counted from 0"
