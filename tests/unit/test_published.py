"""The published kind at work: rows of any mix in one pass, many threads at once, and the model's own arithmetic."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laya.checkpoint import load_checkpoint
from laya.encoding import TextTokenizer
from laya.model import ABSENT_LOGIT, WithoutWeights, action_features
from laya.precision import split_precision
from laya.questions import Question, parse_questions
from laya.rows import Kind, Row, RowScores

GOLDEN = Path(__file__).parents[1] / "data/golden/checkpoints"
WORDS = [
    "refund",
    "billing",
    "invoice",
    "login",
    "parcel",
    "größer",
    "½",
    "€",
    "返金",
    "возврат",
    "कृपया",
    "😀",
    "twice",
    "[MASK]",
    "[SEP]",
    "crash",
]
CLOSE = 1e-4


@pytest.fixture(scope="module", params=["multilingual", "typed-decisions"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return load_checkpoint(GOLDEN / request.param, device="cpu").kind


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def question(rng: random.Random) -> Question:
    k = rng.choice([1, 2, 3, 8, 40])
    definition: dict[str, Any] = {
        "choice": {"criteria": {f"label {i}": text(rng, rng.choice([0, 1, 60])) for i in range(k)}},
        "score": {"criteria": [text(rng, 2) for _ in range(k)]},
        "noul": {"labels": {"true": "A", "false": "B"}},
    }[qtype := rng.choice(["choice", "score", "noul"])]
    k = 2 if qtype == "noul" else k
    order = rng.sample(range(k), k) if rng.random() < 0.5 else None
    asked = {"type": qtype, "instructions": text(rng, rng.choice([1, 30])), "option_order": order, **definition}
    return parse_questions({"q": asked})[0]


def state(rng: random.Random) -> Any:
    one: Any = rng.choice(["", text(rng, 3), text(rng, 400), {"body": text(rng, 40), "n": 2.5}, 7, True, [], {}])
    return [{"role": "user", "content": one}] * 3 if rng.random() < 0.3 else one


def some_rows(kind: Kind, seed: int, count: int) -> Iterator[Row]:
    rng = random.Random(seed)
    for _ in range(count):
        yield kind.encode(state(rng), [question(rng)], rng.choice([300, 512, 1024]), rng.choice([64, 192])).rows[0]


def closely(scores: RowScores) -> Any:
    return pytest.approx([*scores.logits, scores.act_probability], abs=CLOSE)


def flat(scores: RowScores) -> list[float]:
    return [*scores.logits, scores.act_probability]


def test_rows_of_any_mix_score_in_one_pass_as_they_do_alone(kind: Kind) -> None:
    rows = list(some_rows(kind, 1, 24))
    assert len({row.question.k for row in rows}) > 3
    assert len({row.question.qtype for row in rows}) == 3
    together = kind.forward(rows)
    for row, scores in zip(rows, together, strict=True):
        assert flat(scores) == closely(kind.forward([row])[0])
        assert len(scores.logits) == row.question.k


def test_scores_come_in_the_order_of_the_rows(kind: Kind) -> None:
    rows = list(some_rows(kind, 2, 12))
    forwards, backwards = kind.forward(rows), kind.forward(rows[::-1])
    for one, other in zip(forwards, backwards[::-1], strict=True):
        assert flat(one) == closely(other)


def test_no_rows_are_no_pass(kind: Kind) -> None:
    assert kind.forward([]) == []


def test_a_row_costs_its_attended_tokens(kind: Kind) -> None:
    questions = parse_questions(
        {"a": {"type": "noul", "instructions": "x"}, "b": {"type": "noul", "instructions": "y z"}}
    )
    encoded = kind.encode("refund please", questions, 512, 192)
    assert [row.question.id for row in encoded.rows] == ["a", "b"]
    assert sum(row.tokens for row in encoded.rows) == encoded.usage["input_tokens"]


def test_without_questions_nothing_is_tokenised(kind: Kind) -> None:
    encoded = kind.encode("text " * 1000, [], 512, 192)
    assert (encoded.rows, encoded.usage) == ((), {"input_tokens": 0, "output_tokens": 0})


def test_a_state_of_none_is_refused(kind: Kind) -> None:
    with pytest.raises(TypeError, match="None"):
        kind.encode(None, [], 512, 192)


def test_option_order_changes_what_is_read_and_not_whose_logit_it_is(kind: Kind) -> None:
    definition = {"type": "choice", "instructions": "Which?", "criteria": ["refund", "login", "parcel crash"]}
    orders = [None, [0, 1, 2], [2, 0, 1]]
    asked = [parse_questions({"q": {**definition, "option_order": order}}) for order in orders]
    none, same, moved = (kind.forward(kind.encode("refund", q, 512, 192).rows)[0].logits for q in asked)
    assert none == same
    assert moved != pytest.approx(none, abs=1e-3)
    ids = [kind.encode("refund", q, 512, 192).rows[0].payload for q in asked]
    assert [int(ids[2].ids[marker + 1]) for marker in ids[2].markers] == [
        int(ids[0].ids[marker + 1]) for marker in ids[0].markers
    ]


def test_a_conversation_is_cut_at_its_beginning_and_a_text_at_its_end(kind: Kind) -> None:
    questions = parse_questions({"q": {"type": "noul", "instructions": "x"}})
    turns = ["first " * 300, "last " * 300]

    def read(state: object) -> str:
        return str(kind.tokenizer.decode(kind.encode(state, questions, 128, 64).rows[0].payload.ids))

    assert ("first" in read(turns), "last" in read(turns)) == (False, True)
    assert ("first" in read({"turns": turns}), "last" in read({"turns": turns})) == (True, False)


def test_a_row_longer_than_the_encoder_reads_is_refused(kind: Kind) -> None:
    questions = parse_questions({"q": {"type": "noul", "instructions": "x"}})
    with pytest.raises(ValueError, match=r"max_len=20000 makes a row of 20000 tokens.*8192"):
        kind.encode("refund " * 20_000, questions, 20_000, 192)
    assert kind.encode("refund", questions, 20_000, 192).rows[0].tokens < 100


def test_2000_options_are_refused_by_name(kind: Kind) -> None:
    questions = parse_questions(
        {"many": {"type": "choice", "instructions": "x", "criteria": [f"option {i}" for i in range(2000)]}}
    )
    with pytest.raises(ValueError, match=r"^question 'many': only 25\d of its 2000 option markers fit"):
        kind.encode("refund", questions, 1024, 256)


def test_32_threads_with_different_budgets_get_the_answers_of_one(kind: Kind) -> None:
    def answer(seed: int) -> list[float]:
        row = next(some_rows(kind, seed, 1))
        return [row.tokens, *flat(kind.forward([row])[0])]

    alone = [answer(seed) for seed in range(96)]
    stop = threading.Event()

    def disturb() -> None:
        """What a caller may do with the tokenizer that is theirs."""
        while not stop.is_set():
            kind.tokenizer("refund " * 50, truncation=True, max_length=7, padding="max_length")
            kind.tokenizer("refund " * 50)

    caller = threading.Thread(target=disturb)
    caller.start()
    try:
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(answer, range(96)))
    finally:
        stop.set()
        caller.join()
    for one, other in zip(alone, together, strict=True):
        assert other == pytest.approx(one, abs=CLOSE)


def test_truncation_set_on_the_callers_tokenizer_changes_no_prediction(kind: Kind) -> None:
    questions = parse_questions({"q": {"type": "noul", "instructions": "x"}})
    before = kind.encode("refund " * 50, questions, 512, 192).usage
    kind.tokenizer.backend_tokenizer.enable_truncation(3)
    assert kind.encode("refund " * 50, questions, 512, 192).usage == before


def test_bf16_on_the_cpu_answers_about_the_same() -> None:
    full = load_checkpoint(GOLDEN / "multilingual", device="cpu").kind
    half = load_checkpoint(GOLDEN / "multilingual", device="cpu", dtype="bf16").kind
    assert half.dtype == torch.bfloat16
    rows = list(some_rows(full, 3, 8))
    exact, rough = full.forward(rows), half.forward(rows)
    assert exact != rough
    for one, other in zip(exact, rough, strict=True):
        assert one.logits == pytest.approx(other.logits, abs=0.3)


def test_bf16_on_the_cpu_keeps_fp32_where_rounding_costs_most() -> None:
    layers = load_checkpoint(GOLDEN / "multilingual", device="cpu", dtype="bf16").kind.model.encoder.layers
    kept = [layers[0].attn.Wqkv, layers[0].mlp.Wi, layers[1].attn.Wqkv, *(layer.attn.Wo for layer in layers)]
    rounded = [layers[1].mlp.Wi, layers[1].mlp.Wo, layers[2].attn.Wqkv]
    assert {part.weight.dtype for part in kept} == {torch.float32}
    assert {part.weight.dtype for part in rounded} == {torch.bfloat16}


def test_an_encoder_with_layers_of_other_names_is_rounded_throughout() -> None:
    encoder, head = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Sequential(torch.nn.Linear(2, 2))
    encoder.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    split_precision(encoder, head)
    assert {weight.dtype for part in (encoder, head) for weight in part.parameters()} == {torch.bfloat16}


# --- the model's own arithmetic --------------------------------------------------------------------------------------


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=12), st.integers(0, 5))
def test_action_features_are_top_margin_entropy_and_size(logits: list[float], absent: int) -> None:
    found = action_features(torch.tensor([[*logits, *[ABSENT_LOGIT] * absent]]), torch.tensor([len(logits)]))[0]
    weights = [math.exp(logit - max(logits)) for logit in logits]
    p = sorted((weight / sum(weights) for weight in weights), reverse=True)
    k = max(2, len(logits))
    entropy = -sum(x * math.log(x) for x in p if x > 0) / math.log(k)
    second = p[1] if len(p) > 1 else 0.0
    assert found.tolist() == pytest.approx([p[0], p[0] - second, entropy, k / 255], abs=1e-5)


def test_modules_built_without_weights_take_no_memory_and_keep_computed_buffers() -> None:
    with WithoutWeights():
        layer = torch.nn.Linear(4, 4)
        computed = torch.arange(3.0) * 2
    assert layer.weight.is_meta
    assert computed.tolist() == [0.0, 2.0, 4.0]
    assert not torch.nn.Linear(4, 4).weight.is_meta


def test_building_without_weights_concerns_no_other_thread() -> None:
    with WithoutWeights(), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(torch.empty, 3).result().is_meta


def test_a_question_that_is_asked_again_is_not_tokenised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = load_checkpoint(str(GOLDEN / "multilingual"), device="cpu").kind
    calls: list[int] = []
    original = TextTokenizer.ids_of

    def counted(self: TextTokenizer, texts: Sequence[str]) -> list[list[int]]:
        calls.append(len(texts))
        return original(self, texts)

    monkeypatch.setattr(TextTokenizer, "ids_of", counted)
    questions = parse_questions({"a": {"type": "noul", "instructions": "refund?"}})
    first = kind.encode("one state", questions, 512, 192)
    again = kind.encode("one state", questions, 512, 192)
    assert calls == [1, 3, 1], "the state, the question with its two options, the state"
    assert [row.payload.ids.tolist() for row in first.rows] == [row.payload.ids.tolist() for row in again.rows]
