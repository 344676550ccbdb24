"""What a checkpoint's name may look like, and what it means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya.catalog import (
    ALIASES,
    DEFAULT_MODELS,
    PINNED_REVISIONS,
    canonical_name,
    describe_source,
    normalise_name,
)

BUILT_IN = tuple(DEFAULT_MODELS)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("english", "english"),
        ("en", "english"),
        ("laya", "english"),
        ("default", "english"),
        ("multilingual", "multilingual"),
        ("multi", "multilingual"),
        ("ml", "multilingual"),
        ("laya-multilingual", "multilingual"),
        ("typed-decisions", "typed-decisions"),
        ("typed", "typed-decisions"),
        ("typed_decisions", "typed-decisions"),
        ("laya-typed-decisions", "typed-decisions"),
        ("decisions", "typed-decisions"),
    ],
)
def test_a_name_or_alias_means_its_checkpoint(spelling: str, name: str) -> None:
    assert canonical_name(spelling, BUILT_IN) == name


@given(st.sampled_from([*BUILT_IN, *ALIASES]), st.text(" \t\n", max_size=3), st.booleans())
def test_case_and_space_around_a_name_do_not_matter(spelling: str, space: str, upper: bool) -> None:
    written = space + (spelling.upper() if upper else spelling.title()) + space
    assert canonical_name(written, BUILT_IN) == canonical_name(spelling, BUILT_IN)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'germn'.*'english', 'multilingual', 'typed-decisions'") as refusal:
        canonical_name("germn", BUILT_IN)
    assert type(refusal.value) is ValueError


@pytest.mark.parametrize("name", [None, 5, ["english"], b"english"])
def test_what_is_no_string_is_refused_like_an_unknown_name(name: object) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        canonical_name(name, BUILT_IN)  # type: ignore[arg-type]


def test_an_alias_of_a_checkpoint_that_is_not_registered_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"'ml'.*'english'"):
        canonical_name("ml", ["english"])


def test_a_registered_name_goes_before_an_alias_of_the_same_spelling() -> None:
    assert canonical_name("laya", [*BUILT_IN, "laya"]) == "laya"


def test_a_registered_name_keeps_its_own_spelling() -> None:
    assert canonical_name("papers-v2", [*BUILT_IN, "Papers-V2"]) == "Papers-V2"


def test_nothing_registered_is_said_so() -> None:
    with pytest.raises(ValueError, match="none is registered"):
        canonical_name("english", [])


def test_every_alias_means_a_built_in_checkpoint() -> None:
    assert set(ALIASES.values()) <= set(DEFAULT_MODELS)


def test_the_built_in_places_can_be_written_as_json() -> None:
    assert json.loads(json.dumps(DEFAULT_MODELS))["multilingual"] == ["convaiinnovations/laya", "multilingual"]


def test_a_pinned_revision_is_a_commit() -> None:
    assert all(len(commit) == 40 and int(commit, 16) for commit in PINNED_REVISIONS.values())


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("/models/papers", "/models/papers"),
        (("convaiinnovations/laya", None), "convaiinnovations/laya"),
        (("convaiinnovations/laya", "multilingual"), "convaiinnovations/laya/multilingual"),
        (["org/repo", "sub"], "org/repo/sub"),
    ],
)
def test_a_source_is_described_in_one_line(source: object, line: str) -> None:
    assert describe_source(source) == line


def test_names_are_compared_trimmed_and_in_lower_case() -> None:
    assert normalise_name("  ENglish\n") == "english"
