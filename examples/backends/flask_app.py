"""A Flask backend: submits, hands out a ticket, and is asked for the answer later; errors by their HTTP status.

flask --app examples.backends.flask_app run
"""

import os
import time
from typing import Any

from flask import Flask, Response, jsonify, request, url_for

from producer import DeadlineExceeded, InvalidRequest, LayaError, PredictionFailed, submit_prediction

WAIT_SECONDS = float(os.environ.get("WAIT_SECONDS", "60"))

app = Flask(__name__)


@app.errorhandler(LayaError)
def say(error: LayaError) -> tuple[Response, int, dict[str, str]]:
    """Answer with the status of the error, when to try again, and what to do."""
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
    return jsonify(error.as_entry()), error.http_status, headers


@app.post("/predictions")
def submit() -> tuple[Response, int, dict[str, str]]:
    """Put the request into the queue; 202 says where its answer will be."""
    body = request.get_json(silent=True)
    if not isinstance(body, dict) or not {"state", "questions"} <= body.keys():
        raise InvalidRequest("send a JSON object with state and questions")
    asked = (body["state"], body["questions"])
    task = submit_prediction.apply_async(asked, body.get("options"), expires=WAIT_SECONDS)
    place = url_for("answer", task_id=task.id, until=f"{time.time() + WAIT_SECONDS:.3f}")
    return jsonify(id=task.id), 202, {"Location": place}


@app.get("/predictions/<task_id>")
def answer(task_id: str) -> tuple[Response, int, dict[str, str]]:
    """Return the answer, its error, or 202 while neither is there and the time is not up."""
    task = submit_prediction.AsyncResult(task_id)
    if not task.ready():
        if time.time() > request.args.get("until", 0.0, float):  # a request that nobody takes stores no error
            raise DeadlineExceeded
        return jsonify(id=task_id, state=task.state), 202, {"Retry-After": "1"}
    result: Any = task.result
    if isinstance(result, LayaError):
        raise result
    if isinstance(result, Exception):
        raise PredictionFailed(f"the task ended as {task.state}", {"task_id": task_id})
    return jsonify(result), 200, {}
