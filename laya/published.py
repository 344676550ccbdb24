"""The published kind of checkpoint: rows of instructions, option markers and state through one network.

Puts together what tokenises (:mod:`laya.encoding`) and what scores (:mod:`laya.model`), from the files of a
directory. Choosing the directory and the device, and decoding scores into answers, is left to others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig

from laya.device import autocast, pick_precision, to_host
from laya.encoding import QuestionTokens, SpecialIds, TextTokenizer, lay_out, tokenize_question, usage_of
from laya.files import read_json
from laya.lru import LruCache
from laya.model import DecisionModel, build_model
from laya.precision import split_precision
from laya.questions import Question, check_state, shown, state_text
from laya.rows import EncodedState, Row, RowScores
from laya.tokenizer import LentTokenizer, load_tokenizer, read_special_ids
from laya.weights import load_weights

OPTION_LAYOUTS = (None, "sequential")
AMP_DTYPES = ("bf16", "fp16")

KEPT_TOKENS = 1_000_000
"""Tokens of questions that are kept tokenised, some 40 MiB of numbers at most."""


class _Payload(NamedTuple):
    ids: Tensor  # token ids (length)
    markers: Tensor  # positions of the option markers, in the order of the labels (k)


class PublishedKind:
    """A published checkpoint on a device. Every method is safe to call from many threads."""

    def __init__(
        self, model: DecisionModel, tokenizer: Any, special: SpecialIds, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Take over a loaded model and its tokenizer."""
        self.model = model
        self.device = device
        self.dtype = dtype
        self._lent = LentTokenizer(tokenizer)
        self._texts = TextTokenizer(tokenizer.backend_tokenizer, str(tokenizer.mask_token), special)
        self._question_tokens: LruCache[tuple[str, ...], QuestionTokens] = LruCache(KEPT_TOKENS)
        self._positions = int(getattr(model.encoder.config, "max_position_embeddings", None) or 0)

    @property
    def tokenizer(self) -> Any:
        """A transformers tokenizer for the caller's own use; changing it never changes a prediction."""
        return self._lent.get()

    def encode(self, state: object, questions: Sequence[Question], max_len: int, head_max_len: int) -> EncodedState:
        """Tokenise one state with its questions: one row for each, and the state's usage.

        Raises:
            TypeError: the state is None or not JSON.
            ValueError: a question's options find no room, or a row is longer than the encoder can read.
        """
        check_state(state)
        if not questions:
            return EncodedState((), {"input_tokens": 0, "output_tokens": 0})
        state_ids = self._texts.ids(state_text(state))
        keeps_end = isinstance(state, (list, tuple))
        layouts = [
            lay_out(
                question,
                self._tokens_of(question),
                state_ids,
                keeps_end,
                self._texts.special,
                max_len,
                head_max_len,
            )
            for question in questions
        ]
        for question, layout in zip(questions, layouts, strict=True):
            if 0 < self._positions < len(layout.ids):
                raise ValueError(
                    f"question {question.id!r}: max_len={max_len} makes a row of {len(layout.ids)} tokens, but this "
                    f"checkpoint's encoder reads {self._positions}: lower max_len"
                )
        rows = tuple(
            Row(question, len(layout.ids), _Payload(torch.tensor(layout.ids), torch.tensor(layout.markers)))
            for question, layout in zip(questions, layouts, strict=True)
        )
        return EncodedState(rows, usage_of(questions, layouts, len(state_ids)))

    def _tokens_of(self, question: Question) -> QuestionTokens:
        """A question's ids; a backend asks the same questions all day, so they are kept."""
        key = (question.qtype, question.instructions, *question.options)
        tokens = self._question_tokens.get(key)
        if tokens is None:
            tokens = tokenize_question(self._texts, question)
            self._question_tokens.put(key, tokens, len(tokens.instruction) + sum(map(len, tokens.options)))
        return tokens

    def forward(self, rows: Sequence[Row]) -> list[RowScores]:
        """Run one pass over any mix of rows and score each, in order."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[Row]) -> Callable[[], list[RowScores]]:
        """Begin one pass over any mix of rows; what is returned waits for the score of each, in order."""
        if not rows:
            return list
        ids = self._put(pad_sequence([row.payload.ids for row in rows], batch_first=True))
        lengths = self._put(torch.tensor([row.tokens for row in rows]))
        markers = self._put(pad_sequence([row.payload.markers for row in rows], batch_first=True))
        options = self._put(torch.tensor([row.question.k for row in rows]))
        qtypes = self._put(torch.tensor([row.question.type_index for row in rows]))
        with torch.inference_mode(), autocast(self.device, self.dtype):
            logits, act = self.model(
                ids, _first(lengths, ids.shape[1]).long(), qtypes, markers, _first(options, markers.shape[1])
            )
        arrived = to_host(logits, act)

        def scores() -> list[RowScores]:
            logits, act = arrived()
            return [
                RowScores(tuple(scores[: row.question.k]), probability)
                for row, scores, probability in zip(rows, logits.tolist(), act.tolist(), strict=True)
            ]

        return scores

    def _put(self, tensor: Tensor) -> Tensor:
        """On the device. CUDA takes it in order with its passes, so nobody has to wait for the one under way."""
        return tensor.to(self.device, non_blocking=self.device.type == "cuda")


def load_kind(path: Path, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None) -> PublishedKind:
    """Load the published checkpoint in ``path``, whose configuration has been read already.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the checkpoint cannot be run; the message names it and the thing.
    """
    _check_config(path, config)
    encoder_config = read_encoder_config(path)
    precision = pick_precision(device, config["amp_dtype"], dtype)
    tokenizer = load_tokenizer(path, int(encoder_config.vocab_size))
    special = read_special_ids(path, tokenizer)
    try:
        model = build_model(encoder_config, config["head_layers"], len(config["act_costs"]) + 1)
    except Exception as error:
        raise ValueError(f"checkpoint {path}: encoder/config.json cannot be built: {error!r}") from error
    load_weights(model, path, device)
    if device.type == "cpu" and precision == torch.bfloat16:
        split_precision(model.encoder, model.head)
    return PublishedKind(model, tokenizer, special, device, precision)


def read_encoder_config(root: Path) -> Any:
    """The transformers configuration of a checkpoint's encoder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the installed transformers cannot build an encoder from it.
    """
    written = read_json(root, "encoder/config.json")
    try:
        config = AutoConfig.from_pretrained(str(root / "encoder"), trust_remote_code=False)
        _ = int(config.hidden_size), int(config.vocab_size)
        _keep_rotary_frequencies(written, config)
    except Exception as error:  # each transformers has errors of its own for what it finds wrong in a file
        raise ValueError(f"checkpoint {root}: encoder/config.json does not describe an encoder: {error}") from error
    if hasattr(config, "reference_compile"):
        config.reference_compile = False  # older ModernBERT compiles parts of itself at the first pass
    return config


def _keep_rotary_frequencies(written: Mapping[str, Any], config: Any) -> None:
    """Carry frequencies saved the newer way over to a transformers that knows only the older names."""
    saved = written.get("rope_parameters")
    if saved is None:
        return
    if not isinstance(saved, Mapping):
        raise TypeError(f"rope_parameters must be a mapping, not {shown(saved)}")
    for older, layers in (("global_rope_theta", "full_attention"), ("local_rope_theta", "sliding_attention")):
        theta = (saved.get(layers) or {}).get("rope_theta")
        if theta is not None and hasattr(config, older):
            setattr(config, older, theta)


def _check_config(root: Path, config: Mapping[str, Any]) -> None:
    for key in ("encoder", "head_layers"):
        if config.get(key) is None:
            raise ValueError(f"checkpoint {root}: rl_agent_config.json lacks {key}")
    layers = config["head_layers"]
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 0:
        raise ValueError(f"checkpoint {root}: head_layers must be a number of layers, not {shown(layers)}")
    if config.get("option_layout") not in OPTION_LAYOUTS:
        raise ValueError(
            f"checkpoint {root}: option_layout {shown(config['option_layout'])} is not supported, only sequential is"
        )
    if config["amp_dtype"] not in AMP_DTYPES:
        raise ValueError(
            f"checkpoint {root}: amp_dtype must be one of {', '.join(AMP_DTYPES)}, not {shown(config['amp_dtype'])}"
        )
    if not isinstance(config["act_costs"], Mapping):
        raise ValueError(
            f"checkpoint {root}: act_costs must be a mapping of action to cost, not {shown(config['act_costs'])}"
        )


def _first(counts: Tensor, width: int) -> Tensor:
    """For each count, a row of ``width`` that is true in its first so many places."""
    return torch.arange(width, device=counts.device) < counts.unsqueeze(1)
