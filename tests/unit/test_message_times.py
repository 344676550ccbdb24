"""Times that messages say: read as Celery reads them, whoever wrote them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from celery.utils.time import maybe_iso8601

from worker.messages import _time_of

BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    "text",
    [
        "2026-12-01T02:44:05.123456+00:00",
        "2026-12-01T02:44:05+01:00",
        "2026-12-01T02:44:05Z",
        "2026-12-01T02:44:05",
        "2026-12-01T24:00:00",
        "20261201T024405Z",
        "2026-12-01",
    ],
)
def test_a_time_is_the_one_that_celery_reads(text: str) -> None:
    found, expected = _time_of(text), maybe_iso8601(text)
    assert found is not None
    assert found == expected
    assert found.utcoffset() == expected.utcoffset()


@pytest.mark.parametrize("when", [datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=BERLIN)])
def test_a_time_stays_what_it_is(when: datetime) -> None:
    assert _time_of(when) is when


@pytest.mark.parametrize("value", ["soon", "2026-13-01", 5, ["2026-12-01"]])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)):
        _time_of(value)
