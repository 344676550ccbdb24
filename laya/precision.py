"""What of a published checkpoint's network stays in fp32 where the rest computes in bf16 on the CPU.

Rounding in the first layers is carried through all that follow, so there it costs accuracy most; the projection out of
attention is a small part of a layer, and what it gives is added to all that later layers read. Everything else is
rounded once, when the checkpoint is loaded. A GPU computes as its autocast has it, and needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from laya.device import full_precision


def split_precision(encoder: nn.Module, head: nn.Module) -> None:
    """Make a network ready to compute in bf16 under the CPU's autocast.

    The first layer of the encoder, attention in the second, and the projection out of attention in all others keep
    fp32; every other linear layer of encoder and head holds its weights in bf16, as autocast would round them in every
    pass. An encoder whose layers are not named as ModernBERT's are is rounded throughout.
    """
    kept = _kept(encoder)
    for part in kept:
        part.forward = partial(_in_full_precision, part.forward)
    exact = {id(module) for part in kept for module in part.modules()}
    for module in (*encoder.modules(), *head.modules()):
        if isinstance(module, nn.Linear) and id(module) not in exact:
            module.to(torch.bfloat16)


def _kept(encoder: nn.Module) -> list[nn.Module]:
    layers = getattr(encoder, "layers", ())
    if not all(isinstance(getattr(getattr(layer, "attn", None), "Wo", None), nn.Linear) for layer in layers):
        return []
    return [
        layer if number == 0 else layer.attn if number == 1 else layer.attn.Wo for number, layer in enumerate(layers)
    ]


def _in_full_precision(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    exact = [value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value for value in args]
    with full_precision(torch.device("cpu")):
        return forward(*exact, **kwargs)
