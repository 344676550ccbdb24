"""A Django backend in one file: it has a Celery app of its own, which stays its own, and asks the workers beside it.

python -m examples.backends.django_app runserver
"""

import json
import os
import sys
from typing import Any

import django
from celery import Celery, shared_task
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from producer import InvalidRequest, LayaError, predict

WAIT_SECONDS = float(os.environ.get("WAIT_SECONDS", "10"))

if not settings.configured:
    settings.configure(
        DEBUG=False,
        SECRET_KEY="an example needs none that is secret",
        ALLOWED_HOSTS=["127.0.0.1", "localhost", "testserver"],
        ROOT_URLCONF=__name__,
        MIDDLEWARE=[f"{__name__}.say_errors"],
        USE_TZ=True,
    )
    django.setup()

# The project's own queue. Its `shared_task`s go there and nowhere else; the tasks of the workers have an app of theirs.
celery = Celery("shop", broker="memory://", set_as_current=True)


@shared_task
def send_receipt(order: int) -> str:
    """Do something of the project's own."""
    return f"receipt for order {order}"


def say_errors(get_response: Any) -> Any:
    """Middleware: every error of the tree as its HTTP status."""

    class SayErrors:
        def __call__(self, request: HttpRequest) -> HttpResponse:
            response: HttpResponse = get_response(request)
            return response

        def process_exception(self, _: HttpRequest, error: Exception) -> HttpResponse | None:
            if not isinstance(error, LayaError):
                return None
            headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
            return JsonResponse(error.as_entry(), status=error.http_status, headers=headers)

    return SayErrors()


@csrf_exempt
@require_POST
def predictions(request: HttpRequest) -> HttpResponse:
    """Ask the workers and wait."""
    try:
        body = json.loads(request.body)
        state, questions = body["state"], body["questions"]
    except (ValueError, KeyError, TypeError):
        raise InvalidRequest("send a JSON object with state and questions") from None
    return JsonResponse(predict(state, questions, timeout=WAIT_SECONDS, **body.get("options", {})))


urlpatterns = [path("predictions", predictions)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
