#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fetch_wheel.py PACKAGE VERSION FOLDER [PATTERN]: unpacks a Python wheel from PyPI into FOLDER.

PATTERN: only the files whose path in the wheel matches, as in a shell.
Nothing is installed. With pip, pip's settings (mirrors, proxies) are used; without it, PyPI's simple
index (https://packaging.python.org/en/latest/specifications/simple-repository-api/) and the checksum
given there.
"""
import fnmatch
import glob
import hashlib
import html.parser
import os
import platform
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile

INDEX = "https://pypi.org/simple/"
TIMEOUT_S = 60


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found += [value for name, value in attributes if name == "href"]


def download_with_pip(package, version, folder):
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                           "--only-binary", ":all:", "--dest", folder, f"{package}=={version}"],
                          capture_output=True, text=True)
    wheels = glob.glob(os.path.join(folder, "*.whl"))
    return wheels[0] if done.returncode == 0 and wheels else None


def get(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return answer.read()


def is_for_here(file_name, package, version):
    """By the parts of a wheel's name: package, version, Python, ABI and platform."""
    parts = file_name[:-len(".whl")].split("-")
    return (file_name.endswith(".whl") and len(parts) == 5 and
            parts[:3] == [package.replace("-", "_"), version, "py3"] and
            (parts[4] == "any" or "manylinux" in parts[4] and parts[4].endswith(platform.machine())))


def download_directly(package, version, folder):
    page = f"{INDEX}{package}/"
    links = Links()
    links.feed(get(page).decode())
    for link in links.found:
        url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(page, link))
        name = os.path.basename(urllib.parse.urlparse(url).path)
        if not is_for_here(name, package, version):
            continue
        data = get(url)
        if fragment != "sha256=" + hashlib.sha256(data).hexdigest():
            sys.exit(f"{name}: the checksum is not the one PyPI gives")
        path = os.path.join(folder, name)
        with open(path, "wb") as out:
            out.write(data)
        return path
    sys.exit(f"{package} {version}: PyPI has no wheel for {platform.machine()}")


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    package, version, target = sys.argv[1:4]
    pattern = sys.argv[4] if len(sys.argv) == 5 else "*"
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = download_with_pip(package, version, folder) or \
                download_directly(package, version, folder)
        except OSError as error:
            sys.exit(f"cannot fetch {package} {version} from PyPI: {error}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target, fnmatch.filter(archive.namelist(), pattern))


if __name__ == "__main__":
    main()
