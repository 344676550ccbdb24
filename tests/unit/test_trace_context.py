"""What a backend's trace context adds to a message, where it uses OpenTelemetry's API and no SDK."""

from __future__ import annotations

from opentelemetry import baggage, context

from producer.tracing import publishing


def test_a_context_is_sent_on_also_where_nobody_records() -> None:
    token = context.attach(baggage.set_baggage("shop", "books"))
    try:
        with publishing("a task", "its id", "a queue", {"own": 1}) as headers:
            assert headers["own"] == 1
            assert headers["baggage"] == "shop=books"
    finally:
        context.detach(token)


def test_headers_that_are_there_already_stay() -> None:
    token = context.attach(baggage.set_baggage("shop", "books"))
    try:
        with publishing("a task", "its id", "a queue", {"baggage": "shop=films"}) as headers:
            assert headers["baggage"] == "shop=films"
    finally:
        context.detach(token)
