# SPDX-License-Identifier: Apache-2.0
"""Writes the version script of a simulated driver without virtual memory management.

    make_map.py output.map
"""
import sys

HIDDEN = ("cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemGetAccess",
          "cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle", "cuMemImportFromShareableHandle",
          "cuMemMap", "cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz", "cuMemRelease", "cuMemRetainAllocationHandle",
          "cuMemSetAccess", "cuMemUnmap")

with open(sys.argv[1], "w", encoding="utf-8") as script:
    script.write("{\n  global: cu*; simcuda_*;\n  local:\n")
    script.writelines(f"    {name};\n" for name in HIDDEN)
    script.write("    *;\n};\n")
