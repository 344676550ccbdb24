"""The embedding kind of checkpoint: a sentence encoder that scores options by their similarity to the state.

`rl_agent_config.json` with `"architecture": "embedding"`, beside it the encoder and the tokenizer as in the published
layout. Texts are embedded by mean pooling, with the encoder's own prefix, and normalised. What the texts are is
decided in `laya.hypotheses`; how logits become answers is `laya.decoding`'s, as for every kind.

    likeness(state, option) = unit(P (x - c)) . o

where `x` is the state's vector, `c` the vector of an ordinary state, `P` takes out directions that say nothing (the
language a text is in), and `o` the option's vector. Sentence encoders put all texts into a narrow cone, and without
`c` the option that lies nearest to its axis wins too often. `c` and `P` are part of the checkpoint, so that a row's
logits depend on the row alone. An embedding has no action head: the probability of acting on an answer is the
probability of its likeliest option before any temperature.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from laya.decoding import softmax
from laya.device import PRECISIONS, autocast, pick_precision
from laya.embedding_model import EmbeddingModel, build_model
from laya.encoding import SpecialIds, TextTokenizer
from laya.hypotheses import Hypothesis, hypotheses, readable
from laya.lru import LruCache
from laya.published import read_encoder_config
from laya.questions import QTYPES, Question, check_state, shown
from laya.rows import EncodedState, Row, RowScores
from laya.tokenizer import LentTokenizer, load_tokenizer, read_special_ids
from laya.weights import load_weights

PASS_TOKENS = 4096
"""Padded tokens that go through the encoder together. Texts are sorted by length first, so little is padding."""

KEPT_VECTORS = 16_384
"""Option texts whose vectors are kept: 24 MiB at 384 channels."""

KEPT_TOKENS = 1_000_000
"""Tokens of the questions that are kept tokenised."""

_LEAST_TOKENS = 8  # tokens that an option text keeps however small head_max_len is: prefix, ends and a word


class EmbeddingConfig(NamedTuple):
    """The keys of `rl_agent_config.json` that only this kind has."""

    state_prefix: str
    option_prefix: str
    scale: tuple[float, float, float]  # by question type: what a likeness is multiplied by
    noul_threshold: float  # the likeness from which a statement is rather true than false
    nuisance_directions: int


class _Plan(NamedTuple):
    """A question made ready: distinct texts, and which of them with which weight stand for which option."""

    texts: list[bytes]  # token ids, as 32-bit integers
    text_of: Tensor  # index into texts, one entry for each (option, text) pair
    option_of: Tensor
    weight: Tensor
    gains: Tensor  # (k)
    offsets: Tensor  # (k)
    scale: float
    tokens: int  # of all texts
    options: dict[str, int] | None  # the question's entry in `usage`


class _Payload(NamedTuple):
    state: bytes
    plan: _Plan


class EmbeddingKind:
    """An embedding checkpoint on a device. Every method is safe to call from many threads."""

    def __init__(
        self,
        model: EmbeddingModel,
        tokenizer: Any,
        special: SpecialIds,
        config: EmbeddingConfig,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Take over a loaded model and its tokenizer."""
        self.model = model
        self.device = device
        self.dtype = dtype
        self._config = config
        self._lent = LentTokenizer(tokenizer)
        self._texts = TextTokenizer(tokenizer.backend_tokenizer, str(tokenizer.mask_token), special)
        self._positions = int(cast("Any", model.encoder).config.max_position_embeddings)
        self._prefix_tokens = len(self._texts.ids(config.state_prefix.rstrip()))
        # Likeness is computed on the CPU: it is a few vectors, and the same on every device.
        self._centre, self._nuisance = model.centre.cpu(), model.nuisance.cpu()
        self._plans: LruCache[tuple[Any, ...], _Plan] = LruCache(KEPT_TOKENS)
        self._vectors: LruCache[bytes, Tensor] = LruCache(KEPT_VECTORS)
        self._coming: dict[bytes, Future[Tensor]] = {}  # vectors of option texts that a thread is at
        self._claims = threading.Lock()

    @property
    def tokenizer(self) -> Any:
        """A transformers tokenizer for the caller's own use; changing it never changes a prediction."""
        return self._lent.get()

    def encode(self, state: object, questions: Sequence[Question], max_len: int, head_max_len: int) -> EncodedState:
        """Tokenise one state with its questions: one row for each, and the state's usage.

        A state is cut to `max_len` tokens, or to what the encoder reads if that is less (a list keeps its end, anything
        else its beginning), and each option text to `head_max_len` tokens. `input_tokens` counts for every
        question the state and its option texts, whether or not their vectors were kept from an earlier call.

        Raises:
            TypeError: the state is None or not JSON.
            ValueError: the state is not JSON.
        """
        check_state(state)
        if not questions:
            return EncodedState((), {"input_tokens": 0, "output_tokens": 0})
        ids = self._texts.ids(self._config.state_prefix + readable(state).strip())
        fixed, own = ids[: self._prefix_tokens], ids[self._prefix_tokens :]
        room = max(0, min(max_len, self._positions) - len(fixed) - 2)
        kept = min(len(own), room)
        sequence = self._sequence(fixed + (own[len(own) - kept :] if isinstance(state, (list, tuple)) else own[:kept]))
        plans = [self._plan(question, head_max_len) for question in questions]
        length = len(fixed) + kept + 2
        rows = tuple(
            Row(question, length + plan.tokens, _Payload(sequence, plan))
            for question, plan in zip(questions, plans, strict=True)
        )
        usage: dict[str, Any] = {
            "input_tokens": sum(row.tokens for row in rows),
            "output_tokens": 0,
            "state_tokens": len(own),
            "state_tokens_dropped": len(own) - kept,
            "truncated": kept < len(own),
            "truncated_questions": [question.id for question in questions] if kept < len(own) else [],
        }
        indistinct = {q.id: plan.options for q, plan in zip(questions, plans, strict=True) if plan.options}
        return EncodedState(rows, {**usage, "options": indistinct} if indistinct else usage)

    def launch(self, rows: Sequence[Row]) -> Callable[[], list[RowScores]]:
        """Run a pass at once: likeness is the host's work, and waits for the device."""
        scores = self.forward(rows)
        return lambda: scores

    def forward(self, rows: Sequence[Row]) -> list[RowScores]:
        """Score any mix of rows, in order; each distinct text is embedded once."""
        vectors = self._vectors_of(rows)
        by_plan: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            by_plan.setdefault(id(row.payload.plan), []).append(place)
        scores: list[RowScores | None] = [None] * len(rows)
        for places in by_plan.values():
            plan: _Plan = rows[places[0]].payload.plan
            states = self._centred(torch.stack([vectors[rows[place].payload.state] for place in places]))
            likeness = states @ _option_vectors(plan, vectors).T
            logits = (likeness * plan.gains + plan.offsets) * plan.scale
            for place, row in zip(places, logits.tolist(), strict=True):
                scores[place] = RowScores(tuple(row), max(softmax(row)))
        return cast("list[RowScores]", scores)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors (n, d), on the CPU, of texts embedded as states are, but not centred."""
        tokenised = self._texts.ids_of([self._config.state_prefix + text.strip() for text in texts])
        sequences = [self._sequence(ids[: self._positions - 2]) for ids in tokenised]
        vectors = self._embed(dict.fromkeys(sequences))
        return torch.stack([vectors[sequence] for sequence in sequences])

    def _vectors_of(self, rows: Sequence[Row]) -> dict[bytes, Tensor]:
        """The vectors of all texts of the rows. Those of options are kept, and computed by one thread."""
        plans = {id(row.payload.plan): row.payload.plan for row in rows}.values()
        found, own, others = self._claim(dict.fromkeys(text for plan in plans for text in plan.texts))
        states = dict.fromkeys(row.payload.state for row in rows if row.payload.state not in found)
        try:
            found |= self._embed(own | states)
            for text in own:
                vector = found[text].clone()  # a copy: a slice would keep its whole batch alive
                self._vectors.put(text, vector)
                own[text].set_result(vector)
        finally:
            self._release(own)
        # Waited for only now: of two threads that need texts of each other, both have finished theirs.
        failed = {text: None for text, coming in others.items() if coming.exception() is not None}
        found |= {text: coming.result() for text, coming in others.items() if text not in failed}
        return found | self._embed(failed)

    def _claim(
        self, texts: Iterable[bytes]
    ) -> tuple[dict[bytes, Tensor], dict[bytes, Future[Tensor]], dict[bytes, Future[Tensor]]]:
        """Of these texts: the vectors that are kept, those left to this thread, and those that another is at."""
        found: dict[bytes, Tensor] = {}
        own: dict[bytes, Future[Tensor]] = {}
        others: dict[bytes, Future[Tensor]] = {}
        with self._claims:
            for text in texts:
                vector = self._vectors.get(text)
                if vector is not None:
                    found[text] = vector
                elif text in self._coming:
                    others[text] = self._coming[text]
                else:
                    own[text] = self._coming[text] = Future()
        return found, own, others

    def _release(self, own: Mapping[bytes, Future[Tensor]]) -> None:
        """End this thread's claims; whoever waits for one that came to nothing computes it itself."""
        with self._claims:
            for text, coming in own.items():
                del self._coming[text]
                if not coming.done():
                    coming.set_exception(RuntimeError("the thread that was to compute it failed"))

    def _embed(self, texts: Iterable[bytes]) -> dict[bytes, Tensor]:
        """Unit vectors on the CPU, by text."""
        waiting = sorted(texts, key=len)
        vectors: dict[bytes, Tensor] = {}
        while waiting:
            size = max(1, PASS_TOKENS // (len(waiting[-1]) // 4))
            batch, waiting = waiting[-size:], waiting[:-size]
            ids = [torch.frombuffer(bytearray(text), dtype=torch.int32) for text in batch]
            padded = nn.utils.rnn.pad_sequence(ids, batch_first=True).long().to(self.device)
            lengths = torch.tensor([len(one) for one in ids], device=self.device)
            mask = (torch.arange(padded.shape[1], device=self.device) < lengths.unsqueeze(1)).long()
            with torch.inference_mode(), autocast(self.device, self.dtype):
                embedded = self.model(padded, mask)
            vectors.update(zip(batch, embedded.cpu().unbind(), strict=True))
        return vectors

    def _centred(self, states: Tensor) -> Tensor:
        """Unit vectors (n, d) of what sets each state apart from an ordinary one."""
        apart = states - self._centre
        return normalize(apart - apart @ self._nuisance.T @ self._nuisance, dim=-1)

    def _plan(self, question: Question, head_max_len: int) -> _Plan:
        key = (question.qtype, question.instructions, question.options, question.descriptions, head_max_len)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(question, head_max_len)
            self._plans.put(key, plan, weight=plan.tokens)
        return plan

    def _make_plan(self, question: Question, head_max_len: int) -> _Plan:
        options = hypotheses(question)
        pairs = [(option, text, weight) for option, one in enumerate(options) for text, weight in one.texts]
        written = list(dict.fromkeys([text for _, text, _ in pairs] + [one.whole for one in options]))
        longest = min(max(head_max_len, _LEAST_TOKENS), self._positions)
        tokenised = self._texts.ids_of([self._config.option_prefix + text.strip() for text in written])
        cut = {text: self._sequence(ids[: longest - 2]) for text, ids in zip(written, tokenised, strict=True)}
        texts = list(dict.fromkeys(cut[text] for _, text, _ in pairs))
        place = {ids: index for index, ids in enumerate(texts)}
        return _Plan(
            texts=texts,
            text_of=torch.tensor([place[cut[text]] for _, text, _ in pairs]),
            option_of=torch.tensor([option for option, _, _ in pairs]),
            weight=torch.tensor([weight for _, _, weight in pairs]),
            gains=torch.tensor([one.gain for one in options]),
            offsets=torch.tensor([self._config.noul_threshold if one.by_default else 0.0 for one in options]),
            scale=self._config.scale[question.type_index],
            tokens=sum(len(text) for text in texts) // 4,
            options=_indistinct(options, cut),
        )

    def _sequence(self, ids: Sequence[int]) -> bytes:
        special = self._texts.special
        return torch.tensor([special.cls, *ids, special.sep], dtype=torch.int32).numpy().tobytes()


def load_kind(path: Path, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None) -> EmbeddingKind:
    """Load the embedding checkpoint in `path`, whose configuration has been read already.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the checkpoint cannot be run; the message names it and the thing.
    """
    own = read_config(path, config)
    encoder_config = read_encoder_config(path)
    precision = pick_precision(device, config["amp_dtype"], dtype)
    model = build_model(encoder_config, own.nuisance_directions)
    tokenizer = load_tokenizer(path, int(encoder_config.vocab_size))
    special = read_special_ids(path, tokenizer)
    load_weights(model, path, device)
    return EmbeddingKind(model, tokenizer, special, own, device, precision)


def read_config(root: Path, config: Mapping[str, Any]) -> EmbeddingConfig:
    """The configuration of this kind, from `rl_agent_config.json`.

    Raises:
        ValueError: a key has a value that cannot be meant; the message names the checkpoint and the key.
    """
    prefixes = config.get("prefixes", {})
    if not isinstance(prefixes, Mapping) or not all(isinstance(value, str) for value in prefixes.values()):
        raise ValueError(f"checkpoint {root}: prefixes must map state and option to texts, not {shown(prefixes)}")
    scale = config.get("scale")
    if not isinstance(scale, list) or len(scale) != len(QTYPES) or not all(_is_positive(value) for value in scale):
        raise ValueError(
            f"checkpoint {root}: scale must be a list of three positive numbers ({', '.join(QTYPES)}), "
            f"not {shown(scale)}"
        )
    threshold = config.get("noul_threshold", 0.0)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not abs(threshold) <= 1:
        raise ValueError(f"checkpoint {root}: noul_threshold must be a likeness in [-1, 1], not {shown(threshold)}")
    directions = config.get("nuisance_directions", 0)
    if isinstance(directions, bool) or not isinstance(directions, int) or directions < 0:
        raise ValueError(f"checkpoint {root}: nuisance_directions must be a number, not {shown(directions)}")
    if config["amp_dtype"] not in PRECISIONS:
        raise ValueError(f"checkpoint {root}: amp_dtype must be one of {', '.join(PRECISIONS)}")
    choice, score, noul = map(float, scale)
    return EmbeddingConfig(
        prefixes.get("state", ""), prefixes.get("option", ""), (choice, score, noul), float(threshold), directions
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def _option_vectors(plan: _Plan, vectors: Mapping[bytes, Tensor]) -> Tensor:
    """Unit vectors (k, d) of a question's options; zeros for one that no text stands for."""
    texts = torch.stack([vectors[text] for text in plan.texts])
    weighted = texts[plan.text_of] * plan.weight.unsqueeze(1)
    options = torch.zeros(len(plan.gains), texts.shape[1]).index_add_(0, plan.option_of, weighted)
    return normalize(options, dim=-1)


def _indistinct(options: Sequence[Hypothesis], cut: Mapping[str, bytes]) -> dict[str, int] | None:
    """What a caller should know where some options read the same after the cut."""
    wholes = [cut[one.whole] for one in options]
    distinct = len(set(wholes))
    if distinct == len(wholes):
        return None
    return {"total": len(wholes), "distinct": distinct, "tokens_per_option": max(map(len, wholes)) // 4}
