"""Language detection on labelled texts: how often each kind is sorted rightly, and what it costs.

The texts are those of `tests/data/language`, or any others in the same form: one JSON object a line with `language`,
`source` and `text`. `python -m benchmarks.language [--json FILE] [--data FILE] [--quick]`
"""

from __future__ import annotations

import json
import sys
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from laya.language import Detection, detect
from laya.routing import decide

DATA = Path(__file__).parents[1] / "tests" / "data" / "language" / "dev.jsonl"

_OTHER_SCRIPTS = """
am ar as be bg bn bo ckb dv el fa gu he hi hy ja ka kk km kn ko ky lo mk ml mn mr my ne or pa ps ru sa sd si sr ta te
tg th ti tt udm ug uk ur yi yue zh
"""
OTHER_SCRIPTS = frozenset(_OTHER_SCRIPTS.split())
"""Languages of the labels that are not written in Latin letters."""

# A state that is English apart from the one line put into it.
TICKET = (
    "Hello, the app crashes every time I open the settings page on my phone.",
    "I already reinstalled it and restarted the device, but nothing helps.",
    "Could you please look into it? My order number is 12345.",
)

TEXTS = {
    "English": "I was charged twice for my March subscription. Please refund one of the two payments and send me a "
    "corrected invoice, because my accountant needs it before the end of the week. Thank you very much for it.",
    "German": "Mir wurde mein Abo für März zweimal berechnet. Bitte erstatten Sie mir eine der beiden Zahlungen und "
    "schicken Sie mir eine korrigierte Rechnung, weil die Buchhaltung sie noch in dieser Woche braucht.",
    "Hindi": "मार्च की सदस्यता के लिए मुझसे दो बार पैसे लिए गए। कृपया इनमें से एक भुगतान वापस करें और मुझे सही बिल भेजें क्योंकि लेखाकार "
    "को इसी सप्ताह के अंत से पहले इसकी ज़रूरत है। आपका बहुत धन्यवाद।",
    "mixed": "I was charged twice for my subscription. Please refund one of the two payments this week.\nBitte rufen "
    "Sie mich zurück, am besten vormittags.\nThank you very much, and have a nice day, all of you.",
    "code": 'for (int i = 0; i < count; i++) { total += prices[i] * quantities[i]; }\nreturn {"total": total, "tax": '
    'total * 0.19, "invoice_id": "INV-2024-0012"};  // 550e8400-e29b-41d4-a716-446655440000',
}
"""Texts of about 200 characters."""

FIVE_MEGABYTES = 5_000_000


class Row(NamedTuple):
    """One labelled text."""

    language: str
    source: str
    text: str


def read_rows(path: Path) -> list[Row]:
    """The labelled texts of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Row(**{name: row[name] for name in Row._fields}) for row in map(json.loads, lines)]


def share(rows: Sequence[Row], holds: Callable[[Detection], bool]) -> float:
    """Share of the rows whose detection holds, in percent."""
    return 100 * sum(holds(detect(row.text)) for row in rows) / len(rows) if rows else 100.0


def accuracy(rows: Sequence[Row]) -> list[Figure]:
    """How often each kind of text is sorted rightly."""
    prose = [row for row in rows if row.source not in {"code", "emoji_misc"}]
    english = [row for row in prose if row.language == "en"]
    scripts = [row for row in prose if row.language in OTHER_SCRIPTS]
    latin = [row for row in prose if row.language != "en" and row.language not in OTHER_SCRIPTS]
    code = [row for row in rows if row.source == "code"]
    marks = [row for row in rows if row.source == "emoji_misc"]
    return [
        at_least(f"other languages in Latin letters, not English ({len(latin)})", share(latin, not_english), 99, "%"),
        told("  and known to be another language, not undecided", share(latin, other), "%"),
        at_least(f"other scripts, another language ({len(scripts)})", share(scripts, other), 100, "%"),
        at_least(f"English, to english ({len(english)})", share(english, is_english), 99, "%"),
        at_least(f"code, records, identifiers, to english ({len(code)})", share(code, is_english), 90, "%"),
        at_least(f"emoji and single words, undecided ({len(marks)})", share(marks, undecided), 100, "%"),
        told("one such line in Latin letters in an English ticket, found", found_in_ticket(latin), "%"),
        told("one line in another script in an English ticket, found", found_in_ticket(scripts), "%"),
    ]


def not_english(found: Detection) -> bool:
    """Whether a text is not sent to an English checkpoint."""
    return not found["is_english"]


def is_english(found: Detection) -> bool:
    """Whether a text is sent to an English checkpoint."""
    return found["is_english"]


def undecided(found: Detection) -> bool:
    """Whether a text goes to the default."""
    return found["language_undecided"]


def other(found: Detection) -> bool:
    """Whether a text is known to be another language."""
    return not found["is_english"] and not found["language_undecided"]


def found_in_ticket(rows: Sequence[Row]) -> float:
    """How often a line of another language in an English ticket leads to `multilingual`, in percent."""
    states = ["\n".join([*TICKET[:2], row.text, *TICKET[2:]]) for row in rows]
    chosen = [str(decide(state, default="english")["model"]) for state in states]
    return 100 * chosen.count("multilingual") / len(rows)


def microseconds(state: Any, *, rounds: int, calls: int) -> float:
    """What one detection costs: the best of some rounds, since others may use the machine as well."""
    return float(min(timeit.repeat(lambda: detect(state), number=calls, repeat=rounds))) / calls * 1e6


def speed(*, quick: bool) -> list[Figure]:
    """What detection costs for short texts and for a state of five megabytes."""
    rounds = 3 if quick else 25
    figures = [
        at_most(f"{name}, {len(text)} characters", microseconds(text, rounds=rounds, calls=100), 100, "µs")
        for name, text in TEXTS.items()
    ]
    for name, text in TEXTS.items():
        whole = (text + "\n") * (FIVE_MEGABYTES // (len(text.encode()) + 1))
        figures.append(at_most(f"{name}, 5 MB", microseconds(whole, rounds=3, calls=1) / 1000, 250, "ms"))
    many = ["please call back", "and send the invoice"] * 150_000
    figures.append(at_most("5 MB in 300,000 fields", microseconds(many, rounds=3, calls=1) / 1000, 250, "ms"))
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and save; the exit status is 1 if a bar is missed."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help="labelled texts, one a line")
    chosen = parser.parse_args(argv)
    figures = [*accuracy(read_rows(chosen.data)), *speed(quick=chosen.quick)]
    return report("Language detection", figures, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
