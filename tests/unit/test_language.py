"""What is English, what is another language, what is undecided; and that no state is too odd to be read."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import language
from laya.language import _LANGUAGE_OF_SCRIPT, EXCERPT_CHARACTERS, detect
from laya.latin import _word_lists
from laya.scripts import count_letters, find_other_script, script_of
from laya.segments import MAX_PARTS, MAX_VALUES, PART_CHARACTERS, read_strings, split_parts
from laya.tokens import words_of

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


# What is read of a state.


def test_keys_are_not_read() -> None:
    english_keys = {"customer message": "Wo ist mein Paket?", "what the customer wants to know": 5}
    german_keys = {"Nachricht des Kunden": "Where is my parcel, please?"}
    assert (sorted_as(english_keys), sorted_as(german_keys)) == ("other", "english")


def test_the_role_of_a_message_is_not_read() -> None:
    state = [{"role": "user", "content": "gdzie"}, {"role": "assistant", "content": "tam"}]
    assert read_strings(state).strings == ["gdzie", "tam"]


def test_the_type_of_a_content_part_is_not_read() -> None:
    state = [{"role": "user", "content": [{"type": "text", "text": "gdzie"}, {"type": "image_url", "url": "x"}]}]
    assert read_strings(state).strings == ["gdzie", "image_url", "x"]


def test_a_field_called_role_that_is_no_message_is_read() -> None:
    assert read_strings({"role": "Kundenberater", "team": "b"}).strings == ["Kundenberater", "b"]


def test_a_state_larger_than_the_limit_is_read_from_both_ends() -> None:
    strings = read_strings([str(number) for number in range(10 * MAX_VALUES)]).strings
    assert (strings[0], strings[-1]) == ("0", str(10 * MAX_VALUES - 1))
    assert len(strings) < 2 * MAX_VALUES


def test_the_parts_of_five_megabytes_are_bounded() -> None:
    text = "".join(f"Line {number} of the log is fine.\n" for number in range(170_000))
    parts = split_parts(text)
    assert len(parts) <= 2 * MAX_PARTS
    assert max(map(len, parts)) <= PART_CHARACTERS


@given(st.lists(st.text("ab .!,é", max_size=400).map(lambda line: line + "\n"), unique=True, max_size=9))
def test_a_text_is_split_without_loss(lines: list[str]) -> None:
    # A part that comes twice is kept once, so each line gets a number.
    text = "".join(f"{number} {line}" for number, line in enumerate(lines))
    parts = split_parts(text)
    assert all(part in text and len(part) <= PART_CHARACTERS for part in parts)
    assert set(text.split()) == set(" ".join(parts).split()) or max(map(len, text.split())) > PART_CHARACTERS


@pytest.mark.parametrize("size", [200, 5_000_000])
def test_another_script_anywhere_is_seen(size: int) -> None:
    english = "the order was lost again and again " * (size // 35 + 1)
    found = detect(english[: size // 2] + " मेरा " + english[size // 2 : size])
    assert (found["is_english"], "devanagari" in found["script_profile"]) == (False, True)


def test_another_script_among_many_other_characters_is_seen() -> None:
    assert not detect("the naïve café “menu” " * 60_000 + "да")["is_english"]


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


SCRIPTS = {
    "latin": "azéəạｚﬁª",
    "cyrillic": "жЇ",
    "han": "漢々",
    "hiragana": "か",
    "katakana": "カｶー",
    "hangul": "한",
    "gothic": "𐌰",
    "old italic": "𐌀",
    "canadian syllabics": "ᐃ",
    None: "5µ!ʼ👍",
}


@pytest.mark.parametrize(("script", "letter"), [(name, one) for name, letters in SCRIPTS.items() for one in letters])
def test_the_script_of_a_letter(script: str | None, letter: str) -> None:
    assert script_of(letter) == script


def test_letters_are_counted_alike_in_small_and_in_large() -> None:
    sample = "naïve мир 漢字 "
    small, large = count_letters(sample), count_letters(sample * 50_000)
    assert small.by_script == {"latin": 5, "cyrillic": 3, "han": 2}
    assert {name: round(count / 50_000) for name, count in large.by_script.items()} == small.by_script


@pytest.mark.parametrize("text", ["5 µm", "Ω and α", "paypаl", "naïve “café”", "👍", "x² + π"])
def test_formulas_look_alikes_and_signs_are_no_other_script(text: str) -> None:
    assert find_other_script(text) is None


@pytest.mark.parametrize(("text", "at"), [("a ή b", 2), ("Привет", 0), ("name 王", 5), ("ab α β γδε", 7)])
def test_a_word_in_another_script_is_found_where_it_stands(text: str, at: int) -> None:
    assert find_other_script(text) == at


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ask alice@example.com or see https://example.com/a?b=c now", ["Ask", "or", "see", "now"]),
        ("in /usr/local/bin and src/main/App.java", ["in", "and"]),
        ("the <b class='x y'>bold</b> &amp; {name} %(count)s", ["the", "bold"]),
        ("user_id is getUserById or CVE-2024-12345", ["is", "or"]),
        ("IPv4-Adresse, 16-minute, l’été don’t", ["Adresse", "minute", "l'été", "don't"]),
        ("e\u0301te\u0301 ﬁne", ["été", "fine"]),
    ],
)
def test_words_are_found_apart_from_what_is_no_language(text: str, words: list[str]) -> None:
    assert words_of(text) == words


# No state is too odd.

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(codec=None)
STATES = st.recursive(
    SCALARS | st.binary(max_size=4) | st.just(object()),
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.tuples(inside, inside)
        | st.dictionaries(st.text(max_size=9) | st.integers() | st.none(), inside, max_size=5)
        | st.fixed_dictionaries({"role": inside, "content": inside})
        | st.builds(lambda value: json.dumps(value, default=str), inside)
    ),
    max_leaves=20,
)


@settings(max_examples=400)
@given(STATES)
def test_any_state_gives_a_complete_and_plain_result(state: Any) -> None:
    found = detect(state)
    assert list(found) == list(type(found)() | detect("x"))
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")
    assert not (found["is_english"] and found["language_undecided"])
    assert found["is_english"] == (found["language"] == "en")
    assert found["mixed_segment"] is None or not (found["is_english"] or found["language_undecided"])
    assert all(0 <= part <= 1 for part in [found["non_latin_fraction"], found["diacritic_rate"]])
    assert not found["script_profile"] or abs(sum(found["script_profile"].values()) - 1) < 0.001


@settings(max_examples=300)
@given(st.text(st.sampled_from("aé .\n<>{}[]();=_-@/\\:&#$%'\"0Ж漢👍\ud800\0"), max_size=300))
def test_any_text_is_read(text: str) -> None:
    assert detect(text) == detect([text])


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = "hello there my friend"
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "state",
    [
        nested(10_000, lambda value: [value]),
        nested(10_000, lambda value: {"a": value}),
        "[" * 100_000,
        "[" * 50_000 + "]" * 50_000,
    ],
    ids=["lists", "mappings", "open brackets", "JSON"],
)
def test_deep_nesting_is_read_without_recursion(state: Any) -> None:
    assert detect(state)["mixed_segment"] is None


def test_a_state_that_holds_itself_is_read_to_the_limit() -> None:
    state: dict[str, Any] = {"text": "Where is my order?"}
    state["again"] = [state, state]
    assert detect(state)["is_english"]


@pytest.mark.parametrize("text", ["hello\0there my\0friend", "hello \ud800 there my friend"])
def test_nul_and_lone_surrogates_end_no_text(text: str) -> None:
    assert detect(text)["is_english"]
    assert detect(text + " wo ist mein Paket und die Rechnung")["language"] == "de"


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
