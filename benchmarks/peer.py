"""The same requests put to Celery with the PyPI package `laya` in an environment of its own, one `predict` a task.

The peer is configured as its users would: a threads pool, its Router, stock Celery. Both answer with one checkpoint of
random weights on the CPU, so that the ratio is about how requests reach the model.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import textwrap
import time
from pathlib import Path

import redis

from benchmarks.encoders import WORDS, write_random_checkpoint
from benchmarks.figures import Figure, told
from benchmarks.workers import Bench, until
from worker.server import EmbeddedServer

PEER_APP = textwrap.dedent("""
    import os
    import laya
    from celery import Celery

    url = os.environ["PEER_URL"]
    app = Celery("peer", broker=url, backend=url)
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)
    router = laya.Router(models={"english": os.environ["PEER_CHECKPOINT"]}, device="cpu", max_loaded=1)

    @app.task(name="peer.predict")
    def predict(state, questions):
        return router.predict(state, questions, model="english")
""")

QUESTIONS = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "support", "sales"]},
    "refund": {"type": "noul", "instructions": "Does the writer want a refund?"},
}


def peer_figures(scratch: Path, python: str, number: int) -> list[Figure]:
    """Requests a second of both, and the ratio."""
    checkpoint = write_random_checkpoint(scratch / "peer-checkpoint")
    rng = random.Random(11)
    states = [" ".join(rng.choices(WORDS, k=rng.randint(5, 250))) for _ in range(number)]
    with EmbeddedServer() as server:
        ours = _ours(server, scratch, checkpoint, states)
    with EmbeddedServer() as server:
        theirs = _theirs(server, scratch, python, checkpoint, states)
    return [
        told("real encoder on the CPU, through the queue: laya-workers", ours, "requests/s"),
        told("the same, Celery with the PyPI package laya", theirs, "requests/s"),
        told("laya-workers against Celery with the PyPI package", ours / theirs, "x"),
    ]


def _ours(server: EmbeddedServer, scratch: Path, checkpoint: Path, states: list[str]) -> float:
    bench = Bench(server, scratch, f"english={checkpoint},multilingual={checkpoint}")
    with bench.worker("-c", "32", LAYA_PRELOAD="english") as process:
        with bench.filling(process):
            bench.publish([(bench.submit_prediction, (state, QUESTIONS), {"model": "english"}) for state in states])
        rate, _ = bench.drain(process, len(states))
    bench.close()
    return rate


def _theirs(server: EmbeddedServer, scratch: Path, python: str, checkpoint: Path, states: list[str]) -> float:
    (scratch / "peer_app.py").write_text(PEER_APP, encoding="utf-8")
    log = scratch / "peer.log"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PEER_URL": server.url,
        "PEER_CHECKPOINT": str(checkpoint),
    }
    publish = textwrap.dedent("""
        import json, sys, peer_app
        for state, questions in json.load(sys.stdin):
            peer_app.predict.delay(state, questions)
    """)
    command = [python, "-m", "celery", "-A", "peer_app", "worker", "-P", "threads", "-c", "32", "-l", "INFO"]
    with log.open("wb") as output:
        worker = subprocess.Popen(command, cwd=scratch, env=environment, stdout=output, stderr=output)
    try:
        until(lambda: "ready." in log.read_text(errors="replace"), f"the peer's start, see {log}")

        requests = json.dumps([(state, QUESTIONS) for state in states])
        with redis.Redis.from_url(server.url) as client:
            publisher = subprocess.Popen(
                [python, "-c", publish], cwd=scratch, env=environment, stdin=subprocess.PIPE, text=True
            )
            publisher.communicate(requests)
            started = time.perf_counter()
            left = client.llen("celery") + client.hlen("unacked")
            until(lambda: client.llen("celery") + client.hlen("unacked") == 0, "the peer's queue to run empty", 0.02)
            return float(left) / (time.perf_counter() - started)
    finally:
        worker.terminate()
        worker.wait(60)
