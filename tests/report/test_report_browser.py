"""The report of a small demo experiment in a real browser: no errors, no requests, all of it usable."""

import shutil
import time

import pytest
from synthetic_runs import write_experiment, write_run
from tiny_runs import MAZE, tiny

from voidrl import api
from voidrl.report.page import write_report
from voidrl.runs.checkpoint import write_json_atomic
from voidrl.runs.evaluations import FILE_NAME
from voidrl.training.evaluation import evaluation_record

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
BROWSER = next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))
    ),
    None,
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="the browser tests need an installed Chromium")
ARGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
]
WHERE = MAZE.replace("&goal=far", "")


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    """Random, APT, APT fine-tuned, one from scratch, two seeds each; and a run elsewhere that failed."""
    root = tmp_path_factory.mktemp("demo")
    cells = []
    for seed in (1, 2):
        shared = {"seed": seed, "overwrite": True}
        runs = {name: root / name / f"seed{seed}" for name in ("random", "apt", "tuned", "scratch")}
        api.pretrain(
            WHERE, "random", steps=60, config=tiny(updates_per_step=0.2), out=runs["random"], **shared
        )
        api.pretrain(WHERE, "apt", steps=60, config=tiny(updates_per_step=0.2), out=runs["apt"], **shared)
        task = tiny(updates_per_step=0.2, log__eval_every_steps=20, log__eval_episodes=2)
        changes = {"log.eval_every_steps": 20, "log.eval_episodes": 2}
        agent = api.finetune(runs["apt"], MAZE, steps=60, config=changes, out=runs["tuned"])
        api.train(MAZE, steps=60, config=task, out=runs["scratch"], **shared)
        result = api.evaluate(agent, episodes=2)
        write_json_atomic(runs["tuned"] / FILE_NAME, evaluation_record(agent, runs["tuned"], result, {}))
        for name, label, phase in (
            ("random", "random", "pretrain"),
            ("apt", "APT", "pretrain"),
            ("tuned", "APT", "finetune"),
            ("scratch", "from scratch", "train"),
        ):
            source = f"apt/seed{seed}" if name == "tuned" else None
            cell = {
                "folder": f"{name}/seed{seed}",
                "label": label,
                "phase": phase,
                "seed": seed,
                "task": MAZE,
            }
            cells.append({**cell, "source": source, "steps": 60, "protocol_steps": 600})
    write_run(root / "other", env="voidrl/PixelMaze-v0?size=7", steps=90, error="it diverged",
              rows=[{"step": 30, "train/reward_mean": 2.0, "coverage/cells": 3}])  # fmt: skip
    write_experiment(root, cells, name="demo", title="A small demo")
    return write_report([root], root / "report.html", say=lambda text: None)


def wait_until(condition, seconds=20):
    """Asks from outside: playwright's own waiting asks again by `eval`, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=ARGS)
        yield started
        started.close()


@pytest.fixture
def opened(browser, page_path, request):
    """The page at a size, with all that it complains about and asks for."""
    width, height = getattr(request, "param", (1280, 900))
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.problems, page.requested = [], []
    page.on(
        "console", lambda message: page.problems.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda sent: page.requested.append(sent.url))
    page.goto(page_path.as_uri())
    yield page
    assert page.problems == []
    assert {url.partition(":")[0] for url in page.requested} <= {"file", "data", "blob"}
    assert len([url for url in page.requested if url.startswith("file:")]) == 1
    page.close()


@pytest.mark.parametrize("opened", [(1280, 900), (768, 1024), (360, 740)], indirect=True)
def test_nothing_is_wider_than_the_screen(opened):
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if opened.viewport_size["width"] == 1280:  # no column of a table of results is hidden
        tables = opened.evaluate(
            "[...document.querySelectorAll('#summary .scroll')].map(e => [e.scrollWidth, e.clientWidth])"
        )
        assert tables
        assert all(needed <= there for needed, there in tables)
    beyond = opened.evaluate(
        """[...document.querySelectorAll('main *')]
            .filter((e) => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1)
            .map((e) => e.tagName + '.' + e.className)"""
    )
    assert beyond == []
    assert opened.locator("h1").inner_text() == "A small demo"
    assert opened.locator("figure.chart svg").count() >= 3


def test_lines_can_be_hidden_metrics_and_environments_chosen_and_values_read(opened):
    chart = opened.locator("#curves figure.chart").nth(1)  # with the task's reward
    lines = chart.locator("path.line")
    before = lines.count()
    toggle = chart.locator(".legend button", has_text="from scratch")
    toggle.click()
    assert toggle.get_attribute("aria-pressed") == "false"
    assert 0 < lines.count() < before
    toggle.click()
    assert lines.count() == before
    chart.locator("select[data-role=metric]").select_option("eval/return")
    assert "Evaluation return" in chart.locator("svg[tabindex]").get_attribute("aria-label")
    chart.locator("svg[tabindex]").hover()
    assert chart.locator(".legend thead th").first.inner_text().startswith("step ")

    explored = opened.locator("#curves figure.chart").first
    assert explored.locator(".plot svg").count() == 2  # a small one for each environment
    explored.locator("select[data-role=env]").select_option("1")
    assert explored.locator(".plot svg").count() == 1


def test_everything_can_be_done_from_the_keyboard(opened):
    chart = opened.locator("#curves figure.chart").nth(1)
    chart.locator("svg[tabindex]").focus()
    opened.keyboard.press("Home")
    first = chart.locator(".legend thead th").first.inner_text()
    opened.keyboard.press("ArrowRight")
    assert chart.locator(".legend thead th").first.inner_text() != first
    assert "Step " in chart.locator("p[aria-live]").inner_text()
    opened.keyboard.press("Escape")
    assert chart.locator(".legend thead th").first.inner_text() == "at the end"
    assert "row 1, column 1: " in opened.locator(".heat svg title").first.text_content()

    opened.locator(".skip").focus()
    reached = set()
    while not {"A", "BUTTON", "DIV", "SELECT", "svg"} <= reached:
        opened.keyboard.press("Tab")
        tag, outline = opened.evaluate(
            "[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
        )
        assert tag != "BODY", reached
        assert outline != "none", tag
        reached.add(tag)


def test_videos_before_and_after_play_side_by_side(opened):
    scene = opened.locator(".scene").first
    captions = scene.locator("figcaption strong").all_inner_texts()
    assert captions == ["APT, before", "APT, after", "from scratch"]
    video = scene.locator("video").first
    video.scroll_into_view_if_needed()
    wait_until(lambda: video.evaluate("video => video.readyState") >= 1)
    assert video.evaluate("video => video.videoWidth") > 0
    scene.locator(".play").click()
    wait_until(lambda: video.evaluate("video => video.currentTime") > 0)


def test_failures_and_deviations_are_on_the_first_screen(opened):
    warned = opened.locator(".caveats").inner_text()
    assert "Failed runs" in warned
    assert "it diverged" in warned
    assert "Fewer steps than the protocol" in warned
    assert "1 failed" in opened.locator(".facts").inner_text()


def test_it_can_be_printed(opened):
    opened.emulate_media(media="print")
    assert not opened.locator("nav").is_visible()
    assert opened.locator("#curves figure.chart svg").first.is_visible()
    assert opened.pdf(print_background=True).startswith(b"%PDF")
