# SPDX-License-Identifier: Apache-2.0
"""Shared by the checks of this folder: processes that keep state pages, metashard-dump, and the page of --html
as a browser sees it."""
import datetime
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from decimal import ROUND_HALF_UP, Decimal
from html.parser import HTMLParser

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import check  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DRAW = os.path.join(HERE, "../../../tools/dump/html/draw.js")

# Names are anybody's.
HOSTILE = ["</script><script>window.hacked = 1</script>", "\"><img src=x onerror=\"window.hacked = 2\">",
           "' onmouseover='window.hacked = 3", "<!--", "]]>", "-->", "</data></td><b>bold</b>", "&lt;b&gt; &amp; &#60;",
           "</title><svg onload=window.hacked=4>", "javascript:window.hacked=5", "ünïcödé 張量 🙂", "a\\\"b\\u003c\\",
           "<script type=\"application/json\">", "layers.0." + "long" * 24, "</style><style>*{display:none}",
           "no UTF-8 \udcff<\udc80", "c1 \x9b31m \x90", "bidi \u202egnp.\u2066x \u061c\u200f", "lines \u2028\x85"]

# Characters that a terminal or a browser obeys instead of showing them.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def same(name, got, expected):
    """A check that shows the first difference."""
    detail = ""
    if got != expected:
        if isinstance(got, list) and isinstance(expected, list):
            pairs = [pair for pair in zip(got, expected) if pair[0] != pair[1]]
            detail = f"{len(got)} and {len(expected)} rows" + (
                f"; got {pairs[0][0]!r}\nexpected {pairs[0][1]!r}" if pairs else "")
        else:
            detail = f"got {got!r}\nexpected {expected!r}"
    check(name, got == expected, detail)


# --- processes

class Page:
    """A process that keeps a state page, made by make_page. end(): the path of the page."""

    def __init__(self, program, folder, names, rank=None, world=None):
        environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        if rank is not None:
            environment.update(RANK=str(rank), WORLD_SIZE=str(world))
        self.process = subprocess.Popen([program, folder, *names], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("make_page is not ready")
        self.pid = self.process.pid
        self.path = os.path.join(folder, f"metashard-{self.pid}.state")

    def kill(self):
        self.process.kill()
        return self.finish()

    def end(self):
        self.process.stdin.close()
        return self.finish()

    def finish(self):
        self.process.wait()
        self.process.stdout.close()
        return self.path


def write_checkpoint(folder, names):
    """A safetensors file with a tensor of 2 MiB under each name."""
    size, header = 2 << 20, {}
    for i, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for i in range(len(names)):
            file.write(bytes([i + 1]) * size)


def run_program(in_place, folder, world, preload):
    """A real job under the shim, on the simulated driver, with a plan: the pages of its ranks."""
    checkpoint, states = os.path.join(folder, "checkpoint"), os.path.join(folder, "states")
    write_checkpoint(checkpoint, [f"layers.{i}.weight" for i in range(4)])
    plan = os.path.join(folder, "plan.json")
    with open(plan, "w", encoding="utf-8") as file:
        json.dump({"format": "metashard-plan/1", "mesh": {"dp": world},
                   "tensors": [{"name": "*", "placements": {"dp": {"shard": 0}}}]}, file)
    for rank in range(world):
        environment = dict(os.environ, LD_PRELOAD=preload, METASHARD_STATE_DIR=states, METASHARD_PLAN=plan,
                           RANK=str(rank), WORLD_SIZE=str(world))
        done = subprocess.run([in_place, str(rank), str(world), checkpoint, "--outside", "layers.0.weight",
                               "0", "4096"], env=environment, capture_output=True, text=True)
        if done.returncode != 0 or done.stderr:
            raise RuntimeError(done.stderr)
    return [os.path.join(states, name) for name in sorted(os.listdir(states)) if name.endswith(".state")]


def dump(tool, *arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True)


def dump_json(tool, paths):
    return json.loads(dump(tool, "show", *paths, "--json").stdout)


def processes_of(view):
    return view.get("processes", [view])


# --- texts of figures, as the page has them

BYTES = [(name, 1024**i, 1 if i else 0) for i, name in enumerate(["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])]
TIMES = [("us", 10**3, 1), ("ms", 10**6, 1), ("s", 10**9, 3)]


def unit_for(units, most):
    return [unit for unit in units if most >= unit[1] or unit is units[0]][-1]


def in_unit(value, unit):
    """A value other than 0 is not shown as 0."""
    if value == 0:
        return "0"
    name, size, digits = unit
    while True:
        text = str(Decimal(value / size).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
        if float(text) != 0 or digits in (0, 9):
            return f"{text} {name}"
        digits += 1


def bytes_text(number):
    return in_unit(number, unit_for(BYTES, number))


def unit_of_all(values):
    """The unit of figures that are compared: that of the least, unless others were long in that unit."""
    unit = unit_for(BYTES, min(value for value in values if value > 0))
    return unit if max(values) < 10000 * unit[1] else unit_for(BYTES, max(values))


def time_text(ns):
    return in_unit(ns, unit_for(TIMES, ns))


def point_texts(samples, sample):
    """The texts of a pointer at a moment, in the units of all moments."""
    keys = ["live_bytes", "deferred_bytes", "backed_bytes"]
    unit = unit_for(BYTES, max(other[key] for other in samples for key in keys))
    time = unit_for(TIMES, max(other["time_ns"] for other in samples))
    return [in_unit(sample["time_ns"], time)] + [
        f"{name} {in_unit(sample[key], unit)}" for name, key in zip(["without MetaShard", "deferred", "backed"], keys)]


# --- the page

def draw(paths):
    """The pages of --html as their script draws them, with what goes wrong instead of one, or None where there is no node
    that is as new as a browser."""
    node = shutil.which(os.environ.get("NODE", "node"))
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout if node else "v0."
    if int(version[1:version.index(".")]) < 18:
        return None
    done = subprocess.run([node, os.path.join(HERE, "draw_page.js"), DRAW, *paths], capture_output=True, text=True,
                          encoding="utf-8", timeout=200)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


VOID = {"meta", "link", "img", "br", "input", "hr"}


class Node:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent, self.children = tag, attributes, parent, []

    def get(self, name, default=None):
        return self.attributes.get(name, default)

    def all(self, tag=None, **attributes):
        """Elements inside of it, in order; attributes with _ for -, and classes with class_."""
        for child in self.children:
            if isinstance(child, Node):
                if (tag is None or child.tag == tag) and all(child.has(*pair) for pair in attributes.items()):
                    yield child
                yield from child.all(tag, **attributes)

    def has(self, name, value):
        if name == "class_":
            return value in self.get("class", "").split()
        found = self.get(name.replace("_", "-"))
        return found is not None if value is True else found == value

    def first(self, tag=None, **attributes):
        return next(self.all(tag, **attributes), None)

    def text(self):
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)


class Document(HTMLParser):
    """A tree. Strict: what is not closed, or closed twice, is in `faults`."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = self.at = Node("document", {}, None)
        self.faults = []
        self.feed(text)
        self.close()
        if self.at is not self.root:
            self.faults.append(f"<{self.at.tag}> is not closed")

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if len(set(names)) != len(names):
            self.faults.append(f"<{tag}> has an attribute twice: {names}")
        node = Node(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.children.append(node)
        if tag not in VOID:
            self.at = node

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.at = self.at.parent

    def handle_endtag(self, tag):
        if self.at.tag != tag:
            self.faults.append(f"</{tag}> in <{self.at.tag}>")
            return
        self.at = self.at.parent

    def handle_comment(self, data):
        self.faults.append(f"a comment: {data[:40]}")

    def handle_data(self, data):
        self.at.children.append(data)


def cell_of(cell):
    """The number of a cell with one, else its text."""
    datum = cell.first("data") if "n" in cell.get("class", "").split() else None
    return int(datum.get("value")) if datum else cell.text()


def rows_of(document, name):
    table = document.root.first("table", id=name)
    if table is None:
        return []
    return [[cell_of(cell) for cell in row.children if isinstance(cell, Node)]
            for row in table.first("tbody").all("tr")]


def heads_of(document, name):
    return [head.text() for head in document.root.first("table", id=name).first("thead").all("th")]


# --- what the JSON says that the page's tables must have, for one process or several

def group_of(view, number=None):
    return processes_of(view) if number is None else [processes_of(view)[number]]


def rank_name(process):
    return f"process {process['pid']}" if process["rank"] is None else f"rank {process['rank']}"


def shift_of(group, process):
    return process["started_unix_ns"] - min(other["started_unix_ns"] for other in group)


def expected_tensors(group):
    sums = {}
    for process in group:
        for tensor in process["tensors"]:
            row = sums.setdefault(tensor["name"], [tensor["name"], 0, 0, 0, 0, 0])
            for i, key in enumerate(["bytes", "deferred_bytes", "present_bytes", "file_bytes", "blocks"], 1):
                row[i] = max(row[i], tensor[key])  # a sum would be of several devices
    return sorted(sums.values(), key=lambda row: (-row[1], row[0].encode()))


def expected_blocks(process):
    """Without what has bytes and words in one cell."""
    return [[block["id"], block["kind"], block["address"], block["device"], block["bytes"],
             block.get("backed_bytes", ""), block["deferred_bytes"], block["state"], block.get("name", "")]
            for block in process["blocks"]]


NO_RULE, BYPASSED = "a kernel without a rule", "another library stands before MetaShard"


def causes_once(group):
    """Without those that are a part of another one, and without what is a note."""
    rows = [cause for process in group for cause in process["causes"]]
    explained = {cause["reason"] for cause in rows if "explanation" in cause}
    return [[cause for cause in process["causes"] if cause["kind"] not in ("replay", "evict") and
             not (cause["kind"] == "pin" and cause["text"].startswith("host memory")) and cause["reason"] != BYPASSED and
             not (cause["kind"] == "materialise" and cause["reason"] in explained)] for process in group]


def expected_causes(group):
    sums = {}
    for causes in causes_once(group):
        for cause in causes:
            used = cause["kind"] == "fallback" and cause["loaded_count"] == 0 and cause["reason"] == NO_RULE
            key = ("used" if used else cause["kind"], cause["call"], cause["text"], cause["reason"])
            row = sums.setdefault(key, [0, 0, 0])
            for i, name in enumerate(["bytes", "count"]):
                row[i] += cause[name]
            row[2] = max(row[2], cause["duration_ns"])  # they wait at the same time
    return sorted([*row, *key] for key, row in sums.items())


def expected_events(process):
    def kind(event):
        is_work = event["kind"] == "fallback" and event["reason"] == NO_RULE and 0 < process["loaded_ns"] < event["time_ns"]
        return "used" if is_work else event["kind"]
    return [[event["time_ns"], kind(event), event["bytes"], event["duration_ns"], event["block"], event["call"],
             event["text"], event["reason"], event["thread"]] for event in process["events"]]


def expected_moments(group):
    steps = sorted((sample["time_ns"] + shift_of(group, process), number, i)
                   for number, process in enumerate(group) for i, sample in enumerate(process["samples"]))
    now, rows = [[0, 0, 0] for _ in group], {}
    for time, number, i in steps:
        sample = group[number]["samples"][i]
        now[number] = [sample["live_bytes"], sample["deferred_bytes"], sample["backed_bytes"]]
        rows[time] = [sum(values) for values in zip(*now)]
    return [[time, *values] for time, values in sorted(rows.items())]


def points_of(chart, series):
    """The points of a chart's line: times at which the line changes, and values; as far as its digits go."""
    number = {name: float(chart.get("data-" + name)) for name in
              ("begin", "end", "most", "left", "right", "top", "bottom")}
    path = chart.first("path", data_series=series).get("d")
    x = y = 0.0
    points = []
    for match in re.finditer(r"([MHV])([-0-9. ]+)", path):
        letter, text = match.groups()
        if letter == "M":
            x, y = map(float, text.split())
        elif letter == "H":
            x = float(text)
            if match.end() == len(path):  # the end is no step
                break
            continue
        else:
            y = float(text)
        points.append(((x - number["left"]) / (number["right"] - number["left"]) * number["end"],
                       (number["bottom"] - y) / (number["bottom"] - number["top"]) * number["most"]))
    return points, number["end"] / 800, number["most"] / 250


def chart_fault(chart, moments):
    """None if the lines of the chart are the moments."""
    for column, series in enumerate(["requested", "deferred", "backed"], 1):
        points, time_slack, bytes_slack = points_of(chart, series)
        steps = [row for i, row in enumerate(moments) if i == 0 or row[column] != moments[i - 1][column]]
        if len(steps) != len(points):
            return f"{series}: {len(points)} steps, expected {len(steps)}"
        for (time, value), row in zip(points, steps):
            if abs(time - row[0]) > time_slack or abs(value - row[column]) > bytes_slack:
                return f"{series}: {value} at {time}, expected {row[column]} at {row[0]}"
    return None


# For several processes the page has the most of one, not the sum.
FIGURES = ["requested_bytes", "live_bytes_peak", "live_bytes", "deferred_bytes", "backed_bytes",
           "backed_bytes_peak", "saved_bytes", "skipped_bytes", "h2d_bytes", "materialise_ns"]
FIRST_FIGURES = ["saved_bytes", "skipped_bytes", "h2d_bytes", "materialise_ns"]


def count_fallbacks(process):
    """While it loaded, of 2 MiB and more, but for the kernel that ended loading."""
    kernels = [cause for cause in process["causes"] if cause["kind"] == "fallback" and cause["reason"] == NO_RULE and
               cause["first_ns"] <= process["loaded_ns"] and process["plan"] is None]
    last = max(kernels, key=lambda cause: cause["first_ns"], default={"loaded_count": 0})
    return sum(cause["loaded_count"] for cause in process["causes"] if cause["kind"] == "fallback" and cause["loaded_bytes"] >= 2 << 20 and
               not (cause is last and cause["loaded_count"] == 1))


NOTES = {"fallbacks": "times while it loaded, memory could not stay deferred: see the causes.",
         "remote_reads": "reads of bytes that the plan gives to other ranks: see the causes.",
         "torn_records": "records were half written when a process was killed; they are left out."}


def check_figures(name, element, source):
    """All numbers under a JSON name are that of the JSON, and are written as they should be."""
    faults, seen = [], []
    for datum in element.all("data", data_figure=True):
        key, value = datum.get("data-figure"), int(datum.get("value"))
        seen.append(key)
        wanted = time_text(value) if key.endswith("_ns") else bytes_text(value)
        is_bar = datum.parent.parent.parent.parent.has("class_", "peaks")  # of them, check_peaks knows the unit
        if value != source.get(key) or datum.text() not in (wanted, str(value)) and not is_bar:
            faults.append(f"{key}: {value}, {datum.text()}; expected {source.get(key)}, {wanted}")
    missing = [key for key in FIGURES if key not in seen]
    same(f"{name}: no figure is there twice", sorted(seen), sorted(set(seen)))
    cards = element.first("dl", class_="figures")
    same(f"{name}: four figures are enough at first", [datum.get("data-figure") for datum in cards.all("data")],
         FIRST_FIGURES)
    check(f"{name}: the summary's figures are those of the JSON", not faults and not missing,
          f"{faults} missing: {missing}")


def check_peaks(name, document, part, figures, device):
    """The bars of the peaks, as long as the numbers beside them; what is far beyond them is cut."""
    without, peak = figures["live_bytes_peak"], figures["backed_bytes_peak"]
    most = max(without, peak)
    if without == 0:
        return
    rows = [("without MetaShard", without), ("with MetaShard", peak)] + ([("device memory", device)] if device else [])
    most = device if most < device <= 4 * most + 3 else most
    wanted = [(label, value, [round(100 * value / most, 1)] if value <= most else [91.0, 2.0, 2.0, 2.0]) for label, value in rows]
    table = document.root.first("table", id=part + "-peaks")
    same(f"{name}: the bars of the peaks", [
        (row.first("th").text(), int(row.first("data").get("value")),
         [round(float(bar.get("width")), 1) for bar in row.all("rect")]) for row in table.all("tr")], wanted)
    unit = unit_of_all([without, peak, device])
    same(f"{name}: they are in one unit", [row.first("data").text() for row in table.all("tr")],
         [in_unit(value, unit) for _, value, _ in wanted])
    unit = unit_of_all([without, peak])
    percent = round(100 * (peak - without) / without)
    line = document.root.first("section", id=part).first("p", class_="verdict").text()
    whose = f"of {rank_name(figures)}, the worst process, " if part == "all" else ""
    check(f"{name}: the first line is what it was worth", line.startswith(
        f"Peak {whose}{in_unit(peak, unit)} instead of {in_unit(without, unit)} (") and abs(int(line[line.rindex("(") + 1:-3]) - percent) <= 1, line)


def check_units(name, section):
    """Bytes of a table are in one unit, and times."""
    mixed = []
    for table in section.all("table"):
        if not (table.has("class_", "sortable") or table.has("class_", "points")):
            continue
        words = {datum.text().split(" ")[-1] for datum in table.all("data") if " " in datum.text()}
        for units in (BYTES, TIMES):
            used = words & {unit[0] for unit in units}
            mixed += [(table.get("id"), used)] if len(used) > 1 and not table.get("id").endswith("-processes") else []
    check(f"{name}: a table is in one unit", not mixed, mixed)


def check_loaded(name, chart, loaded):
    """A vertical line where loading ends, and its label."""
    line, label = chart.first("path", class_="loaded"), chart.first("text", class_="loaded")
    if not 0 < loaded <= float(chart.get("data-end")):
        check(f"{name}: no end of loading", line is None and label is None)
        return
    left, right = float(chart.get("data-left")), float(chart.get("data-right"))
    x = left + (right - left) * loaded / float(chart.get("data-end"))
    drawn = re.fullmatch(r"M([\d.]+) ([\d.]+)V([\d.]+)", line.get("d"))
    same(f"{name}: the chart has a line from top to bottom where loading ends",
         [abs(float(drawn[1]) - x) < 0.01, drawn[2], drawn[3]], [True, chart.get("data-top"), chart.get("data-bottom")])
    same(f"{name}: with its label", label.text(), f"loading ends: {time_text(loaded)}")


def sums_of(node):
    return [int(datum.get("value")) for datum in next(child for child in node.children if isinstance(child, Node) and
                                                     child.tag == "span").all("data")]


def check_tree(name, tree, rows):
    """The leaves are the tensors, and each level has the sums of its leaves."""
    if len(rows) < 2:
        check(f"{name}: one tensor is no tree", tree is None)
        return
    leaves = {leaf.get("data-name"): sums_of(leaf) for leaf in tree.all("li")}
    same(f"{name}: the tree has each tensor once", (leaves, len(list(tree.all("li")))),
         ({row[0]: [row[1], row[3], row[2]] for row in rows}, len(rows)))
    faults = []
    for level in tree.all("details"):
        below = [leaves[leaf.get("data-name")] for leaf in level.all("li")]
        sums, count = [sum(column) for column in zip(*below)], level.first("i").text()
        if sums_of(level.first("summary")) != sums or count != f"{len(below)} tensors" or level.get("open") is not None:
            faults.append(f"{level.first('b').text()}: {sums_of(level.first('summary'))}, {count}; expected {sums}, {len(below)}")
        prefix = os.path.commonprefix([leaf.get("data-name").split(".")[:-1] for leaf in level.all("li")])
        if not ".".join(prefix).endswith(level.first("b").text()):
            faults.append(f"{level.first('b').text()} is no part of {'.'.join(prefix)}")
    check(f"{name}: a level of the tree has the sums of what is below it", not faults, "\n".join(faults[:5]))


def check_links(name, document, part, process):
    """A block's number leads to its first event."""
    firsts = {}
    for i, event in enumerate(process["events"]):
        firsts.setdefault(event["block"], f"#{part}-e{i}")
    table = document.root.first("table", id=part + "-blocks")
    rows = table.first("tbody").all("tr") if table else []
    same(f"{name}: blocks lead to their events",
         [(link.get("href") if link else None) for link in (row.first("a") for row in rows)],
         [firsts.get(block["id"]) for block in process["blocks"]])


def summary_of(section):
    """The part of all processes without the table of each."""
    summary = Node("summary", {}, None)
    summary.children = [child for child in section.children if isinstance(child, Node) and not child.first("table", class_="sortable")]
    return summary


def check_view(document, name, view, number=None):
    """The part of the page for one process, or for all: against what --json says."""
    group = group_of(view, number)
    part = "all" if number is None else f"p{number}"
    section = document.root.first("section", id=part)
    if section is None:
        check(f"{name}: is there", False)
        return
    if number is None:
        most = {key: (min if key == "saved_bytes" else max)(process[key] for process in group) for key in FIGURES}
        most.update({key: view["worst"][key] for key in ("live_bytes_peak", "backed_bytes_peak")})
        check_figures(name, summary_of(section), most)
        check_peaks(name, document, part, view["worst"], 0)
        for process in group:
            row = section.first("tr", data_pid=str(process["pid"]))
            wrong = [(datum.get("data-figure"), datum.get("value")) for datum in row.all("data", data_figure=True)
                     if int(datum.get("value")) != process[datum.get("data-figure")]]
            check(f"{name}: the row of {rank_name(process)} has its figures", not wrong, wrong)
    else:
        check_figures(name, section, group[0])
        check_peaks(name, document, part, group[0], group[0]["device_bytes"])
        check_links(name, document, part, group[0])
        counters = rows_of(document, part + "-counters")
        check(f"{name}: there are all other counters", len(counters) > 20 and
              all(group[0][key] == value for key, value in counters), counters)
        same(f"{name}: the configuration", dict(rows_of(document, part + "-options")), group[0]["options"])
        same(f"{name}: self-checks", [(line.has("class_", "note"), line.text().split(": ", 1)[-1].split(",")[0].rstrip("."))
                                      for line in section.all("p", class_="self-check")],
             [(bool(one["unmet"]), one["state"]) for one in group[0]["self_checks"] if one["state"] != "none"])
    notes = [(sum(count_fallbacks(process) if key == "fallbacks" else process[key] for process in group), text)
             for key, text in NOTES.items()]
    same(f"{name}: what is to be noted", [note.text() for note in section.all("p", class_="note")
                                          if not note.has("class_", "self-check") and
                                          (number is not None or note.parent is section)],
         sorted({cause["explanation"] for process in group for cause in process["causes"] if cause["reason"] == BYPASSED}) +
         [f"{count} {text}" for count, text in notes if count])
    same(f"{name}: tensors", rows_of(document, part + "-tensors"), expected_tensors(group))
    check_tree(name, section.first("div", id=part + "-tree"), expected_tensors(group))
    causes = rows_of(document, part + "-causes")
    table = section.first("table", id=part + "-causes")
    advice = [paragraph.text() for paragraph in table.all("p", class_="advice")] if table else []
    explained = [next(text for text in advice if row[-1].endswith(text)) for row in causes if row[-1].endswith(tuple(advice) or "\0")]
    rows = [[*row[:-1], next((row[-1].removesuffix(text) for text in explained if row[-1].endswith(text)), row[-1])] for row in causes]
    same(f"{name}: causes", sorted(rows), expected_causes(group))
    reasons = {cause["reason"] for rest in causes_once(group) for cause in rest if "explanation" in cause}
    same(f"{name}: a reason is explained once", sorted(row[-1] for row, whole in zip(rows, causes) if row != whole), sorted(reasons))
    ranks = [row[0] for row in causes]
    same(f"{name}: causes are by bytes", ranks, sorted(ranks, reverse=True))
    moments = expected_moments([max(group, key=lambda process: process["backed_bytes_peak"])])
    same(f"{name}: memory over time", rows_of(document, part + "-samples"), moments)
    chart = section.first("svg", id=part + "-chart")
    fault = chart_fault(chart, moments) if chart else "there is none"
    check(f"{name}: the chart shows it", fault is None, fault)
    check_loaded(name, chart, max(group, key=lambda process: process["backed_bytes_peak"])["loaded_ns"])
    check_units(name, section)
    if number is None:
        return
    same(f"{name}: blocks", [row[:-2] for row in rows_of(document, part + "-blocks")], expected_blocks(group[0]))
    same(f"{name}: events", rows_of(document, part + "-events"), expected_events(group[0]))
    check_map(name, section, group[0], part)


def shares_of(block):
    """How much of a block is in each state of the map."""
    resident = block["lineage_bytes"].get("resident", 0)
    away = min(block["remote_bytes"], block["deferred_bytes"])
    shares = {"resident": resident, "cached": block["cached_bytes"], "deferred": block["deferred_bytes"] - away,
              "remote": away}
    shares["dead"] = block["bytes"] - sum(shares.values())
    return shares


def check_map(name, section, process, part):
    expected, blocks = {}, process["blocks"]
    for i, block in enumerate(blocks):
        has_parts = block["kind"] == "carved" and i + 1 < len(blocks) and blocks[i + 1]["id"] == block["id"]
        if not has_parts:
            expected[f"{part}-b{i}"] = block
    spots = list(section.all("g", data_block=True))
    same(f"{name}: the map has each block, with its state and name",
         {spot.get("data-block"): (spot.get("data-state"), spot.get("data-name")) for spot in spots},
         {key: (block["state"], block.get("name", "")) for key, block in expected.items()})
    faults = []
    for spot in spots:
        block = expected.get(spot.get("data-block"))
        heights = {rect.get("class"): float(rect.get("height")) for rect in spot.all("rect")}
        wanted = {key: share * 24 / block["bytes"] for key, share in shares_of(block).items()} if block else {}
        if any(abs(heights.get(key, 0) - height) > 0.02 for key, height in wanted.items()) or \
                any(float(rect.get("width")) <= 0 for rect in spot.all("rect")):
            faults.append(f"{spot.get('data-block')}: {heights}, expected {wanted}")
    check(f"{name}: colours stand as high as they should", not faults, "\n".join(faults[:5]))


def check_title(name, title, heading, view):
    """The title tells a page from many others in a browser: the command, job, version and day."""
    first = processes_of(view)[0]
    command = first["command"] if len(first["command"]) <= 80 else first["command"][:79] + "…"
    day = datetime.datetime.fromtimestamp(first["started_unix_ns"] // 10 ** 9, datetime.timezone.utc).date().isoformat()
    wanted = f"MetaShard {first['version']}: {heading}, {command}{', job ' + first['job'] if first['job'] else ''}, {day}"
    same(f"{name}: the title has the command, the job, the day and the version", " ".join(title.split()), " ".join(wanted.split()))


def check_page(document, name, view):
    processes = processes_of(view)
    check_title(name, document.root.first("title").text(), document.root.first("h1").text(), view)
    if len(processes) > 1:
        check_view(document, f"{name}, all", view)
    for number, process in enumerate(processes):
        label = f"{name}, {rank_name(process)}" if len(processes) > 1 else name
        check_view(document, label, view, number)
