"""A FastAPI backend: waits for answers without blocking, says each error by its HTTP status, and serves a page.

uvicorn examples.backends.fastapi_app:app
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import redis
from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from kombu.utils.uuid import uuid

from producer import LayaError, apredict, served
from producer.app import app as queue
from worker.announcements import read  # needs no torch

PAGE = Path(__file__).parent / "page"
WAIT_SECONDS = float(os.environ.get("WAIT_SECONDS", "10"))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """End what waiting for results keeps open, when the server stops or reloads."""
    yield
    await asyncio.to_thread(queue.close)


app = FastAPI(title="Typed decisions", lifespan=lifespan)
app.mount("/page", StaticFiles(directory=PAGE), name="page")


@app.exception_handler(LayaError)
async def say(_: Request, error: LayaError) -> Response:
    """Answer with the status of the error, when to try again, and what to do."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
    return JSONResponse(error.as_entry(), error.http_status, headers)


@app.get("/")
async def page() -> Response:
    """Serve the page."""
    return FileResponse(PAGE / "index.html")


@app.post("/predictions")
async def predict(
    state: Annotated[Any, Body()],
    questions: Annotated[dict[str, Any], Body()],
    options: Annotated[dict[str, Any] | None, Body()] = None,
) -> dict[str, Any]:
    """Ask the workers and wait."""
    task_id = uuid()
    result = await apredict(state, questions, WAIT_SECONDS, task_id=task_id, **(options or {}))
    return {"result": result, "served": await asyncio.to_thread(served, task_id)}


@app.get("/workers")
def workers() -> dict[str, Any]:
    """Who is there, and what each holds in memory."""
    settings = queue.settings
    facts: dict[str, Any] = {"workers": [], "checkpoints": settings.names}
    try:
        with redis.Redis.from_url(settings.broker_url, socket_timeout=2) as client:
            fleet = read(client, settings.namespace, settings.names)
    except redis.RedisError:
        return facts | {"error": "the broker does not answer"}
    for worker in fleet.workers:
        facts["workers"].append(
            {
                "name": worker.node,
                "holds": list(worker.holds),
                "loading": list(worker.loading),
                "rate": sum(worker.rates.values()),
                "up": time.time() - worker.started,
            }
        )
    return facts
