"""What is English, what is another language, what is undecided, and which part of a mixed state is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eldc
import pytest

from benchmarks import language
from laya.language import _LANGUAGE_OF_SCRIPT, EXCERPT_CHARACTERS, detect
from laya.latin import _word_lists

DEV = Path(__file__).parents[1] / "data" / "language" / "dev.jsonl"
ROWS = [json.loads(line) for line in DEV.read_text(encoding="utf-8").splitlines()]
OTHER_SCRIPTS = {"ar", "bn", "el", "fa", "he", "hi", "ja", "ko", "ru", "th", "uk", "zh"}

TICKET = """Hello support,

the app crashes every time I open the settings page on my phone. I already reinstalled it, but nothing helps.
Order 12345 was paid on Monday.

Best regards
John Miller"""


def sorted_as(text: Any) -> str:
    found = detect(text)
    return "undecided" if found["language_undecided"] else "english" if found["is_english"] else "other"


def share(rows: list[dict[str, str]], holds: Callable[[str], bool]) -> float:
    return sum(holds(sorted_as(row["text"])) for row in rows) / len(rows)


def prose(of: Callable[[str], bool]) -> list[dict[str, str]]:
    return [row for row in ROWS if row["source"] in {"ui", "cmd"} and of(row["language"])]


def test_99_of_100_texts_in_latin_script_that_are_not_english_are_never_english() -> None:
    rows = prose(lambda language: language != "en" and language not in OTHER_SCRIPTS)
    assert share(rows, lambda found: found != "english") >= 0.99


def test_98_of_100_of_them_are_known_to_be_another_language() -> None:
    rows = prose(lambda language: language != "en" and language not in OTHER_SCRIPTS)
    assert share(rows, lambda found: found == "other") >= 0.98


def test_every_text_in_another_script_is_another_language() -> None:
    assert share(prose(OTHER_SCRIPTS.__contains__), lambda found: found == "other") == 1


def test_99_of_100_english_texts_are_english() -> None:
    assert share(prose(lambda language: language == "en"), lambda found: found == "english") >= 0.99


def test_9_of_10_pieces_of_code_are_english() -> None:
    assert share([row for row in ROWS if row["source"] == "code"], lambda found: found == "english") >= 0.9


def test_emoji_and_single_words_are_undecided() -> None:
    assert share([row for row in ROWS if row["source"] == "emoji_misc"], lambda found: found == "undecided") == 1


NOT_ENGLISH = (
    """
Wo ist mein Paket?|Bitte kündigen|Geht nicht|Ich will mein Geld zurück|Der Server ist down|nein danke
Brauche Hilfe mit dem Login|Guten Tag, mein Internet ist down|Rechnung INV-2024-001 fehlt
donde esta mi pedido|no puedo entrar en mi cuenta|mot de passe oublie|je veux un remboursement|non funziona
gdzie jest moje zamowienie|var ar min order|jag kan inte logga in|hvor er min pakke|waar is mijn bestelling
kde je moje objednavka|hol a csomagom|missa tilaukseni on|di mana pesanan saya|nasaan ang order ko
siparisim nerede|sifarisim haradadir|Mənim sifarişim haradadır|Hesabıma daxil ola bilmirəm|don hang cua toi dau
mera khata band ho gaya hai|mujhe refund chahiye|privet kak dela|gde moy zakaz|wo xiang tui kuan
watashi no chuumon wa doko desu ka|Ble mae fy archeb?|Cá bhfuil mo ordú?|oda yangu iko wapi|iphi i-oda yami
waar is my bestelling|wou ass meng Bestellung|non on dago nire eskaera|hvar er pöntunin mín|kie estas mia mendo
Fejn hi l-ordni tiegħi?|komann mwen an kote li ye|buyurtmam qayerda|ku është porosia ime|ibo ni aṣẹ mi wa
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.parametrize("text", NOT_ENGLISH)
def test_short_transliterated_and_unlisted_languages_are_never_english(text: str) -> None:
    assert not detect(text)["is_english"]


@pytest.mark.parametrize(
    ("text", "script", "language"),
    [
        ("Որտե՞ղ է իմ պատվերը", "armenian", "hy"),
        ("სად არის ჩემი შეკვეთა", "georgian", "ka"),
        ("ትዕዛዜ የት ነው", "ethiopic", "am"),
        ("คำสั่งซื้อของฉันอยู่ที่ไหน", "thai", "th"),
        ("ការបញ្ជាទិញរបស់ខ្ញុំនៅឯណា", "khmer", "km"),
        ("ကျွန်ုပ်၏မှာယူမှု", "myanmar", "my"),
        ("මගේ ඇණවුම කොහෙද", "sinhala", "si"),
        ("ངའི་མངགས་ཉོ", "tibetan", "bo"),
        ("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "cherokee", None),
        ("ᐃᓄᒃᑎᑐᑦ", "canadian syllabics", None),
        ("ⵜⴰⵎⴰⵣⵉⵖⵜ", "tifinagh", None),
        ("我的订单在哪里", "han", "zh"),
        ("Где мой заказ", "cyrillic", "ru"),
        ("Πού είναι η παραγγελία μου", "greek", "el"),
    ],
)
def test_a_script_is_named_and_never_english(text: str, script: str, language: str | None) -> None:
    found = detect(text)
    assert (found["script"], found["language"], found["is_english"]) == (script, language, False)
    assert not found["language_undecided"]


@pytest.mark.parametrize(
    "text",
    [
        "https://www.rathaus-muenchen.de/termine",
        "www.example.com",
        "example.com",
        "alice@example.com",
        "/usr/local/bin/python",
        "C:\\Users\\alice\\report.docx",
        "Rechnung INV-2024-001",
        "Bestellnummer: 4711",
        "München",
        "Danke",
        "thanks!",
        "👍 great",
        "no;",
        "hi ;)",
        "12:30",
        "...",
        "Ω",
    ],
)
def test_a_name_an_address_or_a_single_word_is_never_english(text: str) -> None:
    assert not detect(text)["is_english"]


@pytest.mark.parametrize(
    "text",
    [
        '{"error": "timeout", "code": 504}',
        '{"id": 5, "status": "open", "assignee": null}',
        "def add(a, b): return a + b",
        "SELECT name FROM users WHERE id = 3",
        "kubectl get pods -n prod",
        "npm install react --save-dev",
        "TypeError: undefined is not a function",
        'console.log("hi")',
        "user_id",
        "getUserById",
        "INV-2024-0012",
        "550e8400-e29b-41d4-a716-446655440000",
        "ERR_CONNECTION_REFUSED",
        "GET /api/v1/users 200 12ms",
        "2024-05-01 12:00:01 ERROR [main] Connection refused",
        '#include <stdio.h>\nint main(void) {\n  printf("%d\\n", 42);\n  return 0;\n}',
    ],
)
def test_code_records_and_identifiers_are_english(text: str) -> None:
    assert detect(text)["is_english"]


@pytest.mark.parametrize(
    "text",
    [
        "José García called about his order.",
        "Flight LH123 from München to Zürich got cancelled",
        "My naïve café résumé was lost",
        "A temperature of 5 µm and Ω with α decay was measured",
        "It’s “fine” – really…",
        "Ｈｅｌｌｏ ｗｏｒｌｄ ｈｏｗ ａｒｅ ｙｏｕ",
        "please help, the аpp is broken",  # one Cyrillic look-alike
        TICKET,
    ],
)
def test_english_stays_english_with_names_accents_formulas_and_type(text: str) -> None:
    assert detect(text)["is_english"]


def test_foreign_words_in_code_are_another_language() -> None:
    assert sorted_as('print("Bitte geben Sie Ihren Namen ein")') == "other"


def test_values_of_json_text_are_read_as_values() -> None:
    assert detect('{"message": "Wo ist mein Paket?", "status": "open"}')["language"] == "de"


# Mixed states.


def with_line(line: str, at: int) -> str:
    lines = TICKET.split("\n")
    return "\n".join([*lines[:at], line, *lines[at:]])


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize(
    "line",
    [
        "Bitte rufen Sie mich zurück.",
        "Das Passwort darf nicht leer sein",
        "La commande n'est pas arrivée",
        "gracias",
        "Hvor er pakken min",
        "Где мой заказ?",
        "मेरा ऑर्डर कहाँ है",
    ],
)
def test_one_line_in_another_language_is_named(line: str, at: int) -> None:
    found = detect(with_line(line, at))
    assert (found["is_english"], found["language_undecided"], found["mixed_segment"]) == (False, False, line)


def test_one_hindi_field_among_english_ones_is_named() -> None:
    state = {"subject": "Where is my order?", "body": TICKET, "note": "मेरा ऑर्डर अभी तक नहीं आया", "priority": "high"}
    found = detect(state)
    assert (found["language"], found["mixed_segment"]) == ("hi", "मेरा ऑर्डर अभी तक नहीं आया")


def test_a_conversation_whose_last_turn_is_spanish_is_named() -> None:
    state = [
        {"role": "user", "content": "Where is my order?"},
        {"role": "assistant", "content": "It is on its way and will arrive tomorrow."},
        {"role": "user", "content": "Muchas gracias, pero necesito ayuda con otra cosa."},
    ]
    found = detect(state)
    assert (found["language"], found["mixed_segment"]) == ("es", "Muchas gracias, pero necesito ayuda con otra cosa.")


def test_another_language_within_a_sentence_is_seen() -> None:
    assert sorted_as("Please help, ich kann mich nicht einloggen") == "other"


def test_a_name_in_another_script_within_a_sentence_is_seen() -> None:
    assert detect("The order from 王伟 was lost")["mixed_segment"] == "The order from 王伟 was lost"


def test_a_line_in_another_language_late_in_a_long_text_is_seen() -> None:
    assert detect("\n".join([TICKET] * 30 + ["Bitte rufen Sie mich morgen zurück, es ist dringend"]))["mixed_segment"]


def test_a_segment_is_named_by_its_start_only() -> None:
    long = "Leider ist die Lieferung " * 20
    segment = detect(f"{TICKET}\n{long}")["mixed_segment"]
    assert segment is not None
    assert len(segment) <= EXCERPT_CHARACTERS
    assert long.startswith(segment)


def test_a_text_in_one_other_language_has_no_mixed_segment() -> None:
    assert detect("Wo ist mein Paket?\nIch warte seit Montag.")["mixed_segment"] is None


@pytest.mark.parametrize("size", [200, 5_000_000])
def test_another_script_anywhere_is_seen(size: int) -> None:
    english = "the order was lost again and again " * (size // 35 + 1)
    found = detect(english[: size // 2] + " मेरा " + english[size // 2 : size])
    assert (found["is_english"], "devanagari" in found["script_profile"]) == (False, True)


def test_another_script_among_many_other_characters_is_seen() -> None:
    assert not detect("the naïve café “menu” " * 60_000 + "да")["is_english"]


def test_keys_are_not_read() -> None:
    english_keys = {"customer message": "Wo ist mein Paket?", "what the customer wants to know": 5}
    german_keys = {"Nachricht des Kunden": "Where is my parcel, please?"}
    assert (sorted_as(english_keys), sorted_as(german_keys)) == ("other", "english")


# Figures of the result.


def test_the_profile_of_a_mixed_text_is_the_share_of_its_letters() -> None:
    found = detect("abcd мир")
    assert found["script_profile"] == {"latin": 0.5714, "cyrillic": 0.4286}
    assert (found["script"], found["non_latin_fraction"]) == ("latin", 0.4286)


def test_the_diacritic_rate_is_the_share_of_latin_letters_with_marks() -> None:
    assert detect("über Äpfel 123 мир")["diacritic_rate"] == round(2 / 9, 4)


def test_a_state_without_letters_has_no_script() -> None:
    found = detect({"amount": 5, "note": "12.50 €"})
    assert (found["script"], found["script_profile"], found["language_undecided"]) == (None, {}, True)


# The detector behind it.


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_importing_the_library_does_not_load_the_detector() -> None:
    assert run("import sys, laya, laya.language, laya.routing; print('eldc' in sys.modules)") == "False"


def test_threads_may_all_be_the_first_to_detect() -> None:
    code = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from laya.language import detect
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(16)
texts = ["Where is my order?", "Wo ist mein Paket?"] * 8
def first(text):
    barrier.wait()
    return detect(text)["language"]
with ThreadPoolExecutor(16) as pool:
    print(sorted(pool.map(first, texts)) == ["de"] * 8 + ["en"] * 8)
"""
    assert run(code) == "True"


def test_what_others_set_in_the_detector_does_not_reach_us() -> None:
    detect("start")
    eldc.set_languages("en,fr")
    eldc.set_scores(1)
    try:
        assert detect("Ich habe die Rechnung zweimal erhalten")["language"] == "de"
    finally:
        eldc.set_languages("")
        eldc.set_scores(3)


def test_the_page_names_every_language_that_a_detection_may() -> None:
    page = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
    listed = page.partition("names these 60:")[2].partition("## What")[0]
    named = set(re.findall(r"`([a-z]{2})`", listed))
    assert named >= {*eldc.LANGUAGES, *_LANGUAGE_OF_SCRIPT.values()}
    assert len(eldc.LANGUAGES) == 60


def test_no_word_counts_for_and_against_english() -> None:
    lists = _word_lists()
    assert not (lists.english & lists.foreign) | (lists.english & lists.neutral) | (lists.foreign & lists.neutral)


@pytest.mark.parametrize("word", ["the", "you", "have", "order", "refund", "don't", "yesterday", "password", "i"])
def test_a_common_english_word_never_counts_against_english(word: str) -> None:
    assert word not in _word_lists().foreign


def test_the_benchmark_keeps_its_bars_for_accuracy_and_writes_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    language.main(["--quick", "--json", str(file)])
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert {"name", "value", "unit", "bar", "limit", "holds"} == set(figures[0])
    assert [figure["name"] for figure in figures if figure["unit"] == "%" and not figure["holds"]] == []
