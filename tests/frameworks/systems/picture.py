# SPDX-License-Identifier: Apache-2.0
"""picture.py JSON SVG: the device's peak of each system, without and with, from what `run --json` wrote.

One panel for each number of ranks. A bar is the worst rank; hollow without, solid with (and with a plan, where the row
has one); a tick is the rank's shard. The colours are those of the reader's scheme, light or dark.
"""
import json
import sys
from xml.sax.saxutils import escape

from figures import mib

STYLE = """
  text { font: 12px sans-serif; fill: #24292f; }
  .head { font-weight: bold; }
  .quiet, .value { fill: #57606a; font-size: 11px; }
  .without { fill: none; stroke: #8c959f; stroke-width: 1; }
  .with { fill: #0969da; }
  .shard { stroke: #cf222e; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .quiet, .value { fill: #9da7b3; }
    .without { stroke: #7d8590; }
    .with { fill: #4493f8; }
    .shard { stroke: #ff7b72; }
  }
"""
LEFT, BAR, RIGHT = 330, 420, 130  # widths of the names, of the longest bar, and of the figures
LINE, TOP, HEAD = 24, 34, 30


def peak(ranks):
    found = [rank["peak_bytes"] for rank in ranks if rank["peak_bytes"] is not None]
    return max(found) if found else 0


def rows_of(result, world):
    """(system, shard, peak without, peak with) of every row that ran."""
    for record in result["records"]:
        if record["world"] == world and record["skipped"] is None and "with" in record["ways"]:
            best = record["ways"].get("plan", record["ways"]["with"])
            yield (record["system"] + (" (plan)" if "plan" in record["ways"] else ""),
                   max(rank["shard_bytes"] for rank in record["ranks"]), peak(record["ways"]["without"]), peak(best))


def draw_row(row, y, scale):
    system, shard, before, after = row
    return "\n".join([
        f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(system)}</text>',
        f'<rect class="without" x="{LEFT}" y="{y + 3.5}" width="{before * scale:.1f}" height="16"/>',
        f'<rect class="with" x="{LEFT}" y="{y + 6.5}" width="{after * scale:.1f}" height="10"/>',
        f'<line class="shard" x1="{LEFT + shard * scale:.1f}" y1="{y + 2}" x2="{LEFT + shard * scale:.1f}" y2="{y + 21}"/>',
        f'<text class="value" x="{LEFT + before * scale + 6:.1f}" y="{y + 15}">{mib(before)} → {mib(after)}</text>'])


def draw(path, result):
    worlds = sorted({record["world"] for record in result["records"]})
    panels = {world: list(rows_of(result, world)) for world in worlds}
    most = max((row[2] for rows in panels.values() for row in rows), default=1)
    scale, y, body = BAR / most, TOP, []
    for world, rows in panels.items():
        body.append(f'<text class="head" x="{LEFT}" y="{y + 18}">{world} ranks</text>')
        y += HEAD
        for row in rows:
            body.append(draw_row(row, y, scale))
            y += LINE
    width, height = LEFT + BAR + RIGHT, y + 12
    key = (f'<rect class="without" x="{LEFT}" y="8" width="22" height="14"/><text x="{LEFT + 28}" y="20">without</text>'
           f'<rect class="with" x="{LEFT + 90}" y="10" width="22" height="10"/><text x="{LEFT + 118}" y="20">with</text>'
           f'<line class="shard" x1="{LEFT + 166}" y1="7" x2="{LEFT + 166}" y2="23"/>'
           f'<text x="{LEFT + 174}" y="20">its shard</text>'
           f'<text class="quiet" x="{LEFT - 8}" y="20" text-anchor="end">device peak of the worst rank, MiB</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                   f'viewBox="0 0 {width} {height}" role="img">\n<title>Device peak of each system, without and with '
                   f'MetaShard</title>\n<style>{STYLE}</style>\n{key}\n' + "\n".join(body) + "\n</svg>\n")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as source:
        draw(sys.argv[2], json.load(source))
