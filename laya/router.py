"""Several checkpoints behind one call: choose one for each request, load it if need be, run the lifecycle around both.

The order of events is the page `docs/lifecycle.md`. What decides where a request goes is `laya.routing`, which
checkpoints there are and stay in memory `laya.registry`, how requests share forward passes `laya.grouping`. Importing
this module imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from laya.asking import add_routing, ask, ask_groups, single_result
from laya.catalog import DEFAULT_MODELS
from laya.confidence import check_min_confidence
from laya.context import Batch, PredictContext, new_run_id, one_call
from laya.grouping import Request, by_checkpoint, by_pass, check_requests, context_of
from laya.hooks import HookCallable, HookRegistry, HookRun
from laya.lifecycle import end_in_reverse, fail, measure
from laya.phases import recording
from laya.registry import CheckpointRegistry
from laya.routing import AnsweredElsewhere, LangGuess, RouteDecision, decide, prefer_resident_stand_in
from laya.sources import Source


class Router(HookRegistry, CheckpointRegistry):
    """Chooses a checkpoint for each request and keeps some of them resident. Safe to call from many threads."""

    def __init__(
        self,
        models: Mapping[str, Source] | None = None,
        device: str | None = None,
        token: str | None = None,
        revision: str | None = None,
        revisions: Mapping[str, str | None] | None = None,
        max_loaded: int = 2,
        default: str = "multilingual",
        auto_task_detection: bool = False,
        preload: bool | Sequence[str] = False,
        lang_guess: LangGuess | None = None,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool = True,
        hooks_concurrent: bool = True,
        hooks_timeout: float | None = None,
        agent_kwargs: Mapping[str, Any] | None = None,
        sha256_digests: Mapping[str, Mapping[str, str] | None] | None = None,
        *,
        defer_load: bool = False,
        prefer_resident: bool = False,
        evict_first: bool = False,
        max_memory: int | None = None,
    ) -> None:
        """Register the checkpoints; none is loaded before it is needed, unless `preload` says so.

        Args:
            models: name to source; adds to the built-in names, or points one of them elsewhere.
            device, token: for every Agent that is built.
            revision, revisions: Hub commit, branch or tag for all checkpoints, or by name.
            max_loaded: how many checkpoints stay resident.
            default: the checkpoint for text whose language is undecided.
            auto_task_detection: send requests whose question ids are a known workflow's to `typed-decisions`.
            preload: True for every checkpoint given in `models` (every built-in one without), or their names.
            lang_guess: a language code, or a callable of the state, for calls that bring none.
            hooks, on_predict_start, on_predict_end, hooks_raise, hooks_concurrent, hooks_timeout: see `laya.hooks`.
            agent_kwargs: more arguments for every Agent (`dtype`, `lang_temperatures`, `batch_size`, `hooks`, …).
            sha256_digests: name to the `expected_sha256` of its Agent.
            defer_load: load after the start hooks, and only if something is left to infer, so that a hit loads nothing.
            prefer_resident: where detection chose a checkpoint that is not resident, use a declared stand-in that is.
            evict_first: make room before a build instead of after it, where memory holds no more than `max_loaded`.
            max_memory: how many bytes of checkpoints stay resident, instead of `max_loaded`.

        Raises:
            ValueError: `max_loaded` or `max_memory` below 1, or a default or preloaded name that is not registered.
        """
        HookRegistry.__init__(
            self, hooks, on_predict_start, on_predict_end, hooks_raise, hooks_concurrent, hooks_timeout
        )
        CheckpointRegistry.__init__(
            self,
            models,
            device,
            token,
            revision,
            revisions,
            sha256_digests,
            agent_kwargs,
            max_loaded=max_loaded,
            max_memory=max_memory,
            evict_first=evict_first,
            on_change=self._announce,
        )
        self.default = self.resolve(default)
        self.auto_task_detection, self.lang_guess = auto_task_detection, lang_guess
        self.defer_load, self.prefer_resident = defer_load, prefer_resident
        if preload is True:
            self.preload(list(models or DEFAULT_MODELS))
        elif preload:
            self.preload(preload)

    def __repr__(self) -> str:
        """Name what is resident and the settings that decide it."""
        return f"Router(loaded={self.loaded}, max_loaded={self.max_loaded}, default={self.default!r})"

    def _announce(self, evicted: Sequence[str], built: tuple[str, Any] | None) -> None:
        run = self.hook_run()
        failures: list[BaseException] = []
        events = [("on_evict", PredictContext([], {}, model=name, router=self)) for name in evicted]
        if built is not None:
            name, agent = built
            events.append(("on_load", PredictContext([], {}, model=name, agent=agent, router=self)))
        for event, ctx in events:
            try:
                run.fire_each(event, ctx)
            except BaseException as error:  # noqa: BLE001  # raised below, after every event has been told
                failures.append(error)
        if failures:
            raise failures[0]

    # --- routing ---

    def route(
        self,
        state: Any,
        questions: Mapping[Any, Any] | None = None,
        model: str | None = None,
        task: str | None = None,
        lang: str | None = None,
        lang_guess: LangGuess | None = None,
        hooks: Any = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
    ) -> RouteDecision:
        """Where a request goes, after `on_route` hooks; loads nothing. See `laya.routing.decide` for the order.

        Raises:
            ValueError: a name or task that is not known.
        """
        run = self.hook_run(hooks, hooks_raise=hooks_raise, hooks_timeout=hooks_timeout)
        request = Request(state, questions or {}, model=model, task=task, lang=lang, lang_guess=lang_guess)
        return self._route(request, run, new_run_id())

    def route_batch(
        self,
        requests: Sequence[Mapping[str, Any]],
        hooks: Any = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
    ) -> list[RouteDecision]:
        """Where each request goes, in order; `on_route` fires once a request and nothing is loaded.

        Raises:
            TypeError, ValueError: a request that is not a mapping with `state` and `questions`, named by its position.
        """
        run = self.hook_run(hooks, hooks_raise=hooks_raise, hooks_timeout=hooks_timeout)
        return [self._route(request, run, new_run_id()) for request in check_requests(requests)]

    def _route(self, request: Request, run: HookRun, run_id: str) -> RouteDecision:
        """Decide, let `on_route` hooks replace the decision, and return what stands in the end."""
        ctx = PredictContext([request.state], request.questions, run_id=run_id, router=self, lang=request.lang)
        decision = decide(
            request.state,
            request.questions,
            model=request.model,
            task=request.task,
            lang=request.lang,
            lang_guess=request.lang_guess,
            router_lang_guess=self.lang_guess,
            default=self.default,
            auto_task_detection=self.auto_task_detection,
            canonical=self.resolve,
            repo_of=self._sources.describe,
        )
        if self.prefer_resident:
            decision = prefer_resident_stand_in(decision, self.loaded, self._sources.describe)
        ctx.decision = decision
        run.fire("on_route", ctx)
        final = ctx.decision
        if not isinstance(final, Mapping) or "model" not in final:
            raise TypeError(
                f"an on_route hook left ctx.decision as {type(final).__name__}; "
                "it must be a mapping with the key 'model'"
            )
        return final if isinstance(final, RouteDecision) else RouteDecision(final)

    # --- predictions ---

    def predict(
        self,
        state: Any,
        questions: Mapping[Any, Any],
        model: str | None = None,
        task: str | None = None,
        lang: str | None = None,
        lang_guess: LangGuess | None = None,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
        max_len: int | None = None,
        head_max_len: int | None = None,
        min_confidence: float | Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Route one request, load its checkpoint if need be, and answer it.

        Returns:
            `{"model", "answers", "usage", "routing"}`; `routing` is the decision.

        Raises:
            TypeError, ValueError: the state, a question or an option is refused; the message names it.
        """
        check_min_confidence(min_confidence)
        run = self.hook_run(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)
        request = Request(state, questions, model, task, lang, lang_guess, max_len, head_max_len, min_confidence)
        with one_call(), ExitStack() as in_use:
            return self._predict_one(request, run, in_use)

    system_one = predict

    def _predict_one(self, request: Request, run: HookRun, in_use: ExitStack) -> dict[str, Any]:
        """Answer one request. Its context is gone before the checkpoint's use ends: it would hold the evicted Agent."""
        ctx = context_of(request, self, new_run_id())
        try:
            ctx.decision = self._route(request, run, ctx.run_id)
            ctx.model = self.resolve(ctx.decision["model"])
            if not self.defer_load:
                in_use.enter_context(self._using([ctx]))
            ctx.started_at = time.perf_counter()
            run.fire("on_predict_start", ctx)
            if ctx.results is None:
                if self.defer_load:
                    in_use.enter_context(self._using([ctx]))
                ask(ctx)
            add_routing(ctx)
            measure(ctx, request.min_confidence)
        except AnsweredElsewhere:
            raise
        except BaseException as error:
            fail(ctx, run, error, request.min_confidence)
            raise
        run.fire_each("on_predict_end", ctx)
        return single_result(ctx)

    def predict_batch(
        self,
        requests: Sequence[Mapping[str, Any]],
        batch_size: int | None = None,
        min_confidence: float | Mapping[str, float] | None = None,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Answer many requests, in order, sharing forward passes; each result is what `predict` returns for it.

        Args:
            requests: mappings with `state` and `questions`, and any of `model`, `task`, `lang`, `lang_guess`,
                `max_len`, `head_max_len`, `min_confidence`.
            batch_size: states that go through a model together.
            min_confidence: for requests that bring none of their own.
            hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout: as in `predict`, once a request.

        Raises:
            TypeError, ValueError: a request is refused; the message names its position or its question. Requests of
                checkpoints that had finished before have had their end hooks, with their results.
        """
        check_min_confidence(min_confidence)
        run = self.hook_run(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_timeout)
        checked = check_requests(requests, min_confidence)
        run_ids = [new_run_id() for _ in checked]
        decisions = [self._route(request, run, run_id) for request, run_id in zip(checked, run_ids, strict=True)]
        models = [self.resolve(decision["model"]) for decision in decisions]
        results: list[dict[str, Any]] = [{} for _ in checked]
        for places in by_checkpoint(models):
            routed = [(checked[at], run_ids[at], decisions[at]) for at in places]
            with one_call(), ExitStack() as in_use:
                answered = self._predict_group(models[places[0]], routed, run, batch_size, in_use)
            for at, result in zip(places, answered, strict=True):
                results[at] = result
        return results

    def _predict_group(
        self,
        model: str,
        routed: Sequence[tuple[Request, str, RouteDecision]],
        run: HookRun,
        batch_size: int | None,
        in_use: ExitStack,
    ) -> list[dict[str, Any]]:
        """Answer the requests of one checkpoint: all starts, shared passes, then all ends in reverse.

        Their contexts are gone before the checkpoint's use ends: they would hold the Agent that the next load evicts.
        """
        batch = Batch(tuple(request for request, _, _ in routed))
        group = [
            (request, context_of(request, self, run_id, decision, model, batch)) for request, run_id, decision in routed
        ]
        started: list[tuple[Request, PredictContext]] = []
        try:
            if not self.defer_load:
                in_use.enter_context(self._using([ctx for _, ctx in group]))
            for request, ctx in group:
                started.append((request, ctx))
                ctx.started_at = time.perf_counter()
                run.fire("on_predict_start", ctx)
            left = [(request, ctx) for request, ctx in group if ctx.results is None]
            if left and self.defer_load:
                in_use.enter_context(self._using([ctx for _, ctx in group]))
            if left:
                ask_groups(by_pass(left), batch_size)
            for request, ctx in group:
                add_routing(ctx)
                measure(ctx, request.min_confidence)
        except BaseException as error:
            for request, ctx in reversed(started):
                fail(ctx, run, error, request.min_confidence)
            raise
        end_in_reverse([ctx for _, ctx in group], run)
        return [single_result(ctx) for _, ctx in group]

    @contextmanager
    def _using(self, contexts: Sequence[PredictContext]) -> Iterator[None]:
        """Keep the contexts' checkpoint in use for the block, and leave the time that it took to load out of theirs."""
        name = contexts[0].model
        before = time.perf_counter()
        with ExitStack() as in_use:
            with recording(*(ctx.phases for ctx in contexts)):
                agent = in_use.enter_context(self._residency.use(name, lambda: self._build(name)))  # type: ignore[arg-type]  # it was routed
            loading = time.perf_counter() - before
            for ctx in contexts:
                ctx.agent = agent
                ctx.started_at += loading
            del agent, ctx, contexts
            yield
