"""A skip cache in memory: the second of two equal calls is answered without tokenisation and without a forward pass.

Install it after the hooks that rewrite a call (redaction, budgets), so that it keeps what was really asked. Give each
Agent or Router a cache of its own, since it knows a checkpoint by its name only. It does not know the `lang` of a call:
where an Agent has `lang_temperatures`, leave the cache out.

    python examples/hooks/cache.py [CHECKPOINT]
"""

import copy
import hashlib
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from laya import Agent, BaseHook, PredictContext

TINY = Path(__file__).parents[2] / "tests/data/golden/checkpoints/multilingual"

# They belong to the call that asked, not to the answer: another call has its own threshold and its own route.
GATE_FIELDS = {"low_confidence", "abstention", "abstention_threshold"}


class Cache(BaseHook):
    """Keeps the results of the last `size` different calls; safe to use from many threads."""

    def __init__(self, size: int = 1000) -> None:
        """Keep at most `size` entries, each the results of one call."""
        self.size = size
        self.hits = 0
        self._kept: OrderedDict[bytes, list[dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._kept)

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Skip the call if its results are known."""
        key = key_of(ctx)
        with self._lock:
            found = self._kept.get(key)
            if found is None or ctx.results is not None:
                return
            self._kept.move_to_end(key)
            self.hits += 1
        ctx.skip(copy.deepcopy(found))  # the gate and a Router write into what they are given

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Keep what the call produced, unless it failed."""
        if ctx.error is not None or not ctx.results:
            return
        key, plain = key_of(ctx), [plain_result(result) for result in ctx.results]
        with self._lock:
            self._kept.setdefault(key, plain)
            self._kept.move_to_end(key)
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)


def key_of(ctx: PredictContext) -> bytes:
    """Equal for calls that a checkpoint cannot tell apart.

    Made of `repr`, not of JSON: both keep the order of options, which changes the answer, but JSON makes the labels
    1 and "1" one key.
    """
    asked = repr((ctx.model, ctx.max_len, ctx.head_max_len, ctx.states, ctx.questions))
    return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).digest()


def plain_result(result: dict[str, Any]) -> dict[str, Any]:
    """A copy of a result without what belongs to the call that asked."""
    plain = copy.deepcopy({name: value for name, value in result.items() if name != "routing"})
    for answer in plain.get("answers", {}).values():
        for name in GATE_FIELDS & set(answer):
            del answer[name]
    return plain


def main(checkpoint: str) -> None:
    """Ask the same question twice."""
    cache = Cache(size=100)
    agent = Agent(checkpoint, device="cpu", hooks=cache)
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    for _ in range(2):
        answer = agent.predict("The page crashes when I log in.", questions)["answers"]["urgent"]
        print(f"urgent: {answer['noul']}  ({cache.hits} hits)")


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(TINY)])
