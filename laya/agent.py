"""One checkpoint, ready to answer: the lifecycle of a call around tokenising, one forward pass and decoding.

`predict_batch` is the single implementation; the other calls are it with one state. What a checkpoint is made of is
`laya.checkpoint`'s, what its kind computes `laya.published`'s and `laya.embedding`'s, which checkpoint to use the
Router's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from laya.batching import Batching
from laya.calls import BatchCall, Inference
from laya.catalog import DEFAULT_MODELS
from laya.checkpoint import load_checkpoint
from laya.confidence import check_min_confidence
from laya.context import PredictContext, one_call
from laya.decoding import decode_answers, primary_subtag
from laya.hooks import HookCallable, HookRegistry, nested_calls_fire_defaults
from laya.identity import CheckpointIdentity
from laya.lifecycle import fail
from laya.phases import FORWARD, TOKENISE, phase, recording
from laya.questions import Question, check_states, parse_questions
from laya.rows import EncodedState, Row, RowScores

RESULT_MODEL = "laya-rl-agent"
"""The `model` of every result, as the published checkpoints have it."""

DEFAULT_BATCH_SIZE = 32
"""States encoded and sent through the model together when a call does not say."""


class Agent(HookRegistry):
    """One checkpoint on one device. Safe to call from many threads.

    Attributes:
        model_id: where the checkpoint came from, as given.
        cfg: the checkpoint's configuration (`max_len`, `head_max_len`, …).
        tok: a tokenizer for the caller's own use.
        model: the torch module, its encoder at `model.encoder`.
        device: the torch device in use.
        dtype: the torch dtype that a forward pass computes in.
    """

    def __init__(
        self,
        model_id_or_path: str = DEFAULT_MODELS["english"][0],
        device: str | None = None,
        token: str | None = None,
        subfolder: str | None = None,
        revision: str | None = None,
        expected_sha256: Mapping[str, str] | None = None,
        lang_temperatures: Mapping[str, Mapping[str, Any]] | None = None,
        dtype: str | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        batching: Batching | None = None,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool = True,
        hooks_concurrent: bool = True,
        hooks_timeout: float | None = None,
    ) -> None:
        """Load the checkpoint.

        Args:
            model_id_or_path: a directory, a Hub id, or a built-in name or alias.
            device: `"cuda"`, `"cuda:1"`, `"mps"`, `"xpu"`, `"cpu"`, `"auto"`, or None for the best there is.
            token, subfolder, revision: of the Hub repository; a subfolder of a local directory works too.
            expected_sha256: relative path to hex digest, checked before any file is parsed.
            lang_temperatures: language to `{"temperature": [3 numbers], "temperature_by_options": {...}}`.
            dtype: `"fp32"`, `"bf16"` or `"fp16"` instead of the device's own choice.
            batch_size: states that go through the model together when a call does not say.
            batching: shares forward passes with the other calls that were given it; None computes in the caller's
                thread.
            hooks, on_predict_start, on_predict_end, hooks_raise, hooks_concurrent, hooks_timeout: see `laya.hooks`.

        Raises:
            FileNotFoundError: the directory or a file that is needed is not there.
            ValueError: the checkpoint is refused; the message names it and the thing.
        """
        super().__init__(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_concurrent, hooks_timeout)
        self.batch_size = _check_batch_size(batch_size)
        self.batching = batching
        self.checkpoint = load_checkpoint(
            model_id_or_path,
            subfolder=subfolder,
            revision=revision,
            token=token,
            expected_sha256=expected_sha256,
            device=device,
            dtype=dtype,
            lang_temperatures=lang_temperatures,
        )
        self.model_id = model_id_or_path
        self.cfg: dict[str, Any] = self.checkpoint.config

    @property
    def device(self) -> torch.device:
        """The torch device in use."""
        device: torch.device = self.checkpoint.kind.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype that a forward pass computes in."""
        dtype: torch.dtype = self.checkpoint.kind.dtype
        return dtype

    @property
    def tok(self) -> Any:
        """A transformers tokenizer for the caller's own use; changing it never changes a prediction."""
        return self.checkpoint.kind.tokenizer

    @property
    def model(self) -> Any:
        """The torch module, its encoder at `model.encoder`."""
        return self.checkpoint.kind.model

    @property
    def identity(self) -> CheckpointIdentity | None:
        """What was loaded, for keys of a cache; None where the files changed during the load.

        Found out once, at load: files that change later change nothing here. The budgets are those of `cfg` now.
        """
        loaded = self.checkpoint.identity
        if loaded is None:
            return None
        budgets = self.cfg["max_len"], self.cfg["head_max_len"]
        if budgets == (loaded.max_len, loaded.head_max_len):
            return loaded
        return replace(loaded, max_len=budgets[0], head_max_len=budgets[1])

    def __repr__(self) -> str:
        """Name the checkpoint, its device and dtype."""
        return f"Agent({self.model_id!r}, device={str(self.device)!r}, dtype={str(self.dtype)!r})"

    def calibrated_language(self, lang: str | None) -> str | None:
        """The primary subtag of `lang` if this checkpoint has temperatures of its own for it, else None.

        Calls that differ only in a `lang` for which this is None have the same answers.
        """
        subtag = primary_subtag(lang) if lang else None
        return subtag if subtag in self.checkpoint.calibration.languages else None

    def predict_batch(
        self,
        states: Sequence[Any],
        questions: Mapping[Any, Any],
        batch_size: int | None = None,
        lang: str | None = None,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
        min_confidence: float | Mapping[str, float] | None = None,
    ) -> list[dict[str, Any]]:
        """Answer the same questions about each state, in order.

        Args:
            states: strings, numbers, mappings or lists (a list is a conversation and keeps its end when cut).
            questions: question id to definition (`type`, `instructions`, `criteria`, …).
            batch_size: states that go through the model together.
            lang: language of the states, where the checkpoint has temperatures of its own for it.
            hooks, on_predict_start, on_predict_end: run after the default and the installed hooks.
            hooks_raise, hooks_timeout: the call's policy; None takes the Agent's.
            max_len, head_max_len: token budgets of a row and of its question; None takes the checkpoint's.
            min_confidence: threshold in [0, 1], or thresholds by bucket and `"default"`.

        Returns:
            One `{"model", "answers", "usage"}` a state.

        Raises:
            TypeError, ValueError: a state, a question or an option of the call is refused; the message names it.
        """
        with one_call():
            return self.begin_batch(
                states,
                questions,
                batch_size=batch_size,
                lang=lang,
                hooks=hooks,
                on_predict_start=on_predict_start,
                on_predict_end=on_predict_end,
                hooks_raise=hooks_raise,
                hooks_timeout=hooks_timeout,
                max_len=max_len,
                head_max_len=head_max_len,
                min_confidence=min_confidence,
            ).finish()

    def begin_batch(
        self,
        states: Sequence[Any],
        questions: Mapping[Any, Any],
        *,
        batch_size: int | None = None,
        lang: str | None = None,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
        min_confidence: float | Mapping[str, float] | None = None,
    ) -> BatchCall:
        """Begin what `predict_batch` does: start hooks and, with shared passes, rows on their way; wait for nothing.

        One thread can so have several calls under way that share passes. Arguments and errors as there.
        """
        check_min_confidence(min_confidence)
        _check_lang(lang)
        size = self.batch_size if batch_size is None else _check_batch_size(batch_size)
        run = self.hook_run(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)
        ctx = PredictContext(states, questions, model=self.model_id, agent=self)  # type: ignore[arg-type]  # checked inside the lifecycle, where hooks see the refusal
        ctx.lang, ctx.max_len, ctx.head_max_len = lang, max_len, head_max_len
        with nested_calls_fire_defaults():
            ctx.started_at = time.perf_counter()
            try:
                run.fire("on_predict_start", ctx)
                with recording(ctx.phases):
                    left = None if ctx.results is not None else self._inference(ctx, size)
            except BaseException as error:
                fail(ctx, run, error, min_confidence)
                raise
        return BatchCall(ctx, run, min_confidence, left)

    def system_one(
        self,
        state: Any,
        questions: Mapping[Any, Any],
        lang: str | None = None,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
        min_confidence: float | Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Answer the questions about one state: `predict_batch([state], …)[0]`."""
        return self.predict_batch(
            [state],
            questions,
            lang=lang,
            hooks=hooks,
            on_predict_start=on_predict_start,
            on_predict_end=on_predict_end,
            hooks_raise=hooks_raise,
            hooks_timeout=hooks_timeout,
            max_len=max_len,
            head_max_len=head_max_len,
            min_confidence=min_confidence,
        )[0]

    predict = system_one

    def _inference(self, ctx: PredictContext, batch_size: int) -> Inference:
        """Check the call; hand its rows to the shared passes, or keep all work for when its results are wanted."""
        check_states(ctx.states)
        lang = ctx.lang
        _check_lang(lang)  # again: a start hook may have assigned it
        states, questions = list(ctx.states), parse_questions(ctx.questions)
        max_len = _budget("max_len", ctx.max_len, self.cfg)
        head_max_len = _budget("head_max_len", ctx.head_max_len, self.cfg)
        if not questions:
            return Inference(lambda: [_empty_result() for _ in states])

        def encode(chunk: Sequence[Any]) -> list[EncodedState]:
            with phase(TOKENISE):
                return [self._encode_state(state, questions, max_len, head_max_len) for state in chunk]

        if self.batching is not None:
            # Shared passes are packed by tokens, and better the more rows they can choose from.
            encoded = encode(states)
            pending = self.batching.submit(self.checkpoint.kind, _rows(encoded), self.checkpoint.on_cpu)
            return Inference(lambda: self._results(questions, encoded, pending.result(), lang), pending.drop)

        def compute() -> list[dict[str, Any]]:
            results: list[dict[str, Any]] = []
            for chunk in map(encode, _chunks(states, batch_size)):
                results += self._results(questions, chunk, self._forward(_rows(chunk)), lang)
            return results

        return Inference(compute)

    def _results(
        self,
        questions: Sequence[Question],
        encoded: Sequence[EncodedState],
        scores: Sequence[RowScores],
        lang: str | None,
    ) -> list[dict[str, Any]]:
        left = iter(scores)
        return [
            {
                "model": RESULT_MODEL,
                "answers": self._decode_answers(questions, list(islice(left, len(one.rows))), lang),
                "usage": one.usage,
            }
            for one in encoded
        ]

    def _encode_state(self, state: Any, questions: Sequence[Question], max_len: int, head_max_len: int) -> EncodedState:
        return self.checkpoint.kind.encode(state, questions, max_len, head_max_len)

    def _forward(self, rows: Sequence[Row]) -> list[RowScores]:
        with phase(FORWARD):
            return self.checkpoint.kind.forward(rows)

    def _decode_answers(
        self, questions: Sequence[Question], scores: Sequence[RowScores], lang: str | None
    ) -> dict[Any, dict[str, Any]]:
        return decode_answers(questions, scores, self.checkpoint.calibration, lang)


def load(model_id_or_path: str = DEFAULT_MODELS["english"][0], **options: Any) -> Agent:
    """Load one checkpoint: `Agent(model_id_or_path, **options)`."""
    return Agent(model_id_or_path, **options)


def _empty_result() -> dict[str, Any]:
    return {"model": RESULT_MODEL, "answers": {}, "usage": {"input_tokens": 0, "output_tokens": 0}}


def _rows(encoded: Sequence[EncodedState]) -> list[Row]:
    return [row for one in encoded for row in one.rows]


def _chunks(states: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(states), size):
        yield states[start : start + size]


def _check_batch_size(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"batch_size must be a positive number of states, got {size!r}")
    return size


def _budget(name: str, value: Any, cfg: Mapping[str, Any]) -> int:
    if value is None:
        return int(cfg[name])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive number of tokens or None, got {value!r}")
    return value


def _check_lang(lang: Any) -> None:
    if lang is not None and not isinstance(lang, str):
        raise TypeError(f"lang must be a language code such as 'de', or None, not {type(lang).__name__}")
