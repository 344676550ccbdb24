"""Checkpoints as others saved them: whatever the versions, they load and answer the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.edited_checkpoint import GOLDEN, QUESTIONS, Edit, copy_to, edit_json, edit_weights, load, logits


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return copy_to(tmp_path)


@pytest.mark.parametrize("tokenizer_class", ["TokenizersBackend", None, "NoSuchTokenizer"])
def test_a_tokenizer_loads_whatever_class_it_was_saved_as(copied: Path, tokenizer_class: str | None) -> None:
    before = logits(load(copied))
    edit_json(copied / "tokenizer/tokenizer_config.json", lambda c: c.update(tokenizer_class=tokenizer_class))
    assert logits(load(copied)) == before


EXTRA: dict[str, Edit] = {
    "a list": lambda c: c.update(extra_special_tokens=["refund", "<end_of_turn>"]),
    "by name": lambda c: c.update(extra_special_tokens={"a": "refund", "b": "<end_of_turn>"}),
    "additional": lambda c: c.update(extra_special_tokens=None, additional_special_tokens=["refund"]),
    "saved with flags": lambda c: c.update(extra_special_tokens=[{"content": "refund", "lstrip": False}]),
}


@pytest.mark.parametrize("form", EXTRA)
def test_extra_special_tokens_load_in_every_form(copied: Path, form: str) -> None:
    edit_json(copied / "encoder/config.json", lambda config: config.update(vocab_size=802))
    edit_weights(
        copied,
        lambda t: t.update(
            {"encoder.embeddings.tok_embeddings.weight": torch.randn(802, 64, generator=torch.Generator())}
        ),
    )
    edit_json(copied / "tokenizer/tokenizer_config.json", EXTRA[form])
    kind = load(copied).kind
    assert kind.tokenizer("a refund b", add_special_tokens=False)["input_ids"].count(800) == 1
    assert kind.encode("refund", QUESTIONS, 512, 192).usage["state_tokens"] == 1


def test_extra_tokens_without_an_embedding_stay_text(copied: Path) -> None:
    kind = load(copied).kind  # names <start_of_turn> and <end_of_turn>, and has 800 embeddings for 800 other ids
    encoded = kind.encode("<start_of_turn>hello<end_of_turn>", QUESTIONS, 512, 192)
    assert encoded.usage["state_tokens"] > 3
    assert len(kind.forward(encoded.rows)) == 1


SAVED_BY: dict[str, Edit] = {
    "transformers 5": lambda _: None,
    "transformers 5, thetas alone": lambda c: c.update(
        rope_parameters={"full_attention": {"rope_theta": 160000.0}, "sliding_attention": {"rope_theta": 160000.0}}
    ),
    "an older transformers": lambda c: [
        c.pop("rope_parameters"),
        c.pop("layer_types"),
        c.update(global_rope_theta=160000.0, local_rope_theta=160000.0),
    ],
}


@pytest.mark.parametrize("saved_by", SAVED_BY)
def test_rotary_frequencies_are_run_however_they_were_saved(copied: Path, saved_by: str) -> None:
    before = logits(load(copied))
    edit_json(copied / "encoder/config.json", SAVED_BY[saved_by])
    assert logits(load(copied)) == before


@pytest.mark.parametrize("layers", ["full_attention", "sliding_attention"])
def test_other_rotary_frequencies_change_the_answer(copied: Path, layers: str) -> None:
    before = logits(load(copied))
    edit_json(copied / "encoder/config.json", lambda c: c["rope_parameters"][layers].update(rope_theta=10000.0))
    assert logits(load(copied)) != pytest.approx(before, abs=1e-3)


def test_weights_saved_in_half_precision_are_run_in_fp32(copied: Path) -> None:
    edit_weights(copied, lambda t: t.update({name: tensor.half() for name, tensor in t.items()}))
    loaded = load(copied)
    assert {parameter.dtype for parameter in loaded.kind.model.parameters()} == {torch.float32}
    assert logits(loaded) == pytest.approx(logits(load(GOLDEN / "multilingual")), abs=0.1)
