"""What tests of pages do with the fixture `browser`."""

import json


def show(browser, address, width=1280):
    """Open a page at a width, as on a screen of that size."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    still = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", still)
    browser.get("about:blank")
    for kind in ("browser", "performance"):  # of earlier pages
        browser.get_log(kind)
    browser.get(address)
    settle(browser)  # the charts are drawn when their width is known, after the first layout


def settle(browser):
    """Wait for two frames, after which layout, scrolling and what they cause are done."""
    frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))"
    browser.execute_async_script(frames)


def bring_into_view(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    settle(browser)


def requests_of(browser):
    events = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
