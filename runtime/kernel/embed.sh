#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed.sh FILE NAME: prints FILE as a C string with that name.
echo "/* Made from ${1##*/}. */"
echo "extern const char $2[];"
echo "const char $2[] ="
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$/\\n"/' "$1"
echo ';'
