#!/usr/bin/env bash
# without.sh COMMAND…: runs a test of a build that parts are left out of (cmake/parts.cmake). A test
# that fails because it met such a part is skipped.
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$@" 2>&1 | tee "$output"
status=${PIPESTATUS[0]}
if [[ $status != 0 ]] && grep -q 'was made without' "$output"; then exit 77; fi
exit "$status"
