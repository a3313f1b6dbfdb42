"""The page of a report in a real browser: nothing is loaded or run that is not its own, and it can be read and explored."""

import re
import socket

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from resid.report import write_report
from tests.browser import bring_into_view, requests_of, show
from tests.report.conftest import HOSTILE


@pytest.fixture
def opened(browser, page):
    show(browser, page.as_uri())
    return browser


def crumbs(browser):
    return [entry.text for entry in browser.find_elements(By.CSS_SELECTOR, ".crumbs li")]


def boxes(browser):
    return browser.find_elements(By.CSS_SELECTOR, ".treemap button")


def test_nothing_is_loaded_and_nothing_fails(browser, page):
    show(browser, page.as_uri())
    assert browser.get_log("browser") == []
    asked = [url for url in requests_of(browser) if not url.startswith("data:")]
    assert asked == [page.as_uri()]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_hostile_texts_are_text(opened):
    assert opened.execute_script("return window.hacked") is None
    assert opened.find_elements(By.CSS_SELECTOR, "main img, main b + script, main a[href*='127']") == []
    shown = opened.execute_script("return document.querySelector('#examples').textContent")
    for title in HOSTILE[:3]:
        assert title in shown
    assert "كتاب عربي" in shown


def test_the_policy_blocks_scripts_and_requests(opened):
    """Even markup that gets into the page does nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        opened.execute_async_script(
            "const image = document.createElement('img'), script = document.createElement('script');"
            "script.textContent = 'window.hacked = 1';"
            "image.onerror = arguments[1];"
            "image.src = arguments[0];"
            "document.body.append(script, image);",
            f"http://127.0.0.1:{server.getsockname()[1]}/x.png",
        )
        assert opened.execute_script("return window.hacked") is None
        with pytest.raises(TimeoutError):
            server.accept()
    assert len(opened.get_log("browser")) == 2  # both are reported


def test_zoom_by_click(opened):
    assert crumbs(opened) == ["All items"]
    first = boxes(opened)[0]
    code = re.match(r"Prefix (\d+),", first.accessible_name)[1]
    bring_into_view(opened, first)
    first.click()
    assert crumbs(opened) == ["All items", code]
    assert all(box.accessible_name.startswith(f"Prefix {code}-") for box in boxes(opened))
    assert f"Prefix {code}:" in opened.find_element(By.CSS_SELECTOR, ".about").text
    opened.find_element(By.CSS_SELECTOR, ".crumbs button").click()
    assert crumbs(opened) == ["All items"]


def test_zoom_by_keyboard(opened):
    bring_into_view(opened, boxes(opened)[0])
    boxes(opened)[0].send_keys(Keys.ENTER)
    assert len(crumbs(opened)) == 2
    active = opened.switch_to.active_element
    assert active == boxes(opened)[0]
    tip = opened.find_element(By.ID, "tip")
    assert "item" in tip.text
    active.send_keys(Keys.ARROW_RIGHT)
    moved = opened.switch_to.active_element
    assert moved != active
    assert moved in boxes(opened)
    assert [box.get_attribute("tabindex") for box in boxes(opened)].count("0") == 1
    moved.send_keys(Keys.ENTER)
    assert len(crumbs(opened)) == 3
    leaf = opened.switch_to.active_element
    assert leaf.accessible_name.startswith("ID ")
    leaf.send_keys(Keys.ENTER)  # there is nothing below an ID
    assert len(crumbs(opened)) == 3
    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert len(crumbs(opened)) == 2
    opened.switch_to.active_element.send_keys(Keys.BACKSPACE)
    assert crumbs(opened) == ["All items"]
    assert opened.switch_to.active_element == boxes(opened)[0]


def test_choices(opened):
    from selenium.webdriver.support.ui import Select

    selects = [Select(found) for found in opened.find_elements(By.TAG_NAME, "select")]
    color, metric, ranking = selects
    names = [option.text for option in color.options]
    assert set(names) >= {"store", "cat2"}
    color.select_by_visible_text("store")
    assert ", store <b>" in boxes(opened)[0].accessible_name
    metric.select_by_visible_text("N@5")
    ranking.select_by_visible_text("seen items dropped")
    assert opened.find_element(By.CSS_SELECTOR, "#slices h4").text == "N@5, seen items dropped"


@pytest.mark.parametrize("width", [375, 1280])
def test_fits_the_screen(browser, page, width):
    show(browser, page.as_uri(), width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = "return [...document.querySelectorAll('main svg, .treemap')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    assert browser.execute_script(wide) == 0
    assert browser.execute_script("return document.querySelectorAll('.frame:empty').length") == 0


def test_accessible(opened):
    """Headings in order, names for charts and controls, headers for tables, a table for every chart."""
    levels = [
        int(tag[1])
        for tag in opened.execute_script("return [...document.querySelectorAll('h1, h2, h3, h4')].map(e => e.tagName)")
    ]
    assert levels.count(1) == 1
    count = opened.execute_script
    assert count("return document.querySelectorAll('svg:not([role=img][aria-label])').length") == 0
    assert count("return document.querySelectorAll('figure.chart').length") > 5
    assert count("return document.querySelectorAll('figure.chart:not(:has(details table))').length") == 0
    assert count("return document.querySelectorAll('th:not([scope]), table:not(:has(caption))').length") == 0
    assert all(box.accessible_name for box in opened.find_elements(By.CSS_SELECTOR, "button, select"))


def test_a_model_without_ids(browser, runs):
    write_report([runs / "popularity"], runs / "alone.html")
    show(browser, (runs / "alone.html").as_uri())
    said = browser.find_element(By.ID, "ids").text
    assert "popularity is a Popularity model, which ranks items without semantic IDs" in said
    assert boxes(browser) == []
    assert browser.get_log("browser") == []
