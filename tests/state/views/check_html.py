#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_html.py TOOL MAKE_PAGE IN_PLACE PRELOAD: the page of metashard-dump show --html, without a browser: the
file, and, where there is node, what its script draws. TAP."""
import base64
import hashlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import make_page as made_pages  # noqa: E402
import views  # noqa: E402
from tap import check, end, skip  # noqa: E402
from views import HOSTILE, OBEYED, Document, Page, check_page, dump, dump_json, same  # noqa: E402


def check_shell(name, text, document):
    """Checks that go for every page, and for its charts."""
    check(f"{name}: is well formed", not document.faults, document.faults[:5])
    scripts = list(document.root.all("script"))
    kinds = [script.get("type") for script in scripts]
    same(f"{name}: the only scripts are its data and its own", kinds, ["application/json", None])
    digest = base64.b64encode(hashlib.sha256(scripts[-1].text().encode()).digest()).decode()
    policy = document.root.first("meta", http_equiv="Content-Security-Policy").get("content")
    check(f"{name}: allows that script alone, and no network",
          f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy, policy)
    outside = [f"<{node.tag} {key}={value}" for node in document.root.all()
               for key, value in node.attributes.items()
               if key in ("src", "href", "srcset", "action", "xlink:href", "poster", "data")
               and not value.startswith("#") and value != "data:,"]
    check(f"{name}: needs nothing else", not outside and not re.search(r"url\(|@import", text.split("</style>")[0]),
          outside)
    handlers = [f"<{node.tag} {key}" for node in document.root.all() for key in node.attributes
                if key.startswith("on") or key == "style"]
    check(f"{name}: has no handlers in attributes", not handlers, handlers)
    check(f"{name}: is for light and dark, and of any width",
          "prefers-color-scheme: dark" in text and document.root.first("meta", name="viewport") is not None)


def check_elements(name, document):
    ids = [node.get("id") for node in document.root.all() if node.get("id")]
    check(f"{name}: ids are there once", len(ids) == len(set(ids)),
          [name for name in ids if ids.count(name) > 1][:5])
    pointers = [node.get(key) for node in document.root.all() for key in ("aria-labelledby",) if node.get(key)]
    pointers += [node.get("href")[1:] for node in document.root.all("a")]
    check(f"{name}: what is pointed to is there", all(pointer in ids for pointer in pointers), pointers)
    bare = [node.get("id") for node in document.root.all("table") for head in node.all("th") if not head.get("scope")]
    check(f"{name}: headings of tables say of what", not bare, bare)


def drawn(name, paths):
    """The texts of the pages as drawn; of none, where there is no node."""
    texts = views.draw(paths)
    if texts is None:
        skip(f"{name}: what the script draws", "there is no node 18: install nodejs, or set NODE")
    return texts or []


def data_of(document):
    return json.loads(document.root.first("script", id="data").text())


def check_file(tool, name, paths, folder):
    """Returns the text of the file, and that of what its script draws, "" if that is not known."""
    out = os.path.join(folder, "page.html")
    done = dump(tool, "show", *paths, "--html", out)
    check(f"{name}: is written", done.returncode == 0 and done.stdout == "" and done.stderr == "", done.stderr)
    with open(out, encoding="utf-8") as file:
        text = file.read()
    document, view = Document(text), dump_json(tool, paths)
    obeyed = OBEYED.search(text)
    check(f"{name}: has no character that a browser obeys", obeyed is None, obeyed)
    check_shell(name, text, document)
    same(f"{name}: has the data of --json", data_of(document), view)
    standard = dump(tool, "show", *paths, "--html", "-")
    check(f"{name}: the same on standard output", standard.returncode == 0 and standard.stdout == text)
    for picture in drawn(name, [out]):
        document = Document(picture)
        check_shell(f"{name}, drawn", picture, document)
        check_elements(f"{name}, drawn", document)
        check_page(document, f"{name}, drawn", view)
        return text, picture
    return text, ""


def check_hostile(tool, make_page, folder):
    pages = [Page(make_page, os.path.join(folder, "hostile"), HOSTILE, rank, 2).end() for rank in (1, 0)]
    texts = check_file(tool, "hostile names", pages[:1], folder)
    check_file(tool, "hostile names, two ranks", pages, folder)
    check_file(tool, "a page twice", [pages[0], pages[0]], folder)
    for name in HOSTILE:
        if "<" in name:
            check(f"{name!r} is nowhere as it is", not any(name in text for text in texts))
    with open(views.DRAW, encoding="utf-8") as file:
        check("the script that draws is the one in the page", "<script>" + file.read() in texts[0])


def check_many(tool, make_page, folder):
    """More rows than the page of many processes has of each: the last ones, and a word about the others."""
    path = Page(make_page, os.path.join(folder, "many"), [f"layers.{i}" for i in range(60)]).end()
    out = os.path.join(folder, "many.html")
    dump(tool, "show", *[path] * 100, "--html", out)
    with open(out, encoding="utf-8") as file:
        data = data_of(Document(file.read()))
    view, one = dump_json(tool, [path]), data["processes"][99]
    left = {what: len(view[what]) - 30 for what in ("blocks", "tensors", "causes", "events")}
    check("many rows: there are more than the page has", len(view["events"]) > 200 and min(left.values()) > 0, left)
    same("many rows: the last events, and the largest of the others", {what: one[what] for what in left},
         {what: view[what][-30:] if what == "events" else view[what][:30] for what in left})
    same("many rows: how many are left out", one["left_out"], left)
    same("many rows: the lists of all have all", [len(data[what]) for what in ("tensors", "causes")],
         [len(view[what]) for what in ("tensors", "causes")])
    for text in drawn("many rows", [out]):
        # To parse all of it takes long.
        document = Document(text[text.rindex("<", 0, text.index('id="p99-events"')):text.index("</main>")])
        same("many rows: the last events are shown", views.rows_of(document, "p99-events"), views.expected_events(view)[-30:])
        check("many rows: it says so", f"30 of {len(view['events'])} are shown" in document.root.text())


def check_size(tool, folder):
    """A page of 64 ranks, however much there is of each."""
    parts = made_pages.records()
    parts["blocks"] = [made_pages.block(i + 1, 10000 - i, name=f"model.layers.{i}.self_attn.q_proj.weight", of_file=1)
                       for i in range(500)]
    parts["events"] = [made_pages.event(i, what=f"model.layers.{i}.self_attn.q_proj.weight") for i in range(5000)]
    parts["samples"] = [made_pages.sample(1000 * (i + 1), 10 * i, i, 5 * i) for i in range(3000)]
    parts["causes"] = [made_pages.cause(what=f"kernel_{i}", sentence="Do this. " * 20, size=i) for i in range(60)]
    path, out = os.path.join(folder, "large.state"), os.path.join(folder, "large.html")
    with open(path, "wb") as file:
        file.write(made_pages.page(parts))
    dump(tool, "show", *[path] * 64, "--html", out)
    size = os.path.getsize(out)
    check("64 ranks: less than 5 MB", size < 5 * 10**6, size)
    with open(out, encoding="utf-8") as file:
        data = data_of(Document(file.read()))
    same("64 ranks: all tensors and causes of all, and the end of the memory over time",
         [len(data["tensors"]), data["tensors"][0]["bytes"], len(data["causes"]), data["samples"][-1]["live_bytes"]],
         [500, 10000, 60, made_pages.FIGURES["live_bytes"]])
    for text in drawn("64 ranks", [out]):
        check("64 ranks: each is drawn", all(f'<section id="p{i}"' in text for i in range(64)))


def write_page(folder, name, parts, **figures):
    """A page with these figures besides."""
    path = os.path.join(folder, name)
    names = [record.rstrip(b"\0").decode() for record in parts["names"]]
    known = {**dict(zip(names, parts["figures"])), **{key: struct.pack("<Q", value) for key, value in figures.items()}}
    parts["names"], parts["figures"] = [made_pages.text(key, 48) for key in known], list(known.values())
    with open(path, "wb") as file:
        file.write(made_pages.page(parts))
    return path


def check_normal(tool, folder):
    """A run as it should be: it loads, one kernel brings in less than a granule, one ends loading, and others use the rest."""
    parts = made_pages.records()
    parts["plan"] = [bytes(568)] * 2
    parts["process"] = [made_pages.process(ended=9)] * 2
    parts["causes"] = [made_pages.cause(what="loads", size=2 ** 21 - 1, loaded=(3, 2 ** 21 - 1, 7), kind=11),
                       made_pages.cause(what="embeds", size=2 ** 30, loaded=(1, 2 ** 30, 7), kind=11, first_ns=5),
                       made_pages.cause(what="trains", size=2 ** 33, kind=11, first_ns=6), made_pages.cause(what="trains", size=2 ** 33),
                       made_pages.cause(what="replays", size=2 ** 33, kind=5), made_pages.cause(what="host memory, to read files through", size=2 ** 34, kind=8, reason=0)]
    parts["events"] = [made_pages.event(i, kind=kind) for i, kind in enumerate((1, 3, 4, 11))] + [made_pages.event(4, kind=11, size=2 ** 30, reason=2), made_pages.event(6, kind=11, size=2 ** 33, reason=2)]
    path = write_page(folder, "normal.state", parts, fallbacks=1000, loaded_ns=5, live_bytes_peak=2 ** 33)
    _, text = check_file(tool, "a normal run", [path], folder)
    shown = text[:text.find("</main>")]
    check("a normal run: no alarm", 'class="note"' not in shown and 'class="alarm"' not in shown, re.findall(r'.*class="(?:note|alarm)".*', shown))
    if text:
        same("a normal run: a cause is there once", [row[3:6:2] for row in views.rows_of(Document(text), "p0-causes")],
             [["used", "trains"], ["fallback", "embeds"], ["fallback", "loads"]])
        check("a normal run: where loading ends", "loading ends: " in shown)
    parts["causes"][0] = made_pages.cause(what="loads", size=2 ** 21, loaded=(3, 2 ** 21, 7), kind=11)
    _, text = check_file(tool, "a run with a fallback", [write_page(folder, "fallback.state", parts)], folder)
    check("a run with a fallback: it is noted", not text or '<p class="note">3 times while it loaded' in text)
    parts["causes"].append(made_pages.cause(kind=11, reason=25, what="libother.so", sentence="libother.so stands before."))
    _, text = check_file(tool, "a library before", [write_page(folder, "before.state", parts)], folder)


def check_worst(tool, folder):
    """A page of two runs that do not overlap: both peaks are of one process, and nothing is a sum."""
    paths = []
    for run, (peak, without) in enumerate(((700, 1000), (500, 90000))):
        parts = made_pages.records()
        parts["process"] = [made_pages.process(pid=600 + run, rank=0, world=1, ended=9, job=f"job{run}",
                                               started_ns=10 ** 18 + run * 10 ** 12)] * 2
        paths.append(write_page(folder, f"run{run}.state", parts, backed_bytes_peak=peak, live_bytes_peak=without, loaded_ns=3 + run))
    _, text = check_file(tool, "two runs", paths, folder)
    check("two runs: how many, and the peaks of one process", not text or "<h1>2 processes of 2 runs</h1>" in text and
          "Peak of rank 0, the worst process, <b>700 B</b> instead of <b>1000 B</b>" in text)


def check_work(tool, folder):
    """Memory that a kernel used after the program had loaded is no fallback."""
    parts, path, out = made_pages.records(), os.path.join(folder, "work.state"), os.path.join(folder, "work.html")
    parts["figures"].append(struct.pack("<Q", 1))
    parts["names"].append(made_pages.text("loaded_ns", 48))
    parts["causes"] = [made_pages.cause(kind=11, what="loads", size=300, loaded=(3, 300, 7)), made_pages.cause(kind=11, what="trains"),
                       made_pages.cause(kind=11, reason=4, what="reaches", size=200)]
    with open(path, "wb") as file:
        file.write(made_pages.page(parts))
    dump(tool, "show", path, "--html", out)
    for text in drawn("work", [out]):
        same("work: the kinds of its causes", [row[3] for row in views.rows_of(Document(text), "p0-causes")],
             ["fallback", "fallback", "used"])


def check_ends(tool, make_page, folder):
    killed = Page(make_page, os.path.join(folder, "killed"), ["a"]).kill()
    _, text = check_file(tool, "a killed process", [killed], folder)
    check("a killed process: it says so", not text or '<span class="life killed">killed, last change after ' in text[:text.index("</main>")])
    empty = Page(make_page, os.path.join(folder, "empty"), []).end()
    _, text = check_file(tool, "a process without blocks", [empty], folder)
    check("a process without blocks: it says so", not text or
          text[:text.index("</main>")].count("<p>There are none.</p>") == 4 and "-tree" not in text[:text.index("</main>")])


def check_self_checks(tool, folder):
    parts = made_pages.records()
    parts["devices"] = [made_pages.device("good"), made_pages.device("none", check=0),
                        made_pages.device("bad", unmet="<b>fact</b>; another"),
                        made_pages.device("aside", steps_aside=1, unmet="the last")]
    path = os.path.join(folder, "self-checks.state")
    with open(path, "wb") as file:
        file.write(made_pages.page(parts))
    _, text = check_file(tool, "self-checks", [path], folder)
    if not text:
        return
    lines = re.findall(r'<p class="self-check (\w+)">Self-check of device (\d): \w+(.*)</p>', text)
    same("self-checks: a line each", lines, [
        ("dim", "0", ", all facts hold."),
        ("note", "2", ", and some facts do not hold: &lt;b&gt;fact&lt;/b&gt;; another"),
        ("note", "3", ", and nothing is deferred there: the last")])


def check_damaged(tool, make_page, folder):
    """Whatever numbers a page holds: it is shown, or refused in one line."""
    path = Page(make_page, os.path.join(folder, "damaged"), HOSTILE[:4]).end()
    with open(path, "rb") as file:
        whole = file.read()
    words = [at for at in range(0, len(whole), 8) if whole[at:at + 8] != bytes(8)]
    dice, faults, shown, pictures = random.Random(7), [], 0, []
    for turn in range(150):
        data = bytearray(whole)
        for at in dice.sample(words, dice.choice([1, 5, 50, len(words) // 4])):
            # Numbers at their limits, and small ones; the first pages of the file are its layout.
            if at > 1024 or turn % 10 == 0:
                data[at:at + 8] = dice.choice([b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 8, b"\2" + b"\0" * 7,
                                               dice.randbytes(8)])
        changed = os.path.join(folder, "changed.state")
        with open(changed, "wb") as file:
            file.write(data)
        for option in ("--html", "--trace"):
            out = os.path.join(folder, f"changed-{turn}{option}")
            done = subprocess.run([tool, "show", changed, option, out], capture_output=True, text=True, timeout=60)
            if done.returncode not in (0, 1) or done.stderr.count("\n") != done.returncode:
                faults.append(f"turn {turn} {option}: {done.returncode} {done.stderr[-600:]}")
            elif done.returncode == 0:
                shown += 1
                with open(out, encoding="utf-8") as file:
                    text = file.read()
                if option == "--trace":
                    json.loads(text)
                else:
                    pictures.append(out)
                    json.loads(text[text.index('id="data">') + 10:text.index("</script>")])
    for path, text in zip(pictures, drawn("damaged pages", pictures)):
        document = Document(text)
        bad = document.faults[:3] or re.findall(r'"[^"<]*(?:NaN|Infinity)[^">]*"', text[:text.find("</main>")])[:3]
        if bad or document.root.first("main") is None:
            faults.append(f"{path}: {bad or text[-600:]}")
    check("damaged pages are shown, or refused in one line", not faults, "\n".join(faults[:4]))
    check("damaged pages: most are shown", shown > 100, shown)


def check_faults(tool, make_page, folder):
    path = Page(make_page, os.path.join(folder, "faults"), ["a"]).end()
    nowhere = os.path.join(folder, "no", "such", "folder.html")
    done = dump(tool, "show", path, "--html", nowhere)
    check("a file that cannot be made is one line", done.returncode == 1 and done.stderr.count("\n") == 1 and
          nowhere in done.stderr, done.stderr)
    done = dump(tool, "show", path, "--html", "/dev/full")
    check("a full disk is one line", done.returncode == 1 and done.stderr.count("\n") == 1 and
          "/dev/full" in done.stderr, done.stderr)
    done = dump(tool, "show", path, "--html", "-", "--json")
    check("standard output takes one thing", done.returncode == 2 and done.stdout == "", done.stderr)
    done = dump(tool, "list", "--html", "x")
    check("list takes no --html", done.returncode == 2)
    done = dump(tool, "show", path, "--html", os.path.join(folder, "a.html"), "--trace",
                os.path.join(folder, "a.trace"), "--json")
    check("a page, a trace and the JSON at once", done.returncode == 0 and json.loads(done.stdout)["blocks"] and
          os.path.getsize(os.path.join(folder, "a.html")) > 0 and os.path.getsize(os.path.join(folder, "a.trace")) > 0,
          done.stderr)


def main():
    tool, make_page, in_place, preload = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_hostile(tool, make_page, folder)
        check_many(tool, make_page, folder)
        check_size(tool, folder)
        check_work(tool, folder)
        check_normal(tool, folder)
        check_worst(tool, folder)
        check_ends(tool, make_page, folder)
        check_self_checks(tool, folder)
        check_damaged(tool, make_page, folder)
        check_faults(tool, make_page, folder)
        pages = views.run_program(in_place, folder, 2, preload)
        check("a job under the shim: each rank has a page", len(pages) == 2, pages)
        check_file(tool, "a job under the shim", pages, folder)
        first = dump_json(tool, pages[:1])
        check("a job under the shim: it has a plan, and tensors in two states", first["plan"] is not None and
              first["tensors"] and {block["state"] for block in first["blocks"]} & {"partly", "deferred"}, first)
    return end()


if __name__ == "__main__":
    sys.exit(main())
