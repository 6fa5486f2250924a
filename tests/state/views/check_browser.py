#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_browser.py [--pictures FOLDER] TOOL MAKE_PAGE IN_PLACE PRELOAD: the page of metashard-dump show --html in
a headless Chromium, whose figures must be those of --json. TAP. The pictures are for people to look at."""
import argparse
import json
import os
import struct
import sys
import tempfile

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import make_page as made_pages  # noqa: E402
import views  # noqa: E402
from browser import Browser, find_browser  # noqa: E402
from tap import check, end  # noqa: E402
from views import HOSTILE, Document, Page, check_page, check_title, dump, dump_json, same  # noqa: E402


def document_of(browser):
    return Document(browser.source())


def check_opened(browser, name):
    check(f"{name}: the browser has nothing to complain about", not browser.complaints, browser.complaints)
    strange = [url for url in browser.requests if not url.startswith(("file://", "data:"))]
    check(f"{name}: the network is not asked for", len(browser.requests) >= 1 and not strange, browser.requests)
    check(f"{name}: no name has become a script", browser.value("typeof window.hacked") == "undefined")


def check_figures(tool, browser, name, paths, out):
    dump(tool, "show", *paths, "--html", out)
    view = dump_json(tool, paths)
    browser.open(out)
    check_opened(browser, name)
    data = browser.value("JSON.stringify(JSON.parse(document.getElementById('data').textContent))")
    # JavaScript's numbers hold 53 bits.
    same(f"{name}: the browser reads the data in the page", sorted(json.loads(data)), sorted(view))
    check_title(name, browser.value("document.title"), browser.value("document.querySelector('h1').textContent"), view)
    check_page(document_of(browser), name, view)
    browser.open(out, scripts=False)
    document = document_of(browser)
    check(f"{name}, without JavaScript: it says why there is nothing", document.root.first("main") is None and
          "turn them on" in document.root.first("noscript").first("p").text())
    return view


def check_table(browser, view):
    find = "document.querySelector('#p0-tensors')"
    names = f"Array.from({find}.tBodies[0].rows, row => row.hidden ? '' : row.cells[0].textContent)"
    same("sorting: a click on a name", browser.value(
        f"{find}.querySelector('th button').click(), {names}"), sorted(t["name"] for t in view["tensors"]))
    browser.value(f"{find}.querySelector('th button').focus()")
    browser.press("Enter", "\r")
    same("sorting: the key Enter turns it round", browser.value(names),
         sorted((t["name"] for t in view["tensors"]), reverse=True))
    same("sorting: it is said which way", browser.value(f"{find}.querySelector('th').getAttribute('aria-sort')"),
         "descending")
    browser.value(f"{find}.querySelectorAll('th button')[1].click()")
    sizes = browser.value(f"Array.from({find}.tBodies[0].rows, row => Number(row.cells[1].firstChild.value))")
    same("sorting: numbers by their size, the largest first", sizes,
         sorted((t["bytes"] for t in view["tensors"]), reverse=True))
    word = view["tensors"][1]["name"]
    browser.value(f"{find}.parentElement.previousElementSibling.querySelector('input').focus()")
    browser.type(word)
    shown = [name for name in browser.value(names) if name]
    words = word.lower().split()
    same("a filter: what has the words", sorted(shown), sorted(
        t["name"] for t in view["tensors"] if all(part in t["name"].lower() for part in words)))
    same("a filter: how many are left", browser.value(
        f"{find}.parentElement.previousElementSibling.querySelector('span').textContent"),
        f"{len(shown)} of {len(view['tensors'])} rows")


def check_chart(browser, view):
    last = view["samples"][-1]
    tip = "document.querySelector('figure .tip')"
    check("the chart: no pointer at first", browser.value(f"{tip}.hidden"))
    browser.value("document.querySelector('svg.chart').focus()")
    text = browser.value(f"{tip}.textContent")
    same("the chart: the pointer begins at the end", text.split("\n"), views.point_texts(view["samples"], last))
    browser.press("Home")
    first = view["samples"][0]
    check("the chart: the key Home goes to the begin", browser.value(f"{tip}.textContent").startswith(
        views.point_texts(view["samples"], first)[0] + "\n"), browser.value(f"{tip}.textContent"))
    browser.press("ArrowRight")
    check("the chart: an arrow goes on", browser.value(f"{tip}.textContent").startswith(
        views.point_texts(view["samples"], view["samples"][1])[0] + "\n"))
    box = browser.value("(b => [b.left, b.top, b.width, b.height])"
                        "(document.querySelector('svg.chart').getBoundingClientRect())")
    browser.value("document.activeElement.blur()")
    check("the chart: and the pointer goes", browser.value(f"{tip}.hidden"))
    data = browser.value("Object.assign({}, document.querySelector('svg.chart').dataset)")
    left, right, end = (float(data[key]) for key in ("left", "right", "end"))
    for part in (0.5, 0.7, 0.95):
        x = left + part * (right - left)
        browser.move(box[0] + box[2] * x / 960, box[1] + box[3] / 2)
        sample = [sample for sample in view["samples"] if sample["time_ns"] <= part * end][-1]
        same(f"the chart: the mouse at {part} points to what was then", browser.value(f"{tip}.textContent").split("\n"),
             views.point_texts(view["samples"], sample))
    check("the chart: the mouse shows the pointer", not browser.value(f"{tip}.hidden"))
    browser.move(5, 5)


def check_zoom(browser, view):
    """Buttons, keys and the mouse zoom the memory over time."""
    chart = "document.querySelector('svg.chart')"
    data = browser.value(f"Object.assign({{}}, {chart}.dataset)")
    left, right, end = (float(data[key]) for key in ("left", "right", "end"))

    def shown():
        box = list(map(float, browser.value(f"{chart}.querySelector('.plot').getAttribute('viewBox')").split()))
        return (box[0] - left) / (right - left), box[2] / (right - left)

    def click(button):
        browser.value(f"document.querySelectorAll('figure .tools button')[{button}].click()")

    same("zoom: at first all is shown", shown(), (0, 1))
    labels = f"Array.from({chart}.querySelectorAll('.times text'), label => label.textContent)"
    before = browser.value(labels)
    click(1)
    same("zoom: the button + shows the half in the middle", [round(part, 3) for part in shown()], [0.25, 0.5])
    check("zoom: with other times below it", browser.value(labels) != before and len(browser.value(labels)) >= 2)
    box = browser.value(f"(b => [b.left, b.top, b.width, b.height])({chart}.getBoundingClientRect())")
    at = 0.25 + 0.5 * 0.6
    browser.move(box[0] + box[2] * (left + 0.6 * (right - left)) / 960, box[1] + box[3] / 2)
    sample = [sample for sample in view["samples"] if sample["time_ns"] <= at * end][-1]
    check("zoom: the pointer points to what was then", browser.value(
        "document.querySelector('figure .tip').textContent").startswith(
            views.point_texts(view["samples"], sample)[0] + "\n"))
    click(0)
    same("zoom: the button - shows all again", shown(), (0, 1))
    places = [box[0] + box[2] * (left + part * (right - left)) / 960 for part in (0.2, 0.4)]
    browser.drag(places[0], box[1] + box[3] / 2, places[1])
    same("zoom: dragging shows that part", [round(part, 2) for part in shown()], [0.2, 0.2])
    browser.value(f"{chart}.focus()")
    browser.press("0")
    same("zoom: the key 0 shows all again", shown(), (0, 1))
    for _ in range(9):
        browser.press("+")
    same("zoom: the key + has an end", round(1 / shown()[1]), 64)
    browser.press("Home")
    check("zoom: the pointer is never out of sight", shown()[0] * end <= view["samples"][0]["time_ns"])
    click(2)
    same("zoom: and the button for all", shown(), (0, 1))
    browser.value("document.activeElement.blur()")
    browser.move(5, 5)


def check_loaded(tool, browser, folder, path):
    """The label of the end of loading goes with its line, and out of sight with it."""
    with open(path, "rb") as file:
        page = bytearray(file.read())
    at, number = page.index(b"loaded_ns\0"), 0
    begin, _, size = struct.unpack_from("<QQQ", page, made_pages.HEADER.size + 24 * made_pages.SECTIONS.index("names"))
    number = (at - begin) // size
    figures, = struct.unpack_from("<Q", page, made_pages.HEADER.size + 24 * made_pages.SECTIONS.index("figures"))
    loaded = dump_json(tool, [path])["time_ns"] // 10
    struct.pack_into("<Q", page, figures + 8 * number, loaded)
    changed, out = os.path.join(folder, "loaded.state"), os.path.join(folder, "loaded.html")
    with open(changed, "wb") as file:
        file.write(page)
    view = check_figures(tool, browser, "a process that has loaded", [changed], out)
    same("loading: its end is in the data", view["loaded_ns"], loaded)
    browser.open(out)
    label, line = (f"document.querySelector('{tag}.loaded')" for tag in ("text", "path"))
    same("loading: the label is at the line", browser.value(
        f"Math.abs({label}.getBoundingClientRect().left - {line}.getBoundingClientRect().left) < 12"), True)
    browser.value("document.querySelector('svg.chart').focus()")
    browser.press("+")
    same("loading: where the chart shows other times, the label goes", browser.value(f"{label}.getAttribute('visibility')"), "hidden")
    browser.press("0")
    same("loading: and comes back", browser.value(f"{label}.getAttribute('visibility')"), "visible")


def check_tree(browser, out):
    """Levels are folded, and a click opens one."""
    browser.open(out)
    levels = "Array.from(document.querySelectorAll('#all-tree details'))"
    tops = f"{levels}.filter(level => level.parentElement.id === 'all-tree')"
    same("the tree: all levels are folded", browser.value(f"{levels}.some(level => level.open)"), False)
    browser.value(f"{tops}[0].querySelector('summary').click()")
    same("the tree: a click opens a level, and no other", browser.value(f"[{tops}[0].open, {levels}.filter(level => level.open).length]"),
         [True, 1])


def check_map(browser, view):
    browser.value("document.querySelector('.map g[data-block]').focus()")
    tip = "document.querySelector('body > .tip')"
    first = browser.value(f"{tip}.textContent")
    check("the map: a block tells about itself", "block " in first and not browser.value(f"{tip}.hidden"), first)
    browser.press("ArrowRight")
    check("the map: an arrow goes to the next", browser.value(f"{tip}.textContent") not in ("", first))
    same("the map: it is one stop for the Tab key", browser.value(
        "document.querySelectorAll('.map')[0].querySelectorAll('g[tabindex=\"0\"]').length"), 1)
    check_events_of(browser, view, "the key Enter", lambda: browser.press("Enter", "\r"))
    browser.value("document.querySelectorAll('.map g[data-block]')[4].focus()")
    x, y = browser.value("(b => [b.left + b.width / 2, b.top + b.height / 2])(document.activeElement.getBoundingClientRect())")
    check_events_of(browser, view, "a click", lambda: browser.drag(x, y, x))
    wide = "Math.round(document.querySelector('.map .row').offsetWidth / document.querySelector('.map').clientWidth)"
    button = "document.querySelector('.map').previousElementSibling.querySelectorAll('button')"
    same("the map: zoom in, twice, and all again", [browser.value(f"{button}[{i}].click(), {wide}") for i in (1, 1, 2)],
         [2, 4, 1])


def check_events_of(browser, view, how, act):
    """From the block in focus to its events, and nothing but these."""
    number = int(browser.value("document.activeElement.dataset.block").split("-b")[1])
    block = view["blocks"][number]["id"]
    act()
    rows = "Array.from(document.querySelector('#p0-events').tBodies[0].rows).filter(row => !row.hidden)"
    shown = browser.value(f"{rows}.map(row => [row.id, Number(row.cells[4].textContent)])")
    same(f"the map: {how} goes from a block to its events", shown,
         [[f"p0-e{i}", block] for i, event in enumerate(view["events"]) if event["block"] == block])
    same(f"the map: {how} has the first of them in focus", browser.value("document.activeElement.id"), shown[0][0])


def check_keyboard(browser):
    """The Tab key comes to everything."""
    browser.value("document.activeElement.blur(), window.scrollTo(0, 0)")
    seen = set()
    for _ in range(60):
        browser.press("Tab")
        seen.add(browser.value("document.activeElement.tagName.toLowerCase()"))
    missing = {"summary", "svg", "input", "button", "g", "div"} - seen
    check("the Tab key comes to everything", not missing, missing)


def brightness(browser, color):
    """Relative luminance of a CSS colour, as WCAG 2 defines it."""
    parts = browser.value(f"getComputedStyle({color[0]}).{color[1]}")
    values = [int(part) / 255 for part in parts[parts.index("(") + 1:-1].split(",")[:3]]
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def check_looks(browser, out, name, pictures):
    backs = []
    for dark in (False, True):
        look = "dark" if dark else "light"
        browser.open(out, dark=dark)
        back = brightness(browser, ("document.body", "backgroundColor"))
        backs.append(back)
        for what, least in (("body", 7), (".dim", 4.5), ("thead th", 4.5), ("a, .life", 4.5)):
            fore = brightness(browser, (f"document.querySelector('{what}')", "color"))
            ratio = (max(fore, back) + 0.05) / (min(fore, back) + 0.05)
            check(f"{name}, {look}: {what} can be read", ratio >= least, f"contrast {ratio:.1f}")
        for width in (1400, 1280, 800, 400):
            browser.size(width, 1900)
            same(f"{name}, {look}: no reason is cut at {width} pixels", browser.value(
                "Array.from(document.querySelectorAll('[id$=causes] .t')).filter(cell => cell.scrollWidth > cell.clientWidth || "
                "cell.getBoundingClientRect().right > document.documentElement.clientWidth).length"), 0)
            check(f"{name}, {look}: fits into {width} pixels",
                  browser.value("document.documentElement.scrollWidth") <= width,
                  browser.value("document.documentElement.scrollWidth"))
            hints = browser.value("Array.from(document.querySelectorAll('.hint'), hint => hint.checkVisibility()).some(is => is)")
            same(f"{name}, {look}: with a hint to scroll, if narrow, at {width} pixels", hints, width == 400)
            if pictures:
                browser.picture(os.path.join(pictures, f"{name}-{look}-{width}.png".replace(" ", "-")))
            same(f"{name}, {look}: causes need no scrolling at {width} pixels, but narrow tensors do", browser.value(
                "['causes', 'tensors'].map(what => document.querySelector(`[id$=${what}]`).parentElement)"
                ".map(frame => frame.scrollWidth > frame.clientWidth)")[:1 if width != 400 else 2],
                [False] if width != 400 else [False, True])
        browser.size(1280, 1000)
    check(f"{name}: dark is darker than light", backs[1] < 0.1 < 0.8 < backs[0], backs)


def check_ranks(browser, out):
    browser.open(out)
    same("ranks: each is folded at first",
         browser.value("document.querySelectorAll('details.process[open]').length"), 0)
    browser.value("document.querySelector('a[href=\"#p1\"]').click()")
    browser.value("new Promise(done => setTimeout(done, 200))")
    same("ranks: a link opens the one", browser.value(
        "Array.from(document.querySelectorAll('details.process'), d => d.open)"), [False, True])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures")
    parser.add_argument("tool")
    parser.add_argument("make_page")
    parser.add_argument("in_place")
    parser.add_argument("preload")
    options = parser.parse_args()
    program = find_browser()
    if program is None:
        print("1..0 # SKIP no browser was found: install chromium-headless-shell or chromium, or set CHROME")
        return 0
    print(f"# {program}")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "page.html")
        pages = [Page(options.make_page, os.path.join(folder, "hostile"), HOSTILE, rank, 2).end() for rank in (0, 1)]
        job = views.run_program(options.in_place, folder, 2, options.preload)
        browser = Browser(program)
        try:
            view = check_figures(options.tool, browser, "hostile names", pages[:1], out)
            browser.open(out)
            check_table(browser, view)
            check_chart(browser, view)
            check_zoom(browser, view)
            check_map(browser, view)
            check_keyboard(browser)
            check_looks(browser, out, "hostile names", options.pictures)
            check_opened(browser, "hostile names, after all")
            check_loaded(options.tool, browser, folder, pages[0])
            check_figures(options.tool, browser, "two hostile ranks", pages, out)
            check_figures(options.tool, browser, "a job", job, out)
            check_tree(browser, out)
            check_ranks(browser, out)
            check_looks(browser, out, "a job", options.pictures)
        finally:
            browser.close()
    return end()


if __name__ == "__main__":
    sys.exit(main())
