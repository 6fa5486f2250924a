#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# private-jansson.sh IN.a OUT.a
#
# Makes a copy of jansson's archive that can be linked into a shared object. The archive is built
# for executables: it reads libc's variable stdin by an address that only an executable has. Only
# json_loadf reads it, which we do not call; in the copy it is a variable of ours (json.c). All
# other symbols are bound inside the shared object, which exports none of them.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1" "$work/private.a"
chmod u+w "$work/private.a"
objcopy --redefine-sym stdin=ms_json_stdin "$work/private.a"
mv "$work/private.a" "$2"
