"""The network of an embedding checkpoint: a sentence encoder, pooled, and what is known of ordinary states.

Builds the modules without spending time on weights that a file then overwrites. Reading that file, and turning rows
into tensors, is left to `laya.embedding`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModel

from laya.model import WithoutWeights


class EmbeddingModel(nn.Module):
    """An encoder, the vector of an ordinary state (d), and orthonormal directions to take out (r, d)."""

    centre: Tensor
    nuisance: Tensor

    def __init__(self, encoder: nn.Module, width: int, directions: int) -> None:
        """Put the two beside an `encoder` with vectors of `width` channels; they are loaded with its weights."""
        super().__init__()
        self.encoder = encoder
        self.register_buffer("centre", torch.empty(width))
        self.register_buffer("nuisance", torch.empty(directions, width))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Unit vectors (n, d) in fp32 of n texts padded to one length (n, length)."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.float()
        weights = attention_mask.unsqueeze(-1).float()
        return normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def build_model(encoder_config: Any, directions: int) -> EmbeddingModel:
    """The network for an encoder's transformers configuration, its parameters still to be loaded."""
    with WithoutWeights():
        encoder = AutoModel.from_config(  # type: ignore[no-untyped-call]  # transformers has no types here
            encoder_config, attn_implementation="sdpa", dtype=torch.float32
        )
        if hasattr(encoder, "pooler"):
            encoder.pooler = None  # works on the first token alone; here all tokens are averaged
        model = EmbeddingModel(cast("nn.Module", encoder), int(encoder_config.hidden_size), directions)
    return model.eval().requires_grad_(False)
