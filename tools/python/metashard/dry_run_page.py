# SPDX-License-Identifier: Apache-2.0
"""The answer of a dry run as a page: what the screen has, and the curve of the memory. One file, which needs nothing else."""
from __future__ import annotations

import bisect
import html

from . import dry_run_answer

GIB = 1 << 30
WIDTH, HEIGHT, LEFT, BOTTOM = 1000, 360, 60, 30
COLOURS = {"reserved": "#c2c9d6", "allocated": "#4a6fa5", "device": "#b03030", "mark": "#999999"}
MOST_MARKS = 24
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font-family: sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }} pre {{ overflow-x: auto }}
svg {{ width: 100%; height: auto }} text {{ font-size: 12px }}</style></head>
<body><h1>{title}</h1>
{curves}<pre>{text}</pre>
<p>Nothing was computed: <code>metashard dry-run</code> ran the program on a simulated driver.</p></body></html>
"""


class Scale:
    """From entries of the curve and bytes to points of the picture."""

    def __init__(self, curve: list[list[int]], total: int):
        highest = max(max(row[1] for row in curve), max(row[2] for row in curve))
        self.bytes = 1.05 * (total if 4 * highest > total else highest)
        self.times = [row[0] for row in curve]

    def x(self, number: float) -> float:
        return LEFT + (WIDTH - LEFT) * number / max(len(self.times), 1)

    def y(self, bytes_: float) -> float:
        return (HEIGHT - BOTTOM) * (1 - bytes_ / self.bytes)


def area(scale: Scale, heights: list[int], colour: str) -> str:
    """Steps: an entry's height is there until the next one."""
    points = []
    for number, bytes_ in enumerate(heights):
        points += [(scale.x(number), scale.y(bytes_)), (scale.x(number + 1), scale.y(bytes_))]
    ends = [(scale.x(0), scale.y(0)), *points, (scale.x(len(heights)), scale.y(0))]
    return f'<polygon fill="{colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in ends)}"/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-dasharray="4 3"/>'


def words(x: float, y: float, what: str, turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{turn}>{html.escape(what)}</text>'


def axis(scale: Scale) -> list[str]:
    return [words(2, max(scale.y(bytes_), 10), f"{bytes_ / GIB:.1f} GiB") for bytes_ in
            (scale.bytes * part / 4 for part in range(5))]


def marks(scale: Scale, rows: list[list]) -> list[str]:
    """Where phases begin, by the entry of the curve that comes next."""
    found = []
    for time, phase, step in rows[:MOST_MARKS]:
        x = scale.x(bisect.bisect_left(scale.times, time))
        found += [line(x, 0, x, HEIGHT - BOTTOM, COLOURS["mark"]), words(x + 11, 90, f"{phase} {step}", turned=True)]
    return found


def curve(answer: dict) -> str:
    """Over the course of the program, not over its time, which is not that of a GPU."""
    rows = answer.get("curve")
    if not rows:
        return "<p>There is no curve: the allocator kept no history.</p>\n"
    scale = Scale(rows, answer["total"])
    device = scale.y(answer["total"] - answer["outside"])
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" role="img">',
             area(scale, [row[1] for row in rows], COLOURS["reserved"]), area(scale, [row[2] for row in rows], COLOURS["allocated"]),
             *axis(scale), *marks(scale, answer.get("marks", []))]
    if device > 0:
        parts += [line(LEFT, device, WIDTH, device, COLOURS["device"]), words(LEFT + 4, device + 14, "the device, without what is outside "
                                                                             "of the allocator")]
    parts += [words(LEFT, HEIGHT - 8, "reserved (grey) and allocated (blue), over the course of the program"), "</svg>\n"]
    return "\n".join(parts)


def text(answers: dict[str, dict]) -> str:
    first = next(iter(answers.values()))
    curves = "".join((f"<h2>{html.escape(name)}</h2>\n" if len(answers) > 1 else "") + curve(answer) for name, answer in answers.items())
    return PAGE.format(title="metashard dry-run: " + html.escape(dry_run_answer.verdict(first)), curves=curves,
                       text=html.escape(dry_run_answer.text(answers).strip()))
