# SPDX-License-Identifier: Apache-2.0
"""Printers and commands for gdb:  (gdb) source tools/gdb.py

print *allocation, a lineage, an extent or a recorded launch: in words, with sizes and kinds.
metashard allocations    every allocation of the process: address, size, what of it is deferred and backed
metashard claims         those that a thread works on now
metashard lineage EXPR   the extents of an allocation (a pointer), or of a lineage

Needs the debug information of libmetashard.so, and a stopped process or a core file. Changes nothing.
"""
import gdb
import gdb.printing


def size_text(count):
    count = int(count)
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):.4g} {unit}"
    return f"{count} bytes"


def word(value, prefix="MS_"):
    return str(value).removeprefix(prefix).lower()


def content_text(content):
    kind = word(content["kind"])
    words = [word(content["locality"])] if int(content["locality"]) != 0 else []
    words += ["cached"] if content["cached"] else []
    words += ["remote copy"] if content["is_remote_copy"] else []
    if kind == "fill":
        kind += f" {int(content['pattern']):08x}"
    elif kind == "source":
        source = content["source"].dereference()
        name = source["path"].string() if source["is_file"] else "snapshot"
        kind = f"{name} at {int(content['source_offset'])}"
    elif kind == "launched":
        kind = f"recorded launch {content['recorded']} at {int(content['source_offset'])}"
    elif kind == "parked":
        kind = f"parked {content['parked']} at {int(content['source_offset'])}"
    return ", ".join([kind] + words)


def extent_text(extent):
    return f"[{int(extent['begin']):#x}, {int(extent['end']):#x}) {content_text(extent['content'])}"


def items(listed, name):
    """Those of a struct ms_sorted, which are of that type."""
    kind, leaf_kind = gdb.lookup_type(name).pointer(), gdb.lookup_type("struct ms_leaf").pointer()
    for index in range(int(listed["leaf_count"])):
        leaf = listed["leaves"][index] if int(listed["leaf_capacity"]) > 0 else listed["only"]
        leaf = leaf.cast(leaf_kind).dereference()
        first = leaf["items"].address.cast(kind)
        for item in range(int(leaf["count"])):
            yield first[item]


def extents(lineage):
    return list(items(lineage["extents"], "struct ms_extent"))


class Printer:
    def __init__(self, value):
        self.value = value


class Extent(Printer):
    def to_string(self):
        return extent_text(self.value)


class Lineage(Printer):
    def to_string(self):
        value = self.value
        return (f"lineage of {size_text(value['bytes'])}, {int(value['extents']['count'])} extents: "
                f"{size_text(value['deferred_bytes'])} deferred, {size_text(value['cached_bytes'])} cached, "
                f"{size_text(value['resident_bytes'])} resident, {size_text(value['remote_bytes'])} remote")

    def children(self):
        for index, extent in enumerate(extents(self.value)):
            yield f"[{index}]", extent_text(extent)


def inside(allocation):
    """All of it (runtime/memory/memory_internal.h)."""
    return allocation.address.cast(gdb.lookup_type("struct ms_inside").pointer()).dereference()


def allocation_text(value):
    own = inside(value)
    blocks = own["blocks"]
    parts = f"{int(blocks['all']['count'])} blocks" if own["is_carved"] else "one block"
    return (f"allocation {int(value['id'])} at {int(value['address']):#x}, {size_text(value['bytes'])}, "
            f"device {int(value['device'])}, {parts}, {size_text(own['lineage']['deferred_bytes'])} deferred, "
            f"{size_text(own['backing']['backed_bytes'])} backed{', claimed' if own['claimed_by'] else ''}")


class Allocation(Printer):
    def to_string(self):
        return allocation_text(self.value)

    def children(self):
        yield "lineage", inside(self.value)["lineage"]


class RecordedLaunch(Printer):
    def to_string(self):
        value = self.value
        return (f"recorded launch of {value['launch']}, allocation {int(value['allocation_id'])}, block at "
                f"{int(value['address']):#x}, depth {int(value['depth'])}")

    def children(self):
        yield "before", self.value["before"]
        if int(self.value["input"]) != 0:
            yield "input", self.value["input"]["lineage"]


def all_allocations():
    space = gdb.lookup_static_symbol("space") or gdb.lookup_global_symbol("space")
    if space is None:
        raise gdb.GdbError("metashard: no symbol 'space': is libmetashard.so loaded, with its debug information?")
    for place in items(space.value()["places"], "struct place"):
        yield place["allocation"].dereference()


class Command(gdb.Command):
    """metashard allocations | claims | lineage EXPRESSION"""

    def __init__(self):
        super().__init__("metashard", gdb.COMMAND_DATA, prefix=False)

    def invoke(self, argument, from_tty):
        what, _, rest = argument.partition(" ")
        if what in ("allocations", "claims") and not rest:
            for allocation in all_allocations():
                if what == "allocations" or inside(allocation)["claimed_by"]:
                    print(allocation_text(allocation))
        elif what == "lineage" and rest:
            value = gdb.parse_and_eval(rest)
            if value.type.strip_typedefs().code == gdb.TYPE_CODE_PTR:
                value = value.dereference()
            if str(value.type.unqualified().strip_typedefs()) == "struct ms_allocation":
                value = inside(value)["lineage"]
            for extent in extents(value):
                print(extent_text(extent))
        else:
            raise gdb.GdbError("usage: " + self.__doc__)


def printers():
    collection = gdb.printing.RegexpCollectionPrettyPrinter("metashard")
    for name, printer in (("ms_extent", Extent), ("ms_lineage", Lineage), ("ms_allocation", Allocation),
                          ("ms_recorded_launch", RecordedLaunch)):
        collection.add_printer(name, f"^{name}$", printer)
    return collection


gdb.printing.register_pretty_printer(gdb.current_objfile(), printers(), replace=True)
Command()
