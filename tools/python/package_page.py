# SPDX-License-Identifier: Apache-2.0
"""The page of the package on PyPI is README.md. Its links are relative, so that they work in a clone; the package's metadata gets
the addresses that its own Changelog has, since PyPI has nothing else of the sources."""
import re

CHANGELOG = re.compile(r"^Project-URL: Changelog, (\S+)/[^/\s]+$", re.M)
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def with_addresses(metadata):
    """METADATA of a wheel, whose links into the sources are addresses. A picture is asked for as it is, without a page around it."""
    place = CHANGELOG.search(metadata)[1]
    return LINK.sub(lambda link: f"{link[1]}{link[2]}({place}/{link[3]}{'?raw=true' if link[1] else ''})", metadata)
