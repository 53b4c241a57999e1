#!/usr/bin/env bash
# What the launcher adds to a warm start: the best of REPEATS of `./meshwright --version` over that
# of the program called directly. Usage: bench/launcher_startup.sh [REPEATS]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
repeats=${1:-31}

best_us() {
  local start i
  for ((i = 0; i < repeats; ++i)); do
    start=${EPOCHREALTIME/./}
    "$@" </dev/null >/dev/null 2>&1 || true
    echo $((${EPOCHREALTIME/./} - start))
  done | sort -n | sed -n 1p
}

"$root/meshwright" --version >/dev/null # builds what is missing, so that the starts below are warm
best_us "$root/build/bin/meshwright" --version >/dev/null
launched=$(best_us "$root/meshwright" --version)
direct=$(best_us "$root/build/bin/meshwright" --version)
awk -v launched="$launched" -v direct="$direct" 'BEGIN {
  printf "launcher_startup_ms %.1f\nwarm_start_ms %.1f\nprogram_start_ms %.1f\n",
         (launched - direct) / 1e3, launched / 1e3, direct / 1e3
}'
