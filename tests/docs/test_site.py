"""The documentation as a site: docs/site/build.sh builds it without a warning, its pages have what the Markdown files have, and
a browser shows pages, search and figures. SCREENSHOTS=DIRECTORY keeps what the browser showed as PNG files."""

import collections
import functools
import http.server
import json
import os
import subprocess
import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30
# A figure's colours by how many of its pixels have them.
COLOURS = """
const image = arguments[0], canvas = document.createElement("canvas"), found = {};
[canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
const context = canvas.getContext("2d");
context.drawImage(image, 0, 0);
const pixels = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
for (const pixel of pixels) found[pixel] = (found[pixel] || 0) + 1;
return Object.values(found);
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run([ROOT / "docs/site/build.sh", directory], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("headless", "no-sandbox", "disable-dev-shm-usage", "window-size=1440,1000", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium, address):
    """Whatever it shows: no error, and nothing from elsewhere."""
    requests(chromium)  # of its own start page
    yield chromium
    assert [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"] == []
    asked = requests(chromium)
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def requests(driver) -> "list[str]":
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def wait_for(driver, condition):
    return WebDriverWait(driver, WAIT_S).until(lambda _: condition())


def keep(driver, name: str) -> None:
    if "SCREENSHOTS" in os.environ:
        directory = Path(os.environ["SCREENSHOTS"])
        directory.mkdir(parents=True, exist_ok=True)
        assert driver.save_screenshot(directory / f"{name}.png")


def test_the_first_page_is_the_readme_with_the_menu(browser, address):
    browser.get(address)
    keep(browser, "first-page")
    assert browser.find_element(By.TAG_NAME, "h1").text.startswith("Lockstep")
    tabs = {tab.text: tab for tab in browser.find_elements(By.CSS_SELECTOR, ".md-tabs__link")}
    assert {"Tutorial", "How-to", "Reference", "Explanation"} <= tabs.keys()
    tabs["Tutorial"].click()
    wait_for(browser, lambda: browser.current_url != address)
    keep(browser, "tutorial")
    assert browser.find_elements(By.CSS_SELECTOR, "nav .md-nav__link--active")


def test_a_diagram_fits_its_page(browser, address):
    browser.get(address)
    diagram = browser.find_element(By.CSS_SELECTOR, "article pre > code")
    assert "trainer_agent" in diagram.text
    assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", diagram)


def test_a_search_finds_a_page_and_opens_it(browser, address):
    browser.get(address)
    field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    field.click()
    field.send_keys("rollback")

    def results():
        return browser.find_elements(By.CSS_SELECTOR, ".md-search-result__item a.md-search-result__link")

    wait_for(browser, results)
    keep(browser, "search")
    results()[0].click()
    wait_for(browser, lambda: browser.current_url.startswith(f"{address}docs/"))
    assert "rollback" in browser.find_element(By.TAG_NAME, "article").text


@pytest.mark.parametrize("page", ["docs/performance/", "docs/metrics/", "docs/tutorial/"])
def test_figures_are_drawn(browser, address, page):
    browser.get(address + page)
    figures = browser.find_elements(By.CSS_SELECTOR, "article img")
    assert figures
    for number, figure in enumerate(figures):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", figure)
        wait_for(browser, lambda figure=figure: browser.execute_script("return arguments[0].complete", figure))
        colours = sorted(browser.execute_script(COLOURS, figure), reverse=True)
        assert sum(colours[1:]) > 0.01 * sum(colours), f"{figure.get_attribute('src')} is blank"
        keep(browser, f"figure-{page.split('/')[1]}-{number}")


class Counting(HTMLParser):
    """Counts the parts of a page that have a shape of their own."""

    def __init__(self, inside: str):
        super().__init__()
        self.inside, self.counting, self.counts = inside, not inside, collections.Counter()

    def handle_starttag(self, tag, attributes):
        self.counting = self.counting or tag == self.inside
        if self.counting and tag in ("h1", "h2", "h3", "table", "tr", "td", "pre", "ul", "ol", "li", "img"):
            self.counts[tag] += 1

    def handle_endtag(self, tag):
        self.counting = self.counting and tag != self.inside


def counts(html: str, inside: str = "") -> "dict[str, int]":
    parser = Counting(inside)
    parser.feed(html)
    return dict(parser.counts)


def test_pages_have_the_headings_tables_listings_and_items_of_their_files(site):
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    github = MarkdownIt("commonmark").enable("table")
    for name in listed.stdout.split():
        page = site / name.removesuffix(".md").removesuffix("README") / "index.html"
        assert counts(page.read_text(), "article") == counts(github.render((ROOT / name).read_text())), name


def test_a_directory_that_is_no_site_and_an_unknown_option_are_refused(tmp_path):
    (tmp_path / "thesis.txt").touch()
    for argument in (tmp_path, "--server"):
        assert subprocess.run([ROOT / "docs/site/build.sh", argument], capture_output=True).returncode == 64
    assert (tmp_path / "thesis.txt").exists()
