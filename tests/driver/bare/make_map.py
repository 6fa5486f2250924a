# SPDX-License-Identifier: Apache-2.0
"""Writes the version script of a driver with nothing that the shim can do without.

    make_map.py runtime/driver/driver.def output.map
"""
import re
import sys

with open(sys.argv[1], encoding="utf-8") as table:
    hidden = re.findall(r"^MS_DRIVER_OPTIONAL\(\w+, (\w+)\)", table.read(), re.MULTILINE)
assert hidden
with open(sys.argv[2], "w", encoding="utf-8") as script:
    script.write("{\n  global: cu*; simcuda_*;\n  local:\n")
    script.writelines(f"    {name};\n" for name in hidden)
    script.write("    *;\n};\n")
