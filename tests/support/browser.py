"""Chromium for tests of pages, and runs to show."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from fedplt import History
from fedplt.federation.run_folder.records import RoundRecord, Totals
from fedplt.report.page import ShownRun

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip


class Browser:
    """A Chromium with an empty profile; remembers nothing between tests."""

    def __init__(self, profile: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for option in (*OPTIONS, f"--user-data-dir={profile}"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        self.driver.set_script_timeout(30)
        self.driver.set_page_load_timeout(60)
        self.command("Performance.enable", timeDomain="threadTicks")

    def open(self, page: Path | str, *, width: int = 1200, dark: bool = False) -> None:
        """Load a page and wait until its main chart is drawn."""
        phone = width < 600
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[feature])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.command("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.driver.get(page.as_uri() if isinstance(page, Path) else page)
        self.wait("document.body.dataset.ready === 'yes'")

    def command(self, name: str, **arguments: object) -> None:
        self.driver.execute_cdp_cmd(name, arguments)

    def processor_seconds(self) -> float:
        """The processor time of the page's main thread so far."""
        answer = self.driver.execute_cdp_cmd("Performance.getMetrics", {})
        return {each["name"]: each["value"] for each in answer["metrics"]}["TaskDuration"]

    def js(self, code: str, *arguments: object) -> object:
        return self.driver.execute_script(f"return {code}", *arguments)

    def wait(self, condition: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < deadline, f"{condition} never held: {self.problems()}"
            time.sleep(0.05)

    def show_all(self) -> None:
        """Draw every chart that is not hidden: they are drawn when they come near the screen."""
        for _ in range(50):
            self.js("scrollBy(0, 700)")
            self.js("dispatchEvent(new Event('scroll'))")
            if self.js("innerHeight + scrollY >= document.documentElement.scrollHeight - 2"):
                break
        self.wait(
            "[...document.querySelectorAll('.plot')].filter(n => !n.closest('[hidden]'))"
            ".every(n => n.querySelector('.main-svg'))"
        )

    def problems(self) -> list[str]:
        """What the console says; a page without faults says nothing."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, name: str) -> None:
        """Save a screenshot, for people who look (FEDPLT_SCREENSHOTS: the folder)."""
        if folder := os.environ.get("FEDPLT_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@contextmanager
def chromium() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            yield browser
        finally:
            browser.driver.quit()


def long_run(name: str, number: int, seed: int = 1) -> ShownRun:
    """A run of many evaluated rounds, made up."""
    records = []
    for i in range(1, number + 1):
        total = Totals(1000 * i, 3000 * i, 10**6 * i, 9e5 * i)
        score = 0.9 * (1 - math.exp(-5 * i / number)) + 0.03 * math.sin(i * (7 + seed))
        records.append(RoundRecord(i, 5, 2.0, Totals(), total, 0.5, score=score, loss=1 - score))
    return ShownRun(name, seed, History(records), number)
