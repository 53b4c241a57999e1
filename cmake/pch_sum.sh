#!/usr/bin/env bash
# Writes the sum of all the text that a header includes, and beside it what that was, as make's
# rules say it. Usage: pch_sum.sh SUM COMPILER… HEADER
set -euo pipefail
sum=$1
shift
mkdir -p "$(dirname "$sum")"
# Macros of libtorch's headers hold their files' names, which differ from clone to clone.
root=$(cd "$(dirname "$0")/.." && pwd)
text=$("$@" "-fmacro-prefix-map=$root=" -w -x c++-header -E -P -dD -MD -MF "$sum.d" -MT "$sum" | sha256sum)
echo "$text" >"$sum"
