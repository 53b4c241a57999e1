#!/usr/bin/env bash
# A plugin author's way: install, find_package, one file, one module that the program lists.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "${MESHWRIGHT_BUILD:?}" --prefix "$work/prefix" >"$work/log" 2>&1 || {
  cat "$work/log"
  exit 1
}

mkdir "$work/author"
# README.md shows both files.
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "${MESHWRIGHT_SOURCE:?}/README.md" | sed '1d;$d'; }
block cmake >"$work/author/CMakeLists.txt"
block cpp >"$work/author/batches.cpp"

# The repository's own objects come from ccache; this one may too.
launcher=()
[[ ! -x "$(command -v ccache)" ]] || launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
{
  cmake -S "$work/author" -B "$work/author/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$work/prefix" "${launcher[@]}" &&
    CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1 cmake --build "$work/author/build"
} >"$work/log" 2>&1 || {
  cat "$work/log"
  exit 1
}

symbols=$(nm -D --defined-only "$work/author/build/batches.so" | awk '{print $3}')
[[ $symbols == meshwright_plugin ]] || {
  echo "the module exports more or less than its descriptor: $symbols"
  exit 1
}
if ldd "$work/prefix/bin/meshwright" | grep 'not found'; then
  echo "the installed program misses libraries"
  exit 1
fi
MESHWRIGHT_PLUGIN_PATH=$work/author/build "$work/prefix/bin/meshwright" plugins show batches \
  >"$work/out" 2>&1 && grep -q 'from outside the repository' "$work/out" || {
  echo "plugins show batches:"
  cat "$work/out"
  exit 1
}
cat >"$work/script.lua" <<'LUA'
local mw = require "meshwright"
local batches = mw.plugins("batches")
mw.verify {
  model = mw.gpt { layers = 1, hidden = 16, heads = 2, vocab = 32 },
  data = mw.synthetic { seed = 1, sequence = 8 },
  plan = { batches(3) }, batch = 6, optimizer = mw.adamw { lr = 1e-2 }, steps = 1,
}
LUA
"$work/prefix/bin/meshwright" verify --plugin-path "$work/author/build" "$work/script.lua" \
  >"$work/out" 2>&1 && grep -q 'equals one rank' "$work/out" || {
  echo "verify of a plan with the plugin:"
  cat "$work/out"
  exit 1
}
echo "the installed program runs a plugin built against the installed SDK, and its gradients are right"
