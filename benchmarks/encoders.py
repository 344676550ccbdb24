"""Checkpoints in the published layout with random weights: as large as asked, for measuring what a pass costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ModernBertConfig, PreTrainedTokenizerFast

from laya.model import build_model

WORDS: Sequence[str] = [
    "the",
    "invoice",
    "was",
    "charged",
    "twice",
    "please",
    "refund",
    "my",
    "account",
    "login",
    "order",
    "parcel",
    "late",
    "broken",
    "support",
    "team",
    "password",
    "crash",
    "export",
    "update",
    "seats",
    "price",
    "plan",
    "quote",
    "answer",
    "today",
    "never",
    "again",
]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_random_checkpoint(directory: Path, *, hidden: int = 384, layers: int = 6, head_layers: int = 2) -> Path:
    """Write a checkpoint whose encoder has `layers` layers of width `hidden`, and whose every word is one token."""
    for part in ("encoder", "tokenizer"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers has no types here
        tokenizer_object=tokenizer,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    ).save_pretrained(directory / "tokenizer")
    config = ModernBertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=hidden * 4,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
    )
    config.save_pretrained(directory / "encoder")
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(parameter.shape, generator=generator) * 0.02
        for name, parameter in build_model(config, head_layers, 2).state_dict().items()
    }
    save_file(weights, directory / "model.safetensors")
    settings = {
        "encoder": "random",
        "head_layers": head_layers,
        "max_len": 512,
        "head_max_len": 192,
        "amp_dtype": "bf16",
        "act_costs": {"escalate": 1.0},
        "temperature": [1.0, 1.0, 1.0],
    }
    (directory / "rl_agent_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return directory
