"""The page and the live page in a real Chromium (``make test-browser``)."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

from fedplt.comparison import cost_to_reach
from fedplt.report.page import content_of, read_groups, read_run, write_page
from tests.support.jobs import blob_job
from tests.support.runs import run_job

pytestmark = pytest.mark.browser
NAME = "<img src=x onerror='window.harmed=1'>"
HOSTILE = f"{NAME}</script><script>window.harmed=1</script>"
DEVICES = "name,count,mflops,kbps_down,kbps_up\nfast,1,10,100,100\nslow <b>one,4,0.5,50,10\n"
ZOOM = """
const done = arguments[0], node = document.getElementById("curves"), times = [];
const next = (wait) => new Promise((resume) => wait(resume));
(async () => {
  for (const range of [[5000, 15000], [7000, 8000], [7400, 7450], [1000, 24000], [1, 25000]]) {
    const start = performance.now();
    await Plotly.relayout(node, { "xaxis.range": range });
    while (curves.busy) await next(setTimeout);
    await next(requestAnimationFrame);
    await next(requestAnimationFrame); // now it is on the screen
    times.push(performance.now() - start);
  }
  done(times);
})();"""
"""How long each of five zooms takes, in milliseconds."""
LOOP = """(() => {
  const start = performance.now();
  let sum = 0;
  for (let i = 1; i < 3e7; i++) sum += Math.sqrt(i) / i;
  return sum > 0 ? performance.now() - start : 0;
})()"""
LOOP_MILLISECONDS = 200.0
"""What the loop takes on an AMD EPYC at 2.4 GHz."""


@pytest.fixture(scope="module")
def browser():
    from tests.support.browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, two seeds, with everything that can be shown."""
    root = tmp_path_factory.mktemp("runs")
    (root / "devices.csv").write_text(DEVICES)
    devices = str(root / "devices.csv")
    for method in ("fedplt", "fedavg"):
        for seed in (1, 2):
            job = blob_job(
                name=NAME, seed=seed, rounds=6, method={"name": method},
                fleet={"devices": devices, "dropout": 0.2, "deadline_seconds": 9},
                sampling={"name": "uniform", "num_clients": 4},
                diagnostics={"enabled": True}, evaluation={"per_client": True},
            )  # fmt: skip
            run_job(job, root / f"{method}-seed{seed}")
    return root


@pytest.fixture(scope="module")
def page(runs):
    groups = read_groups(sorted(runs.glob("*-seed*")))
    return write_page(runs / "page.html", content_of(HOSTILE, groups))


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, True)])
def test_everything_is_drawn_without_a_complaint(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    browser.show_all()
    assert not browser.problems()
    assert browser.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("document.querySelectorAll('.main-svg').length") > 10
    assert browser.js("document.querySelectorAll('.plot:not([aria-label])').length") == 0
    assert browser.js("performance.getEntriesByType('resource').length") == 0  # no network
    browser.picture(f"page-{width}-{'dark' if dark else 'light'}")


def test_what_files_say_is_text(browser, page):
    browser.open(page)
    browser.show_all()
    assert browser.js("window.harmed") is None
    assert HOSTILE in browser.js("document.querySelector('h1').textContent")
    assert browser.js("document.querySelectorAll('main img').length") == 0


def test_switches_and_target(browser, page, runs):
    browser.open(page)
    title = "document.querySelector('#curves .xtitle').textContent"
    assert browser.js(title) == "round"
    choose = "(() => { const n = document.getElementById(arguments[0]); n.value = arguments[1]; \
n.dispatchEvent(new Event(arguments[2])); })()"
    browser.js(choose, "axis", "bytes_up", "change")
    browser.wait(f"{title}.startsWith('bytes uploaded')")
    browser.js(choose, "target", "30", "input")
    shown = browser.js("curves.costs().map(c => c.means[1])")
    groups = read_groups(sorted(runs.glob("*-seed*")))
    for found, members in zip(shown, groups.values(), strict=True):
        costs = [cost_to_reach(run.history, "bytes up", 0.3) for run in members]
        reached = [cost for cost in costs if cost is not None]
        assert found == pytest.approx(sum(reached) / len(reached), rel=1e-5)
    browser.js(choose, "value", "loss", "change")
    browser.wait("document.querySelector('#curves .ytitle').textContent === 'validation loss'")
    assert browser.js("document.getElementById('costs').hidden")
    browser.js(choose, "run", "1", "change")
    assert browser.js("document.querySelector('[data-run=\"0\"]').hidden")
    browser.show_all()
    browser.js("document.getElementById('curves').focus()")
    browser.driver.switch_to.active_element.send_keys("+")
    browser.wait("curves.range !== undefined && curves.range !== null")
    browser.js(choose, "theme", "dark", "change")
    browser.wait("document.documentElement.dataset.theme === 'dark'")
    assert not browser.problems()


def test_a_printed_page_has_every_chart(browser, page):
    browser.open(page)
    assert browser.js("document.querySelectorAll('.plot:not(.js-plotly-plot)').length") > 0
    browser.js("dispatchEvent(new Event('beforeprint'))")
    shown = "[...document.querySelectorAll('.plot')].filter(n => !n.closest('[hidden]'))"
    browser.wait(f"{shown}.every(n => n.querySelector('.main-svg'))")


def test_no_word_of_a_header_is_broken(browser, page):
    """A header's word needs its width; a table that is too wide is scrolled."""
    browser.open(page, width=390)
    broken = """[...document.querySelectorAll('thead th')].filter(n => n.offsetParent)
        .filter(n => n.scrollWidth > n.clientWidth || getComputedStyle(n).overflowWrap != 'normal')
        .map(n => n.textContent)"""
    assert browser.js(broken) == []


def test_a_table_is_copied(browser, page):
    browser.open(page)
    browser.command("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    browser.js("document.querySelector('[data-copy=comparison-latex]').click()")
    browser.wait("document.querySelector('[data-copy=comparison-latex]').textContent === 'Copied'")
    assert "\\toprule" in browser.js("data.copies['comparison-latex']")


def test_a_zoom_into_100_000_points_is_quick(browser, tmp_path):
    from tests.support.browser import long_run

    groups = {name: [long_run(name, 25_000, seed) for seed in (1, 2)] for name in ("a", "b")}
    path = write_page(tmp_path / "long.html", content_of("long", groups))
    browser.open(path)
    assert browser.js("curves.data.groups.flatMap(g => g.runs).map(r => r.x.round.length)") == (
        [25_000] * 4
    )
    browser.driver.execute_async_script(ZOOM)  # warms up
    before, medians = browser.processor_seconds(), []
    while not medians or (min(medians) > 200 and len(medians) < 2):  # may be disturbed once
        times = [each for _ in range(3) for each in browser.driver.execute_async_script(ZOOM)]
        medians.append(statistics.median(times))
    own = 1000 * (browser.processor_seconds() - before) / (len(times) * len(medians))
    # The page's own work, whatever else the machine does, on a processor of today.
    slower = max(1.0, browser.js(LOOP) / LOOP_MILLISECONDS)
    assert own < 200 * slower, (own, slower)
    points = browser.js("document.getElementById('curves').data.map(t => t.x.length)")
    assert max(points) <= 1202
    assert not browser.problems()


def test_a_running_run_is_shown_live(browser, runs, tmp_path):
    from fedplt.report.watch import make_server, watch_app

    folder = tmp_path / "live" / "run"
    run_job(blob_job(rounds=4), folder)
    result = (folder / "result.json").read_bytes()
    (folder / "result.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:2]))
    for checkpoint in folder.glob("checkpoint*"):  # it counts four rounds: a run that lost two
        checkpoint.unlink()
    server = make_server(watch_app(folder.parent))
    socket = server.config.bind_socket()
    thread = threading.Thread(target=server.run, args=([socket],), daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{socket.getsockname()[1]}"
        deadline = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        browser.driver.get(address)
        browser.js("document.querySelector('a').click()")
        browser.wait("document.body.dataset.ready === 'yes'")
        assert browser.js("curves.data.groups[0].runs[0].x.round.length") == 2
        (folder / "rounds.jsonl").write_text("".join(lines))
        browser.wait("curves.data.groups[0].runs[0].x.round.length === 4")
        browser.wait("document.getElementById('numbers').textContent.includes('4 / 4')")
        assert browser.js("document.getElementById('curves').data.at(-1).x.length") == 4
        (folder / "result.json").write_bytes(result)
        browser.wait("document.body.dataset.live === 'no'")
        assert read_run(folder).is_finished
        assert not browser.problems()
    finally:
        server.should_exit = True
        thread.join(10)
