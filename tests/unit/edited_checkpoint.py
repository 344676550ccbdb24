"""A checkpoint directory that a test edits, loads and asks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from laya.checkpoint import Checkpoint, load_checkpoint
from laya.questions import parse_questions

GOLDEN = Path(__file__).parents[1] / "data/golden/checkpoints"
QUESTIONS = parse_questions(
    {"q": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "support", "sales"]}}
)
FILES = [
    "rl_agent_config.json",
    "model.safetensors",
    "encoder/config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
]

Edit = Callable[[dict[str, Any]], object]


def copy_to(home: Path) -> Path:
    """A copy of one of the golden checkpoints, to break."""
    return shutil.copytree(GOLDEN / "multilingual", home / "mine")


def load(path: Path, **options: Any) -> Checkpoint:
    return load_checkpoint(path, device="cpu", **options)


def logits(checkpoint: Checkpoint, state: object = "please refund the invoice " * 20) -> tuple[float, ...]:
    return checkpoint.kind.forward(checkpoint.kind.encode(state, QUESTIONS, 512, 192).rows)[0].logits


def edit_json(path: Path, edit: Edit) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def edit_weights(path: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path / "model.safetensors").items()}
    edit(tensors)
    save_file(tensors, path / "model.safetensors")
