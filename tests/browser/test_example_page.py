"""The page of the FastAPI example, as a person uses it: in a real browser, with a real worker behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from laya import small
from tests.browser.conftest import picture
from tests.integration.conftest import WorkerProcess
from tests.integration.test_example_backends import Site
from worker.server import EmbeddedServer


@pytest.fixture(scope="module")
def checkpoints() -> str:
    """The small checkpoints: their answers make sense."""
    return ",".join(f"{name}={path}" for name, path in small.checkpoints().items())


@pytest.fixture(scope="module")
def site(
    server: EmbeddedServer,
    checkpoints: str,
    make_worker: Callable[..., WorkerProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    # One server for queue and cache: the worker warns of it.
    make_worker("-c", "4", LAYA_PRELOAD="english,multilingual", LAYA_HOOKS="hooks.SkipCache").start()
    environment = {"LAYA_BROKER_URL": server.url, "LAYA_CHECKPOINTS": checkpoints, "WAIT_SECONDS": "60"}
    running = Site("fastapi", environment, tmp_path_factory.mktemp("site") / "site.log")
    yield str(running.client.base_url)
    running.end()


def test_a_text_is_asked_with_the_keyboard_and_each_answer_has_its_bars(page: Page, site: str) -> None:
    page.goto(site)
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("My parcel never arrived. I want my money back.")
    page.keyboard.press("Control+Enter")
    cards = page.locator("#result article")
    expect(cards).to_have_count(4)  # three answers, and the facts
    expect(cards.nth(0)).to_contain_text("team delivery")
    expect(cards.nth(0).locator(".option")).to_have_count(5)
    expect(cards.nth(0).locator(".option.best .share")).to_have_text(re.compile(r"\d+ %"))
    expect(cards.nth(2)).to_contain_text("refund yes")
    facts = page.locator("#facts")
    expect(facts).to_contain_text("english")
    expect(facts).to_contain_text("ms of it in the worker")
    expect(page.locator("#workers li")).to_contain_text("english, multilingual")
    page.evaluate("Promise.all(document.getAnimations().map(bar => bar.finished))")  # the bars grow
    picture(page, "page")


def test_another_language_goes_to_another_checkpoint(page: Page, site: str) -> None:
    page.goto(site)
    page.get_by_role("button", name="Deutsch").click()
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#facts")).to_contain_text("multilingual")
    expect(page.locator("#result article").first).to_contain_text("technical")


def test_an_answer_from_the_cache_says_so_until_the_cache_is_left_out(page: Page, site: str) -> None:
    page.goto(site)
    page.get_by_label("Text", exact=True).fill("Is the shop open on Sundays?")
    page.get_by_text("Options", exact=True).click()

    def from_the_cache() -> bool:
        with page.expect_response("**/predictions"):
            page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()  # what came is shown
        return page.locator("#facts .badge").get_by_text("from the cache").is_visible()

    assert not from_the_cache()
    assert from_the_cache()
    page.get_by_label("may come from the cache").uncheck()
    assert not from_the_cache()


def test_questions_are_added_edited_and_removed(page: Page, site: str) -> None:
    page.goto(site)
    for _ in range(3):
        page.get_by_role("button", name="Remove this question").first.click()
    page.get_by_role("button", name="+ choice").click()
    question = page.locator(".question")
    question.get_by_label("Question id").fill("mood")
    question.get_by_label("Instructions").fill("How does the writer feel?")
    question.get_by_label("Options, one a line").fill("calm: relaxed\nangry: cross and annoyed\nsad")
    with page.expect_request("**/predictions") as sent:
        page.keyboard.press("Control+Enter")
    assert json.loads(sent.value.post_data or "")["questions"] == {
        "mood": {
            "type": "choice",
            "instructions": "How does the writer feel?",
            "criteria": {"calm": "relaxed", "angry": "cross and annoyed", "sad": None},
        }
    }
    expect(page.locator("#result article").first.locator(".option")).to_have_count(3)


def test_a_mistake_is_said_where_the_answers_stand(page: Page, site: str) -> None:
    page.goto(site)
    page.locator(".question").first.get_by_label("Options, one a line").fill("")
    page.keyboard.press("Control+Enter")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("422 InvalidRequest")
    expect(alert).to_contain_text("team")


def test_markup_in_a_text_stays_text(page: Page, site: str) -> None:
    page.goto(site)
    first = page.locator(".question").first
    first.get_by_label("Options, one a line").fill("<img src=x onerror=alert(1)>: a\nb: c")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#result article").first).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.locator("#result img")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(browser: Browser, site: str, scheme: str) -> None:
    phone = browser.new_page(
        viewport={"width": 390, "height": 844},
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",  # nothing is under way when the picture is taken
    )
    phone.goto(site)
    phone.get_by_role("button", name="Ask").click()
    expect(phone.locator("#facts")).to_be_attached()
    expect(phone.locator("#result article").first).to_be_in_viewport()
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    background = phone.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, re.findall(r"\d+", background)[:3])) < 200
    assert dark == (scheme == "dark")
    if scheme == "dark":
        picture(phone, "page-phone")
    phone.close()


def test_pictures_of_the_page_are_in_the_docs() -> None:
    pictures = Path(__file__).resolve().parents[2] / "docs" / "pictures"
    assert {"page.png", "page-phone.png"} <= {path.name for path in pictures.glob("*.png")}
