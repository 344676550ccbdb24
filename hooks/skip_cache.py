"""The skip cache that all workers share: equal requests are computed once in the fleet.

A hook of the lifecycle, and only the order of its events: when something is looked for, what a hit does, when an
answer is kept. Keys, values, the server and who waits for whom have modules of their own, `hooks.cache_…`.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hooks import cache_value
from hooks.cache_batch import BatchSearch
from hooks.cache_flight import FLIGHTS, Flight, Flights
from hooks.cache_key import CacheKey, Place, make_key
from hooks.cache_links import Links
from hooks.cache_local import LocalLevel
from hooks.cache_places import Found, Places, Wanted
from hooks.cache_search import Search
from hooks.cache_settings import CacheSettings, address_of, warn_of_one_server
from hooks.cache_stats import CacheStats, Counters
from hooks.cache_store import CacheStore, StoreAway
from hooks.cache_writer import Job, Writer
from hooks.scope import current
from laya import BaseHook, PredictContext
from laya.batching import time_left
from laya.identity import CheckpointIdentity
from laya.phases import Phase

logger = logging.getLogger(__name__)

CACHE: str = "cache"
"""Name of the phase that a look-up is, in `ctx.phases`."""

_AGENT_HOOKS = ("hooks", "on_predict_start", "on_predict_end")


@dataclass(slots=True)
class _Miss:
    """What a call that has to compute owes to others: a flight of this process, a lease of the fleet."""

    keys: Sequence[CacheKey]
    flight: Flight | None = None
    token: str = ""


class SkipCache(BaseHook):
    """Answers a call that was answered before, by any worker, without loading a checkpoint and without a forward pass.

    It never fails a call, and a server that is slow or away costs a call no more than `LAYA_CACHE_BUDGET_MS`. Install
    it after the hooks that rewrite a call. Safe to use from many threads.
    """

    raise_errors = False
    asks_identities = True
    """A worker finds out what its checkpoints are while nobody waits for it."""

    def __init__(self, settings: CacheSettings | None = None, *, flights: Flights = FLIGHTS) -> None:
        """Use these settings, else those of the environment. Nothing is connected before the first call.

        Args:
            settings: see `docs/settings.md`.
            flights: whose equal calls wait for one another; those of the process.

        Raises:
            ValueError: a setting cannot be used.
        """
        settings = settings or CacheSettings()
        warn_of_one_server(settings)
        self._settings = settings
        self._counters = Counters()
        self._store = CacheStore(
            Links(settings.url),
            address_of(settings.url),
            budget=settings.cache_budget_ms / 1000,
            ttl=settings.cache_ttl,
            lease=settings.cache_lease,
            pause=settings.cache_pause,
        )
        self._writer = Writer(self._store, self._counters, settings.cache_compress_above)
        self._flights = flights
        local = LocalLevel(settings.cache_local_bytes)
        places = Places(self._store, self._writer, local, self._counters)
        self._search = Search(places, self._store, flights, self._counters, settings.cache_lease)
        self._batches = BatchSearch(places, self._store, flights, self._counters, settings.cache_lease)
        self._misses: weakref.WeakKeyDictionary[PredictContext, _Miss] = weakref.WeakKeyDictionary()
        self._misses_lock = threading.Lock()

    def __repr__(self) -> str:
        """Name the server, without what its URL holds besides, and how it is."""
        return f"SkipCache({address_of(self._settings.url)}, {self._store.reading.state})"

    # --- events ---

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Skip the call if its answer is known, or becomes known while another computes it."""
        started = time.perf_counter()
        try:
            found = self._find(ctx)
        except Exception as error:  # noqa: BLE001  # a cache is no reason to fail
            self._failed("look-up", error)
            found = None
        if found is None:
            self._counters.add(bypassed=1)
        ctx.phases.append(Phase(CACHE, started, time.perf_counter() - started))

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Let the others search for themselves where this call has computed nothing."""
        if ctx.batch is not None:
            self._batches.over(ctx.batch)
        with self._misses_lock:
            miss = self._misses.pop(ctx, None)
        if miss is not None:
            self._give_up(miss)

    def _computed(self, ctx: PredictContext, results: Sequence[Mapping[str, Any]]) -> None:
        """Keep what the call computed, as the checkpoint computed it, and hand it to those who wait."""
        with self._misses_lock:
            miss = self._misses.pop(ctx, None)
        if miss is None:
            return
        try:
            texts = self._texts(ctx, miss, results)
        except Exception as error:  # noqa: BLE001
            self._failed("writing", error)
            texts = None
        if texts is None:
            self._give_up(miss)
            return
        if miss.flight is not None:
            self._flights.land(miss.flight, texts[0])
        for key, text in zip(miss.keys, texts, strict=True):
            self._keep(key, text, miss)

    # --- what others may read and do ---

    def stats(self) -> CacheStats:
        """What the cache did since it was made."""
        return self._counters.snapshot(self._store.reading.state)

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until what was computed is written, at most so long; whether it is."""
        return self._writer.flush(seconds)

    def close(self) -> None:
        """Write what waits to be written, for a second, and let go of the connections. A later call opens new ones."""
        self._writer.flush(1.0)
        self._writer.drop()
        self._store.close()

    # --- looking up ---

    def _find(self, ctx: PredictContext) -> bool | None:
        """Whether the call was answered; None where the cache leaves it alone."""
        if ctx.results is not None or not current().store:
            return None
        identity = identity_of(ctx)
        keys = None if identity is None else self._keys(ctx, identity)
        if identity is None or not keys:
            return None
        if len(keys) > 1:
            return self._find_several(ctx, keys)
        (key,) = keys
        wanted = Wanted(key, ctx.questions, ctx.call_id, lambda: self._patience(ctx))
        if ctx.batch is None:
            found = self._search.one(wanted)
        else:
            found = self._batches.one_of(ctx.batch, wanted, lambda: self._keys_of_batch(ctx, identity))
        return self._settle(ctx, keys, found)

    def _find_several(self, ctx: PredictContext, keys: Sequence[CacheKey]) -> bool | None:
        """An Agent's call with several states: all are known, or all are computed."""
        try:
            results = self._search.several(keys, ctx.questions)
        except StoreAway:
            return self._settle(ctx, keys, Found(asked=False))
        known = [result for result in results if result is not None]
        if len(known) < len(keys):
            return self._settle(ctx, keys, Found())
        ctx.skip(known)
        self._counters.add(hits=1)
        return True

    def _settle(self, ctx: PredictContext, keys: Sequence[CacheKey], found: Found) -> bool | None:
        if found.result is not None:
            ctx.skip([found.result])
            self._counters.add(hits=1)
            return True
        with self._misses_lock:
            self._misses[ctx] = _Miss(keys, found.flight, found.token)
        ctx.when_computed(self._computed)
        if ctx.elapsed_ms is not None:  # it has ended: this hook ran out of its time
            self.on_predict_end(ctx)
        if not found.asked:
            return None
        self._counters.add(misses=1)
        return False

    def _keys(self, ctx: PredictContext, identity: CheckpointIdentity) -> list[CacheKey] | None:
        """The key of each state of a call, None where one has none."""
        keys = [self._key(ctx, identity, ctx, state) for state in ctx.states]
        return None if None in keys else [key for key in keys if key is not None]

    def _keys_of_batch(self, ctx: PredictContext, identity: CheckpointIdentity) -> list[CacheKey]:
        """The keys of a batch's requests as their caller made them: a guess, since hooks may rewrite each."""
        requests = () if ctx.batch is None else ctx.batch.requests
        keys = (self._key(ctx, identity, request, request.state) for request in requests)
        return [key for key in keys if key is not None]

    def _key(self, ctx: PredictContext, identity: CheckpointIdentity, asked: Any, state: Any) -> CacheKey | None:
        return make_key(
            Place(self._settings.namespace, current().namespace, str(ctx.model)),
            identity,
            state,
            asked.questions,
            lang=asked.lang,
            max_len=asked.max_len,
            head_max_len=asked.head_max_len,
        )

    def _patience(self, ctx: PredictContext) -> float:
        """Seconds that this call may wait for another."""
        owner: Any = ctx.router if ctx.router is not None else ctx.agent
        if not getattr(owner, "hooks_concurrent", False):
            return 0.0  # nobody else's hooks run while this one waits
        limits = [self._settings.cache_lease]
        timeout = getattr(owner, "hooks_timeout", None)
        if timeout is not None:
            limits.append(timeout / 2)
        left = time_left()
        if left is not None:
            limits.append(left)
        return min(limits)

    # --- keeping ---

    def _texts(
        self, ctx: PredictContext, miss: _Miss, results: Sequence[Mapping[str, Any]]
    ) -> list[bytes | None] | None:
        """The text of each result, None in place of one that cannot be kept; None if they answer something else.

        What answered is what counts: a later hook may have rewritten the call, or a load found other files.
        """
        identity = identity_of(ctx)
        keys = None if identity is None else self._keys(ctx, identity)
        if keys != list(miss.keys) or len(results) != len(miss.keys):
            return None
        return [
            cache_value.write(result, key.digest, ctx.questions) for key, result in zip(miss.keys, results, strict=True)
        ]

    def _keep(self, key: CacheKey, text: bytes | None, miss: _Miss) -> None:
        flight = miss.flight
        done: Callable[[], None] | None = None if flight is None else lambda: self._flights.end(flight)
        if text is None or len(text) > self._settings.cache_max_bytes:
            self._counters.add(unstored=1)
            text = None
        self._writer.put(Job(key, text, miss.token, done))

    def _give_up(self, miss: _Miss) -> None:
        if miss.flight is not None:
            self._flights.land(miss.flight, None)
        if miss.token:
            self._writer.put(Job(miss.keys[0], None, miss.token))

    def _failed(self, what: str, error: Exception) -> None:
        """A mistake of ours. The text of the error may repeat a state, so the log has its type alone."""
        self._counters.add(errors=1)
        logger.error("The skip cache's %s failed with %s", what, type(error).__name__)


def identity_of(ctx: PredictContext) -> CheckpointIdentity | None:
    """What answers a call, or would after a load; None where it is not known, or its answers are changed by hooks.

    An Agent's own hooks run inside a Router's call and may rewrite anything; a key says nothing of them.
    """
    if ctx.agent is not None:
        if ctx.router is not None and getattr(ctx.agent, "hooks", None):
            return None
        known = getattr(ctx.agent, "identity", None)
        return known if isinstance(known, CheckpointIdentity) else None
    if ctx.router is None or any(ctx.router.agent_kwargs.get(name) for name in _AGENT_HOOKS):
        return None
    return ctx.router.identity(str(ctx.model))
