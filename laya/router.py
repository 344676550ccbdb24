"""Several checkpoints behind one call: choose one for each request, keep some resident, run the lifecycle around both.

The order of events is the page `docs/lifecycle.md`. What decides where a request goes is `laya.routing`, what stays in
memory `laya.residency`, how requests share forward passes `laya.grouping`. Importing this module imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from laya.asking import add_routing, ask, ask_groups, single_result
from laya.catalog import DEFAULT_MODELS
from laya.confidence import check_min_confidence
from laya.context import Batch, PredictContext, new_run_id, one_call
from laya.grouping import Request, by_checkpoint, by_pass, check_requests, context_of
from laya.hooks import HookCallable, HookRegistry, HookRun
from laya.identity import CheckpointIdentity, Foreseen
from laya.lifecycle import end_in_reverse, fail, measure
from laya.location import find_here
from laya.memory import Sizes
from laya.phases import LOAD, phase, recording
from laya.residency import Residency
from laya.routing import AnsweredElsewhere, LangGuess, RouteDecision, decide, prefer_resident_stand_in
from laya.sources import Source, Sources


class Router(HookRegistry):
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
        super().__init__(hooks, on_predict_start, on_predict_end, hooks_raise, hooks_concurrent, hooks_timeout)
        if isinstance(max_loaded, bool) or not isinstance(max_loaded, int) or max_loaded < 1:
            raise ValueError(f"max_loaded must be a positive number of checkpoints, got {max_loaded!r}")
        if max_memory is not None and max_memory < 1:
            raise ValueError(f"max_memory must be a positive number of bytes, got {max_memory!r}")
        self._sources = Sources(models)
        self.device, self.token = device, token
        self.revision = revision
        self.revisions = {self.resolve(name): value for name, value in (revisions or {}).items()}
        self.sha256_digests = {self.resolve(name): value for name, value in (sha256_digests or {}).items()}
        self.default = self.resolve(default)
        self.auto_task_detection, self.lang_guess = auto_task_detection, lang_guess
        self.agent_kwargs = dict(agent_kwargs or {})
        self.defer_load, self.prefer_resident = defer_load, prefer_resident
        self._foreseen = Foreseen()
        self.max_memory = max_memory
        self._residency = self._make_residency(max_loaded, evict_first)
        if preload is True:
            self.preload(list(models or DEFAULT_MODELS))
        elif preload:
            self.preload(preload)

    def __repr__(self) -> str:
        """Name what is resident and the settings that decide it."""
        return f"Router(loaded={self.loaded}, max_loaded={self.max_loaded}, default={self.default!r})"

    # --- checkpoints ---

    @property
    def loaded(self) -> list[str]:
        """Names of the resident checkpoints, least recently used first."""
        return self._residency.names

    @property
    def max_loaded(self) -> int:
        """How many checkpoints stay resident; `attach` and `preload` raise it when they bring more.

        Bytes where `max_memory` was given.
        """
        return self._residency.max_loaded

    def estimate(self, name: str) -> int:
        """What a registered checkpoint takes of `max_loaded`: 1, or bytes as its files or its last load say."""
        return 1 if self.max_memory is None else self._sizes.estimate(self.resolve(name))

    @property
    def models(self) -> dict[str, Source | None]:
        """A copy of name to source, the built-in ones included; None for a checkpoint that was attached."""
        return self._sources.as_dict()

    def resolve(self, name: str) -> str:
        """The registered name that a name or alias means; ValueError that lists them if none."""
        return self._sources.resolve(name)

    def register(self, name: str, source: Source) -> str:
        """Make `source` known under `name` (or point a known name elsewhere), and return the registered name.

        A resident checkpoint of that name stays until it is unloaded or evicted.

        Raises:
            ValueError: a blank name, or a source that is neither a path, a Hub id nor (repository, subfolder).
        """
        registered = self._sources.register(name, source)
        self._residency.forget_failure(registered)
        return registered

    def identity(self, name: str) -> CheckpointIdentity | None:
        """What the checkpoint of this name answers from, for keys of a cache. Loads nothing and evicts nothing.

        Of a resident checkpoint what was loaded, of another what a load would find now; hashing its files takes
        seconds the first time and is remembered while they stay as they are. A load may find others: whoever keeps an
        answer compares the identity with `ctx.agent.identity`, which is what answered.

        Returns:
            None where it is not known: the files are not on this machine or a load would be refused, or an Agent was
            attached that has none.

        Raises:
            ValueError: the name means no registered checkpoint.
        """
        resolved = self.resolve(name)
        agent = self._residency.peek(resolved)
        if agent is not None:
            known = getattr(agent, "identity", None)
            return known if isinstance(known, CheckpointIdentity) else None
        if self._sources.describe(resolved) is None:
            return None
        return self._foreseen.identity(resolved, *self._load_of(resolved))

    def load(self, name: str) -> Any:
        """The Agent of a checkpoint, built if it is not resident: then `on_evict` and `on_load` fire, outside any lock.

        Raises:
            ValueError: the name means no registered checkpoint, or the checkpoint is refused.
            FileNotFoundError: its files are not there.
        """
        resolved = self.resolve(name)
        return self._residency.get(resolved, lambda: self._build(resolved))

    def preload(self, names: Sequence[str] | None = None) -> Router:
        """Load several checkpoints (None: every registered one) with room for all of them, and return self."""
        wanted = list(dict.fromkeys(self.resolve(name) for name in (self._sources if names is None else names)))
        self._residency.max_loaded = max(self._residency.max_loaded, sum(map(self.estimate, wanted)))
        for name in wanted:
            self.load(name)
        return self

    def attach(self, name: str, agent: Any) -> Any:
        """Make a finished Agent resident under `name`, known or new, and return it. No `on_load`: nothing was built."""
        self._residency.put(self._sources.add_without_source(name), agent)
        return agent

    def unload(self, name: str | None = None) -> None:
        """Let go of one checkpoint, or of all; `on_evict` fires for each that was resident."""
        names = self.loaded if name is None else [self.resolve(name)]
        dropped = [each for each in names if self._residency.drop(each)]
        if dropped:
            self._announce(dropped, None)

    def _build(self, name: str) -> Any:
        from laya.agent import Agent  # noqa: PLC0415  # torch is imported when the first checkpoint is built

        repo, arguments = self._load_of(name)
        with phase(LOAD):
            return Agent(repo, **arguments)

    def _load_of(self, name: str) -> tuple[str, dict[str, Any]]:
        """From where and with which arguments the Agent of a name is built."""
        repo, subfolder = self._sources.place_of(name)
        arguments: dict[str, Any] = {
            "device": self.device,
            "token": self.token,
            "subfolder": subfolder,
            "revision": self.revisions.get(name, self.revision),
            "expected_sha256": self.sha256_digests.get(name),
        }
        return repo, arguments | self.agent_kwargs

    def _make_residency(self, max_loaded: int, evict_first: bool) -> Residency:
        self._sizes = Sizes(self._directory_of)
        if self.max_memory is None:
            return Residency(max_loaded, evict_first=evict_first, on_change=self._announce)
        return Residency(
            self.max_memory,
            evict_first=evict_first,
            on_change=self._announce,
            estimate=self._sizes.estimate,
            measure=self._sizes.measure,
        )

    def _directory_of(self, name: str) -> Path | None:
        """Where a checkpoint's files lie on this machine, None where they are not there yet."""
        repo, subfolder = self._sources.place_of(name)
        here = find_here(repo, subfolder=subfolder, revision=self.revisions.get(name, self.revision))
        return None if here is None else here.path

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
