#!/usr/bin/env bash
# Builds the plugin and tests it. MESHWRIGHT_PREFIX: where Meshwright is installed.
set -euo pipefail
cd "$(dirname "$0")"
prefix=${MESHWRIGHT_PREFIX:-@PREFIX@}
[[ -f $prefix/lib/cmake/Meshwright/MeshwrightConfig.cmake ]] || {
  echo "Meshwright is not installed in $prefix: cmake --install BUILD --prefix PREFIX in its folder," \
    "then MESHWRIGHT_PREFIX=PREFIX ./test.sh" >&2
  exit 5
}
cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >&2
cmake --build build >&2
"$prefix/bin/meshwright" plugins test build/@NAME@.so "$@"
