#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed.sh FILE: prints FILE as a C string, ms_builtin_rules.
echo '/* Made from kernel-rules.txt. */'
echo 'extern const char ms_builtin_rules[];'
echo 'const char ms_builtin_rules[] ='
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$/\\n"/' "$1"
echo ';'
