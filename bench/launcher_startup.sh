#!/usr/bin/env bash
# What the launcher adds to a warm start: median of `./meshwright --version` over that of the program
# called directly. Usage: bench/launcher_startup.sh [REPEATS]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
repeats=${1:-31}

median_us() {
  local start i
  for ((i = 0; i < repeats; ++i)); do
    start=${EPOCHREALTIME/./}
    "$@" </dev/null >/dev/null 2>&1 || true
    echo $((${EPOCHREALTIME/./} - start))
  done | sort -n | sed -n "$((repeats / 2 + 1))p"
}

"$root/meshwright" --version >/dev/null # builds what is missing, so that the starts below are warm
launched=$(median_us "$root/meshwright" --version)
direct=$(median_us "$root/build/bin/meshwright" --version)
printf 'launcher_startup_ms %d.%03d\n' $(((launched - direct) / 1000)) $(((launched - direct) % 1000))
printf 'warm_start_ms %d.%03d\nprogram_start_ms %d.%03d\n' \
  $((launched / 1000)) $((launched % 1000)) $((direct / 1000)) $((direct % 1000))
