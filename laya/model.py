"""The network of a published checkpoint: an encoder, a small transformer head, and two scorers on top.

Builds the modules without spending time on weights that a file then overwrites. Reading that file, and turning
rows into tensors, is left to :mod:`laya.published`.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModel

from laya.device import full_precision
from laya.questions import QTYPES

ABSENT_LOGIT = -1e4
"""The logit of a marker that a row does not have."""

_HEAD_WIDTH = 64  # channels of one attention head in the head layers
_DROPOUT = 0.1
_ACTION_WIDTH = 256
_ACTION_FEATURES = 4  # top1, top1 - top2, entropy, k / 255
_MOST_OPTIONS = 255  # what the number of options is divided by, as a feature


class Head(nn.Module):
    """The transformer layers between the encoder and the scorers."""

    def __init__(self, width: int, layers: int) -> None:
        """Build ``layers`` layers on vectors of ``width`` channels."""
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                max(1, width // _HEAD_WIDTH),
                4 * width,
                dropout=_DROPOUT,
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )

    def forward(self, hidden: Tensor, padding: Tensor) -> Tensor:
        """Hidden vectors (n, length, width) again, blind to positions where ``padding`` (n, length) is true."""
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=padding)
        return hidden


class DecisionModel(nn.Module):
    """Scores the options of each row, and how likely acting on the answer is."""

    def __init__(self, encoder: nn.Module, width: int, head_layers: int, actions: int) -> None:
        """Put a head of ``head_layers`` layers and scorers on ``encoder``, whose vectors have ``width`` channels.

        ``actions`` is the number of action logits.
        """
        super().__init__()
        self.encoder = encoder
        self.head = Head(width, head_layers)
        self.type_emb = nn.Embedding(len(QTYPES), width)
        self.scorer = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        self.act_head = nn.Sequential(
            nn.Linear(width + _ACTION_FEATURES, _ACTION_WIDTH), nn.GELU(), nn.Linear(_ACTION_WIDTH, actions)
        )
        # Part of the file; at inference the temperatures of the configuration are used instead.
        self.register_buffer("temperature", torch.empty(len(QTYPES)))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, qtypes: Tensor, markers: Tensor, present: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score n rows padded to one length.

        Args:
            input_ids: token ids (n, length).
            attention_mask: 1 at tokens, 0 at padding (n, length).
            qtypes: index of each row's question type (n).
            markers: positions of the option markers (n, most options), anything where absent.
            present: true where a row has the marker (n, most options).

        Returns:
            fp32 logits (n, most options), and the probability of the first action (n).
        """
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        hidden = hidden + self.type_emb(qtypes).unsqueeze(1).to(hidden.dtype)
        hidden = self.head(hidden, attention_mask == 0)
        rows = torch.arange(len(hidden), device=hidden.device).unsqueeze(1)
        # A few vectors a row: fp32 costs nothing here, and answers are differences between these logits.
        with full_precision(hidden.device):
            logits = self.scorer(hidden[rows, markers].float()).squeeze(-1)
            logits = logits.masked_fill(~present, ABSENT_LOGIT)
            features = torch.cat([hidden[:, 0].float(), action_features(logits, present.sum(1))], dim=1)
            actions = self.act_head(features)
        return logits, actions.softmax(dim=1)[:, 0]


def action_features(logits: Tensor, options: Tensor) -> Tensor:
    """What the action head sees of the logits (n, most options) of rows with ``options`` (n) options each.

    Returns:
        ``[top1, top1 - top2, entropy / log k, k / 255]`` of their softmax, (n, 4); k is at least 2.
    """
    probabilities = logits.softmax(dim=1)
    k = options.clamp(min=2).float()
    if probabilities.shape[1] < 2:
        probabilities = nn.functional.pad(probabilities, (0, 1))
    top = probabilities.topk(2, dim=1).values
    entropy = torch.special.entr(probabilities).sum(dim=1) / k.log()
    return torch.stack([top[:, 0], top[:, 0] - top[:, 1], entropy, k / _MOST_OPTIONS], dim=1)


class WithoutWeights(TorchFunctionMode):
    """Modules built within get parameters that take no memory and no time to initialise.

    Only what is allocated empty goes to the meta device: buffers that are computed (rotary frequencies) keep
    their values, since no file brings them. A mode is a thread's own, so that passes in other threads go on
    undisturbed.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Send ``torch.empty`` to the meta device."""
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def build_model(encoder_config: Any, head_layers: int, actions: int) -> DecisionModel:
    """The network for an encoder's transformers configuration, its parameters still to be loaded."""
    with WithoutWeights():
        encoder = AutoModel.from_config(  # type: ignore[no-untyped-call]  # transformers has no types here
            encoder_config, attn_implementation="sdpa", dtype=torch.float32
        )
        model = DecisionModel(cast("nn.Module", encoder), int(encoder_config.hidden_size), head_layers, actions)
    return model.eval().requires_grad_(False)
