#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# private-jansson.sh IN.a OUT.a
#
# Makes a copy of jansson's archive that can be linked into a shared object. The archive is built for
# executables: it may read stdin, a variable of libc, where an executable would have it. Only json_loadf
# does, which nobody calls here; in the copy that is a variable of ours (json.c). All other symbols are bound
# inside the shared object, which exports none of them.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1" "$work/private.a"
chmod u+w "$work/private.a"
objcopy --redefine-sym stdin=ms_json_stdin "$work/private.a"
mv "$work/private.a" "$2"
