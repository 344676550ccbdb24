"""The embedding kind at work, on a tiny encoder with random weights: what is embedded, cut, cached and refused."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from laya import Agent
from laya.checkpoint import load_checkpoint
from laya.embedding import EmbeddingKind
from laya.lru import LruCache
from laya.questions import Question, parse_questions
from tests.unit.tiny_embedding import POSITIONS, WORDS, write_json, write_tiny_checkpoint

CLOSE = 1e-5

TEAM = {
    "type": "choice",
    "instructions": "please",
    "criteria": {"billing": "refund, invoice", "delivery": "parcel late", "account": "password login"},
}
URGENT = {"type": "score", "instructions": "late", "criteria": ["thanks", "error", "crash crash"]}
REFUND = {"type": "noul", "instructions": "refund please"}
QUESTIONS = {"team": TEAM, "urgent": URGENT, "refund": REFUND}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def kind(checkpoint: Path) -> EmbeddingKind:
    loaded = load_checkpoint(checkpoint, device="cpu").kind
    assert isinstance(loaded, EmbeddingKind)
    return loaded


class Passes:
    """The number of texts in each pass through an encoder."""

    def __init__(self, kind: EmbeddingKind) -> None:
        self.sizes: list[int] = []
        self._hook = kind.model.register_forward_pre_hook(lambda _, args: self.sizes.append(len(args[0])))

    def take(self) -> int:
        taken, self.sizes[:] = sum(self.sizes), []
        return taken

    def close(self) -> None:
        self._hook.remove()


@pytest.fixture
def passes(kind: EmbeddingKind) -> Iterator[Passes]:
    found = Passes(kind)
    yield found
    found.close()


def ask(
    kind: EmbeddingKind, *states: object, questions: dict[str, Any] | None = None, **budgets: int
) -> list[list[float]]:
    """The logits of every row, states first."""
    parsed = parse_questions(QUESTIONS if questions is None else questions)
    rows = [row for state in states for row in encode(kind, state, parsed, **budgets).rows]
    return [list(score.logits) for score in kind.forward(rows)]


def encode(
    kind: EmbeddingKind, state: object, questions: tuple[Question, ...], max_len: int = 32, head_max_len: int = 16
) -> Any:
    return kind.encode(state, questions, max_len, head_max_len)


def test_every_type_is_answered_with_the_fields_of_the_published_kind(checkpoint: Path) -> None:
    answers = Agent(str(checkpoint), device="cpu").predict("refund invoice", QUESTIONS)["answers"]
    shared = {"type", "confidence", "answer_confidence", "action"}
    assert {name: set(answer) - shared for name, answer in answers.items()} == {
        "team": {"choice", "probabilities"},
        "urgent": {"score", "legend", "probabilities"},
        "refund": {"noul"},
    }


def test_the_option_that_says_what_the_state_says_is_the_likeliest(kind: EmbeddingKind) -> None:
    labels = ["refund invoice", "parcel late courier", "password login locked"]
    question = {"q": {"type": "choice", "instructions": "please", "criteria": labels}}
    for place, logits in enumerate(ask(kind, *labels, questions=question)):
        assert max(range(3), key=logits.__getitem__) == place


def test_logits_are_scaled_likeness_to_the_centred_state(kind: EmbeddingKind) -> None:
    question = {"q": {"type": "choice", "instructions": "late", "criteria": {"a": "refund", "b": "crash"}}}
    (logits,) = ask(kind, "parcel courier", questions=question)

    state, *options = kind.embed(["parcel courier", "a: refund", "refund", "b: crash", "crash"])
    apart = state - kind.model.centre
    apart[:2] = 0  # the nuisance directions of this checkpoint
    unit = torch.nn.functional.normalize
    vectors = [unit(options[0] + 2 * options[1], dim=0), unit(options[2] + 2 * options[3], dim=0)]
    expected = [20 * float(unit(apart, dim=0) @ vector) for vector in vectors]
    assert logits == pytest.approx(expected, abs=CLOSE * 20)


def test_a_statement_without_criteria_is_held_against_the_threshold(kind: EmbeddingKind) -> None:
    for state in ("refund please", "crash"):
        (false, _), *_ = ask(kind, state, questions={"q": REFUND})
        assert false == pytest.approx(5 * 0.25)


def test_the_probability_of_acting_is_that_of_the_likeliest_option(checkpoint: Path) -> None:
    answer = Agent(str(checkpoint), device="cpu").predict("parcel late", {"team": TEAM})["answers"]["team"]
    assert answer["action"]["act_probability"] == max(answer["probabilities"].values())


def test_each_distinct_text_is_embedded_once_in_a_pass(kind: EmbeddingKind, passes: Passes) -> None:
    questions = {"q": {"type": "choice", "instructions": "late", "criteria": {"a": "refund", "b": "refund, crash"}}}
    ask(kind, "thanks please", "thanks please", "parcel screen", "refund", questions=questions)
    # two states that are no option's text, and "a: refund", "refund", "b: refund, crash", "crash"
    assert passes.take() == 6


def test_options_seen_before_are_not_embedded_again(kind: EmbeddingKind, passes: Passes) -> None:
    ask(kind, "thanks crash refund")
    passes.take()
    ask(kind, "thanks crash refund", "parcel screen error")
    assert passes.take() == 2


class Held:
    """Holds the first pass through an encoder until as many others have begun; it may fail then."""

    def __init__(self, kind: EmbeddingKind, others: int, error: Exception | None = None) -> None:
        self._lock = threading.Lock()
        self._left, self._begun = others + 1, threading.Event()
        self._error = error
        self._hook = kind.model.register_forward_pre_hook(self._hold)

    def _hold(self, *_: object) -> None:
        with self._lock:
            self._left -= 1
            first = not hasattr(self, "_held")
            self._held = True
        if self._left == 0:
            self._begun.set()
        if first:
            assert self._begun.wait(20)
            self._hook.remove()
            if self._error is not None:
                raise self._error


def test_options_that_another_thread_is_at_are_not_embedded_again(kind: EmbeddingKind, passes: Passes) -> None:
    states = [f"thanks {word}" for word in WORDS[:8]]
    Held(kind, others=7)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda state: ask(kind, state), states))
    embedded = passes.take()
    kind._vectors = LruCache(100)
    ask(kind, *states)
    assert embedded == passes.take(), "some options went through the encoder more than once"
    assert [row for rows in together for row in rows] == [pytest.approx(row, abs=CLOSE) for row in ask(kind, *states)]


def test_options_whose_thread_failed_are_embedded_by_those_that_waited(kind: EmbeddingKind) -> None:
    Held(kind, others=3, error=MemoryError("does not fit"))
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(ask, kind, f"thanks {word}") for word in WORDS[:4]]
    failed = [call for call in calls if call.exception() is not None]
    assert len(failed) == 1
    assert isinstance(failed[0].exception(), MemoryError)


def test_options_are_shared_between_questions_that_word_them_alike(kind: EmbeddingKind, passes: Passes) -> None:
    ask(kind, "thanks crash refund", questions={"team": TEAM})
    passes.take()
    ask(kind, "thanks crash refund", questions={"other": {**TEAM, "instructions": "error screen"}})
    assert passes.take() == 1


def test_a_row_scores_the_same_whatever_is_in_the_pass_with_it(kind: EmbeddingKind) -> None:
    rng = random.Random(3)
    states = [" ".join(rng.choices(WORDS, k=rng.randint(1, 40))) for _ in range(20)]
    alone = [row for state in states for row in ask(kind, state)]
    together = ask(kind, *states)
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, abs=CLOSE * 20)


def test_scores_follow_the_options_wherever_they_stand(kind: EmbeddingKind) -> None:
    criteria = TEAM["criteria"]
    assert isinstance(criteria, dict)
    turned = {"q": {**TEAM, "criteria": dict(reversed(criteria.items()))}}
    (logits,), (backwards,) = ask(kind, "late", questions={"q": TEAM}), ask(kind, "late", questions=turned)
    assert logits == pytest.approx(backwards[::-1], abs=CLOSE)


def test_a_long_text_keeps_its_beginning_and_a_conversation_its_end(kind: EmbeddingKind) -> None:
    start, end = "refund " * 28, "crash " * 28
    long_text, start_alone, conversation, end_alone = ask(
        kind, start + end, start, [start, end], end, questions={"team": TEAM}
    )
    assert long_text == pytest.approx(start_alone, abs=CLOSE)
    assert conversation == pytest.approx(end_alone, abs=CLOSE)


def test_usage_counts_what_was_read_and_what_was_dropped(kind: EmbeddingKind) -> None:
    usage = encode(kind, "refund " * 40, parse_questions({"team": TEAM, "refund": REFUND})).usage
    state = 32  # two ends, the two tokens of the prefix, and 28 of the state
    # "label: description" and the phrases, each with ends and prefix; then the one statement
    team = (4 + 5) + 2 * (4 + 1) + (4 + 4) + (4 + 2) + (4 + 4) + (4 + 2)
    refund = 4 + 2
    assert usage == {
        "input_tokens": (state + team) + (state + refund),
        "output_tokens": 0,
        "state_tokens": 40,
        "state_tokens_dropped": 12,
        "truncated": True,
        "truncated_questions": ["team", "refund"],
    }


def test_usage_of_a_state_that_fits_names_no_question(kind: EmbeddingKind) -> None:
    usage = encode(kind, "refund", parse_questions({"team": TEAM})).usage
    assert (usage["truncated"], usage["truncated_questions"], usage["state_tokens_dropped"]) == (False, [], 0)


def test_a_budget_beyond_what_the_encoder_reads_is_cut_to_it(kind: EmbeddingKind) -> None:
    usage = encode(kind, "refund " * 100, parse_questions({"refund": REFUND}), max_len=8192).usage
    assert usage["state_tokens_dropped"] == 100 - (POSITIONS - 4)


def test_options_that_read_the_same_after_the_cut_are_told(kind: EmbeddingKind) -> None:
    long_ = "please " * 20
    criteria = {f"{long_} {end}": None for end in ("refund", "parcel", "crash")}
    question = {"q": {"type": "choice", "instructions": "late", "criteria": criteria}}
    usage = encode(kind, "refund", parse_questions(question)).usage
    assert usage["options"] == {"q": {"total": 3, "distinct": 1, "tokens_per_option": 16}}
    roomy = encode(kind, "refund", parse_questions(question), head_max_len=40).usage
    assert "options" not in roomy


def test_nothing_is_asked_of_the_encoder_without_questions(kind: EmbeddingKind, passes: Passes) -> None:
    encoded = encode(kind, "refund", ())
    assert (encoded.rows, encoded.usage) == ((), {"input_tokens": 0, "output_tokens": 0})
    assert kind.forward([]) == []
    assert passes.take() == 0


@pytest.mark.parametrize("state", ["", "   ", [], {}, 0, False, "[MASK] [SEP] [CLS]", "\ud83d"])
def test_odd_states_are_answered(kind: EmbeddingKind, state: object) -> None:
    for logits in ask(kind, state):
        assert all(abs(logit) <= 20 for logit in logits)


def test_a_null_state_is_refused(kind: EmbeddingKind) -> None:
    with pytest.raises(TypeError, match="must not be None"):
        ask(kind, None)


def test_two_thousand_options_are_scored(kind: EmbeddingKind) -> None:
    labels = [f"{WORDS[place % len(WORDS)]} {place}" for place in range(2000)]
    (logits,) = ask(kind, "refund", questions={"q": {"type": "choice", "instructions": "late", "criteria": labels}})
    assert len(logits) == 2000


def test_threads_with_different_budgets_get_what_they_would_get_alone(kind: EmbeddingKind, checkpoint: Path) -> None:
    rng = random.Random(5)
    jobs = [
        (" ".join(rng.choices(WORDS, k=rng.randint(1, 60))), rng.choice([12, 24, 64]), rng.choice([8, 16, 32]))
        for _ in range(64)
    ]

    def run(job: tuple[str, int, int]) -> list[list[float]]:
        state, max_len, head_max_len = job
        return ask(kind, state, max_len=max_len, head_max_len=head_max_len)

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(run, jobs))
    fresh = load_checkpoint(checkpoint, device="cpu").kind
    assert isinstance(fresh, EmbeddingKind)
    for (state, max_len, head_max_len), rows in zip(jobs, together, strict=True):
        alone = ask(fresh, state, max_len=max_len, head_max_len=head_max_len)
        for one, other in zip(alone, rows, strict=True):
            assert one == pytest.approx(other, abs=CLOSE * 20)


def test_what_a_caller_does_to_the_tokenizer_changes_no_prediction(kind: EmbeddingKind) -> None:
    (before,) = ask(kind, "refund please parcel late", questions={"team": TEAM})
    kind.tokenizer("refund please", truncation=True, max_length=3, padding="max_length")
    (after,) = ask(kind, "refund please parcel late", questions={"team": TEAM})
    assert after == pytest.approx(before, abs=CLOSE * 20)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scale", None, "scale must be a list of three positive numbers"),
        ("scale", [1, 2], "scale must be"),
        ("scale", [1, -2, 3], "scale must be"),
        ("scale", [1, True, 3], "scale must be"),
        ("prefixes", ["query: "], "prefixes must map"),
        ("prefixes", {"state": 3}, "prefixes must map"),
        ("noul_threshold", "0.1", "noul_threshold must be"),
        ("noul_threshold", 7, "noul_threshold must be"),
        ("nuisance_directions", -1, "nuisance_directions must be"),
        ("nuisance_directions", 1.5, "nuisance_directions must be"),
        ("amp_dtype", "int8", "amp_dtype must be one of"),
        ("nuisance_directions", 3, "nuisance in model.safetensors has the shape"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    checkpoint: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    broken = copied(checkpoint, tmp_path)
    config = json.loads((broken / "rl_agent_config.json").read_text(encoding="utf-8"))
    write_json(broken / "rl_agent_config.json", {**config, key: value})
    with pytest.raises(ValueError, match=message) as refusal:
        load_checkpoint(broken, device="cpu")
    assert str(broken) in str(refusal.value)


def test_a_checkpoint_without_its_centre_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    broken = copied(checkpoint, tmp_path)
    tensors = load_file(broken / "model.safetensors")
    del tensors["centre"]
    (broken / "model.safetensors").unlink()
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(ValueError, match="centre"):
        load_checkpoint(broken, device="cpu")


def copied(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint's directory that a test may change."""
    target = tmp_path / "copy"
    for file in checkpoint.rglob("*"):
        if file.is_file():
            place = target / file.relative_to(checkpoint)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    return target
