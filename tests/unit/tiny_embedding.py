"""A checkpoint of the embedding kind: a tiny encoder with random weights, and a few words that it knows."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig

from laya.embedding_model import build_model

WIDTH, POSITIONS = 32, 64
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":"]
WORDS = [
    "refund",
    "invoice",
    "charge",
    "parcel",
    "late",
    "courier",
    "password",
    "login",
    "locked",
    "crash",
    "error",
    "screen",
    "please",
    "thanks",
]


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_tiny_checkpoint(root: Path) -> Path:
    """Fill a directory in the layout of an embedding checkpoint, and return it."""
    write_json(
        root / "rl_agent_config.json",
        {
            "architecture": "embedding",
            "encoder": "tiny",
            "max_len": 32,
            "head_max_len": 16,
            "prefixes": {"state": "query: ", "option": "query: "},
            "scale": [20, 10, 5],
            "noul_threshold": 0.25,
            "nuisance_directions": 2,
        },
    )
    vocabulary = {word: place for place, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (root / "tokenizer").mkdir()
    tokenizer.save(str(root / "tokenizer/tokenizer.json"))
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    write_json(root / "tokenizer/tokenizer_config.json", {**named, "mask_token": "[MASK]"})
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
    )
    write_json(root / "encoder/config.json", config.to_dict())
    save_file(random_weights(config), root / "model.safetensors")
    return root


def random_weights(config: BertConfig) -> dict[str, torch.Tensor]:
    """Weights that leave a text's vector near those of its words."""
    generator = torch.Generator().manual_seed(7)
    shapes = {name: tensor.shape for name, tensor in build_model(config, 2).state_dict().items()}
    tensors = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes.items()}
    for name in tensors:
        if name.endswith("LayerNorm.weight"):
            tensors[name] = torch.ones(WIDTH)
    words = "encoder.embeddings.word_embeddings.weight"
    return {**tensors, words: tensors[words] * 50, "nuisance": torch.eye(WIDTH)[:2].clone()}
