#!/usr/bin/env bash
# Tests the script. MESHWRIGHT_PREFIX: where Meshwright is installed.
set -euo pipefail
cd "$(dirname "$0")"
"${MESHWRIGHT_PREFIX:-@PREFIX@}/bin/meshwright" plugins test @NAME@.lua "$@"
