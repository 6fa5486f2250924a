#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_html.py TOOL MAKE_PAGE IN_PLACE PRELOAD: the page of metashard-dump show --html, read without a browser.
TAP."""
import base64
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import make_page as made_pages  # noqa: E402
import views  # noqa: E402
from views import HOSTILE, OBEYED, Document, Page, check, check_page, dump, dump_json, same  # noqa: E402


def check_shell(name, text, document):
    """What goes for every page."""
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
    ids = [node.get("id") for node in document.root.all() if node.get("id")]
    check(f"{name}: ids are there once", len(ids) == len(set(ids)),
          [name for name in ids if ids.count(name) > 1][:5])
    pointers = [node.get(key) for node in document.root.all() for key in ("aria-labelledby",) if node.get(key)]
    pointers += [node.get("href")[1:] for node in document.root.all("a")]
    check(f"{name}: what is pointed to is there", all(pointer in ids for pointer in pointers), pointers)
    check(f"{name}: is for light and dark, and of any width",
          "prefers-color-scheme: dark" in text and document.root.first("meta", name="viewport") is not None)
    bare = [node.get("id") for node in document.root.all("table") for head in node.all("th") if not head.get("scope")]
    check(f"{name}: headings of tables say of what", not bare, bare)


def check_file(tool, name, paths, folder):
    out = os.path.join(folder, "page.html")
    done = dump(tool, "show", *paths, "--html", out)
    check(f"{name}: is written", done.returncode == 0 and done.stdout == "" and done.stderr == "", done.stderr)
    with open(out, encoding="utf-8") as file:
        text = file.read()
    document, view = Document(text), dump_json(tool, paths)
    obeyed = OBEYED.search(text)
    check(f"{name}: has no character that a browser obeys", obeyed is None, obeyed)
    check_shell(name, text, document)
    same(f"{name}: has the data of --json", json.loads(document.root.first("script", id="data").text()), view)
    check_page(document, name, view)
    standard = dump(tool, "show", *paths, "--html", "-")
    check(f"{name}: the same on standard output", standard.returncode == 0 and standard.stdout == text)
    return text


def check_hostile(tool, make_page, folder):
    pages = [Page(make_page, os.path.join(folder, "hostile"), HOSTILE, rank, 2).end() for rank in (1, 0)]
    text = check_file(tool, "hostile names", pages[:1], folder)
    check_file(tool, "hostile names, two ranks", pages, folder)
    check_file(tool, "a page twice", [pages[0], pages[0]], folder)
    for name in HOSTILE:
        if "<" in name:
            check(f"{name!r} is nowhere as it is", name not in text)


def check_many(tool, make_page, folder):
    """More rows than the page of many processes has of each: the last ones, and a word about the others."""
    path = Page(make_page, os.path.join(folder, "many"), [f"layers.{i}" for i in range(60)]).end()
    out = os.path.join(folder, "many.html")
    dump(tool, "show", *[path] * 100, "--html", out)
    with open(out, encoding="utf-8") as file:
        text = file.read()
    # To parse all of it takes long.
    document = Document(text[text.rindex("<", 0, text.index('id="p99-events"')):])
    expected = views.expected_events(dump_json(tool, [path]))
    check("many events: there are more than the page has rows for", len(expected) > 200, len(expected))
    same("many events: the last ones are shown", views.rows_of(document, "p99-events"), expected[-200:])
    check("many events: it says so", f"200 of {len(expected)} are shown" in document.root.text())


def check_ends(tool, make_page, folder):
    killed = Page(make_page, os.path.join(folder, "killed"), ["a"]).kill()
    text = check_file(tool, "a killed process", [killed], folder)
    check("a killed process: it says so", '<span class="life killed">killed after ' in text)
    empty = Page(make_page, os.path.join(folder, "empty"), []).end()
    text = check_file(tool, "a process without blocks", [empty], folder)
    check("a process without blocks: it says so", text.count("<p>There are none.</p>") == 4)


def check_self_checks(tool, folder):
    parts = made_pages.records()
    parts["devices"] = [made_pages.device("good"), made_pages.device("none", check=0),
                        made_pages.device("bad", unmet="<b>fact</b>; another"),
                        made_pages.device("aside", steps_aside=1, unmet="the last")]
    path = os.path.join(folder, "self-checks.state")
    with open(path, "wb") as file:
        file.write(made_pages.page(parts))
    text = check_file(tool, "self-checks", [path], folder)
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
    dice, faults, shown = random.Random(7), [], 0
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
            out = os.path.join(folder, "changed.out")
            done = subprocess.run([tool, "show", changed, option, out], capture_output=True, text=True, timeout=60)
            if done.returncode not in (0, 1) or done.stderr.count("\n") != done.returncode:
                faults.append(f"turn {turn} {option}: {done.returncode} {done.stderr[-600:]}")
            elif done.returncode == 0:
                shown += 1
                with open(out, encoding="utf-8") as file:
                    text = file.read()
                if option == "--trace":
                    json.loads(text)
                elif Document(text).faults:
                    faults.append(f"turn {turn}: {Document(text).faults[:3]}")
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
    return views.finish()


if __name__ == "__main__":
    sys.exit(main())
