"""The page in a real browser: search, a history, recommendations of two models, the tree; nothing is loaded from elsewhere."""

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.browser import bring_into_view, requests_of, settle, show
from tests.serve.conftest import KEY, running


@pytest.fixture(scope="module")
def service(models):
    with running(models / "resid", models / "popularity") as service:
        yield service


def wait(browser, condition):
    """Wait until a condition holds; it is tried again if the page replaced an element that it had found."""
    waiting = WebDriverWait(browser, 60, 0.05, ignored_exceptions=[StaleElementReferenceException])
    return waiting.until(lambda _: condition())


def find(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def open_page(browser, service, width=1280):
    show(browser, service.address, width)
    wait(
        browser,
        lambda: (
            len(find(browser, "#models ol")) == 2 and find(browser, "#children li") and find(browser, "#results li")
        ),
    )


def names(browser, selector, part="bdi"):
    """Return the titles of a list, read at once, as the page may replace it at any moment."""
    script = "return [...document.querySelectorAll(arguments[0])].map((entry) => entry.textContent)"
    return browser.execute_script(script, f"{selector} .what > {part}")


def ids(browser, selector):
    """Return the ids of the items of a list; several items may have the same title."""
    return [text.split(" · ")[0] for text in names(browser, selector, "small:first-of-type")]


def test_nothing_is_loaded_from_elsewhere_and_nothing_fails(browser, service):
    open_page(browser, service)
    assert browser.get_log("browser") == []
    assert all(url.startswith(service.address) for url in requests_of(browser))
    assert browser.execute_script("return window.hacked") is None
    assert any("<script>" in name for name in names(browser, "#results"))  # as text


def test_search_and_history_by_keyboard(browser, service):
    open_page(browser, service)
    before = names(browser, "[data-model='0']")
    search = browser.find_element(By.ID, "search")
    search.send_keys("日本語")
    wait(browser, lambda: "found" in browser.find_element(By.ID, "found").text)
    assert all("日本語" in name for name in names(browser, "#results"))
    search.send_keys(Keys.TAB)
    focused = browser.switch_to.active_element
    assert "日本語" in focused.get_attribute("aria-label")
    focused.send_keys(Keys.ENTER)
    assert len(names(browser, "#history")) == 1
    wait(browser, lambda: names(browser, "[data-model='0']") != before)
    shown = names(browser, "[data-model='0']")
    assert len(shown) == 10
    assert ids(browser, "#history")[0] not in ids(browser, "[data-model='0']")
    assert "Added" in browser.find_element(By.ID, "status").text
    find(browser, "#history button.remove")[0].send_keys(Keys.ENTER)
    wait(browser, lambda: names(browser, "[data-model='0']") == before)
    assert browser.switch_to.active_element.get_attribute("id") == "search"


def test_recommendations_are_those_of_the_service(browser, service):
    open_page(browser, service)
    find(browser, "#results button")[0].click()
    wait(browser, lambda: find(browser, "[data-model='0'] .shared"))
    item = find(browser, "#history small bdi")[0].text.split(" · ")[0]
    for place, model in enumerate(("resid", "popularity")):
        request = {"histories": [[item]], "exclude_seen": True, "model": model, "details": True}
        entries = service.post("/recommend", json=request).json()["results"][0]["items"]
        assert names(browser, f"[data-model='{place}']") == [entry["details"]["title"] for entry in entries]
        ids = [path.get_attribute("aria-label") for path in find(browser, f"[data-model='{place}'] .path")]
        assert ids == [f"ID {'-'.join(map(str, entry['id']))}" for entry in entries if entry["id"]]


def test_why_where_and_similar_items(browser, service):
    open_page(browser, service)
    find(browser, "#results button")[0].click()
    wait(browser, lambda: find(browser, "[data-model='0'] details"))
    title = names(browser, "#history")[0]
    browser.execute_script("document.querySelector('[data-model=\"0\"] details').open = true")
    reason = find(browser, "[data-model='0'] .reasons li bdi")[0]
    assert reason.text.split() == title.split()  # the history has one item
    store = service.get("/items?limit=1").json()["items"][0]["fields"]["store"]
    field = browser.find_element(By.ID, "where")
    field.send_keys(f"store={store}", Keys.TAB)
    wanted = {"histories": [ids(browser, "#history")], "exclude_seen": True, "where": [f"store={store}"]}
    found = [entry["item"] for entry in service.post("/recommend", json=wanted).json()["results"][0]["items"]]
    wait(browser, lambda: ids(browser, "[data-model='0']") == found)
    field.clear()
    field.send_keys("nothing=here", Keys.TAB)
    wait(browser, lambda: "nothing" in browser.find_element(By.ID, "status").text)
    button = find(browser, "#history button")[0]
    bring_into_view(browser, button)
    button.click()
    wait(browser, lambda: find(browser, "#similar-items li"))
    near = service.get(f"/similar/{ids(browser, '#history')[0]}").json()["similar"]
    assert ids(browser, "#similar-items") == [entry["item"]["item"] for entry in near]


def test_browse_a_branch(browser, service):
    open_page(browser, service)

    def click_the_last_code():
        path = find(browser, "[data-model='0'] .path")[0]
        codes = path.get_attribute("aria-label").removeprefix("ID ").split("-")
        last = path.find_elements(By.TAG_NAME, "button")[-1]
        bring_into_view(browser, last)
        last.click()
        return codes

    wanted = wait(browser, click_the_last_code)
    wait(browser, lambda: [crumb.text for crumb in find(browser, "#crumbs button")] == ["All", *wanted])
    assert names(browser, "#children") == names(browser, "[data-model='0']")[:1]
    wait(browser, lambda: find(browser, "#crumbs button")[0].click() or True)
    wait(browser, lambda: len(find(browser, "#crumbs li")) == 1)
    root = service.get("/ids").json()
    assert [button.text for button in find(browser, "#children > li > button:first-child")] == [
        str(child["code"]) for child in root["children"]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1280, "light")])
def test_fits_the_screen(browser, service, width, scheme):
    open_page(browser, service, width)
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    settle(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(18, 21, 24)") == (scheme == "dark")


def test_names_for_screen_readers(browser, service):
    """Every control has a name, every section a heading, and no id is given twice."""
    open_page(browser, service)
    unnamed = """return [...document.querySelectorAll('button, input, select')].filter((control) =>
        !(control.getAttribute('aria-label') || control.textContent.trim() || control.labels?.length)).length"""
    assert browser.execute_script(unnamed) == 0
    headings = "return [...document.querySelectorAll('section')].every(s => document.getElementById(s.getAttribute('aria-labelledby')))"
    assert browser.execute_script(headings)
    repeated = (
        "const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.length - new Set(ids).size"
    )
    assert browser.execute_script(repeated) == 0


def test_asks_for_a_key(browser, models):
    with running(models / "popularity", RESID_API_KEY=KEY) as service:
        show(browser, service.address)
        field = browser.find_element(By.ID, "key")
        wait(browser, field.is_displayed)
        assert find(browser, "#results li") == []
        field.send_keys(KEY, Keys.ENTER)
        wait(browser, lambda: find(browser, "#results li"))
        assert not field.is_displayed()
