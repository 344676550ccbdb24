"""The pure parts of the command line and the demo: what fits on a line, how bars and shares are cut."""

from __future__ import annotations

import io
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from laya.questions import parse_questions
from worker.cli.answers import BAR_WIDTH, answers_table, bar, distribution, fitting, percent, short_answer
from worker.cli.dead import SHORT, beginnings, meant
from worker.cli.demo import answer_lines
from worker.cli.screen import Code, CommandError, own_name
from worker.demo import Reply, first_loads
from worker.presets import PRESETS, TRIAGE
from worker.tickets import TICKETS

ANSWERS = {
    "team": {
        "type": "choice",
        "choice": "billing",
        "probabilities": {"billing": 0.7, "delivery": 0.2, "sales": 0.1},
        "answer_confidence": 0.7,
    },
    "urgency": {
        "type": "score",
        "score": 1.9,
        "legend": {"0": "none", "1": "some", "2": "high"},
        "probabilities": {"0": 0.0, "1": 0.1, "2": 0.9},
        "answer_confidence": 0.9,
    },
    "refund": {"type": "noul", "noul": 0.2, "answer_confidence": 0.8},
}


def widest_in_a_terminal(text: str) -> int:
    return sum(max(cell_len(letter), unicodedata.category(letter) == "Mc") for letter in text)


@given(st.text(alphabet=st.characters(categories=["L", "M", "N", "P", "Zs"])), st.integers(min_value=1, max_value=60))
def test_a_fitted_text_never_takes_more_cells_than_there_are(text: str, cells: int) -> None:
    assert widest_in_a_terminal(fitting(text, cells)) <= cells


@given(st.text(alphabet=st.characters(categories=["L", "M", "N", "P", "Zs"]), max_size=20))
def test_a_text_that_fits_is_not_touched(text: str) -> None:
    assert fitting(text, 100) == text


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, ""), (0.5, "██████"), (1.0, "████████████"), (1 / 96, "▏"), (2.0, "█" * 12)]
)
def test_a_bar_is_as_long_as_its_share(share: float, drawn: str) -> None:
    assert bar(share) == drawn.ljust(BAR_WIDTH)


def test_answers_are_said_in_a_word() -> None:
    assert [short_answer(answer) for answer in ANSWERS.values()] == ["billing", "1.9 of 2", "no"]
    assert percent(0.934) == "93 %"


def test_a_choice_shows_its_likeliest_option_first_and_a_score_its_levels_in_order() -> None:
    assert [label for label, _ in distribution(ANSWERS["team"])] == ["billing", "delivery", "sales"]
    assert [label for label, _ in distribution(ANSWERS["urgency"])] == ["none", "some", "high"]
    assert distribution(ANSWERS["refund"]) == [("yes", 0.2), ("no", 0.8)]


def test_many_options_are_summed_up() -> None:
    shares_of_nine = {f"option {number}": 1 / 9 for number in range(9)}
    answer = {"type": "choice", "choice": "option 0", "probabilities": shares_of_nine, "answer_confidence": 1 / 9}
    console = Console(width=100, file=io.StringIO())
    console.print(answers_table({"answers": {"q": answer}}))
    assert "3 others" in console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_of_the_demos_table_is_wider_than_the_terminal(width: int) -> None:
    result = {"answers": ANSWERS, "routing": {"model": "multilingual"}}
    replies = [Reply(ticket, result, None, "one", 12.3456) for ticket in TICKETS]
    assert max(widest_in_a_terminal(line.plain) for line in answer_lines(replies, width)) <= width


def test_a_ticket_that_failed_shows_its_error_in_its_row() -> None:
    replies = [Reply(TICKETS[0], None, "PredictionFailed: no memory", "one", None)]
    assert "PredictionFailed: no memory" in answer_lines(replies, 120)[1].plain


@pytest.mark.parametrize(
    ("checkpoints", "first"),
    [(["a"], ["a", "a"]), (["a", "b"], ["a", "b"]), (["a", "b", "c"], ["a", "b"])],
)
def test_every_worker_of_the_demo_begins_with_a_checkpoint_of_its_own(checkpoints: list[str], first: list[str]) -> None:
    assert first_loads(checkpoints, 2) == first


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_questions_that_the_library_takes(name: str) -> None:
    assert parse_questions(PRESETS[name])


def test_the_tickets_are_enough_in_number_languages_and_teams() -> None:
    assert len(TICKETS) >= 60
    assert len({ticket.language for ticket in TICKETS}) >= 6
    assert {ticket.team for ticket in TICKETS} == set(TRIAGE["team"]["criteria"])
    assert len({ticket.text for ticket in TICKETS}) == len(TICKETS)


@given(st.sets(st.text("ab.", min_size=1, max_size=SHORT + 4), min_size=1, max_size=20))
def test_what_is_shown_of_an_id_names_that_dead_letter(ids: set[str]) -> None:
    known = sorted(ids)
    assert [meant(short, known) for short in beginnings(known)] == known


def test_what_is_shown_of_a_task_id_is_short() -> None:
    known = ["6fd95947-d51c-4c08-911f-f44dc0a7c1b2", "malformed-999aaa8645bb", "malformed-999aaa000000"]
    assert beginnings(known) == ["6fd95947-d51", "malformed-999aaa8", "malformed-999aaa0"]


def test_the_beginning_of_several_ids_is_refused_and_that_of_none_is_kept() -> None:
    with pytest.raises(CommandError, match="2 dead letters begin with 6fd") as refused:
        meant("6fd", ["6fd95947", "6fd00000"])
    assert refused.value.code == Code.USAGE
    assert [meant(name, ["6fd95947"]) for name in ("nobody", "")] == ["nobody", ""]


def test_a_command_to_try_is_named_so_that_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = tmp_path / "laya-workers"
    called.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(called), "up"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert own_name() == str(called)  # as `make up` calls it, in an environment that is not activated
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_name() == "laya-workers"
    monkeypatch.setattr(sys, "argv", ["-m", "up"])
    assert own_name() == "laya-workers"
