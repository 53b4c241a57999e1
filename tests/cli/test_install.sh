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
cat >"$work/author/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(Author LANGUAGES CXX)
find_package(Meshwright REQUIRED)
meshwright_add_plugin(batches batches.cpp)
CMAKE
cat >"$work/author/batches.cpp" <<'CPP'
#include "meshwright/plugin.h"

namespace {

class Batches : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options().integer("ways", "ranks of the axis").at_least(1).positional("ways");
  }
  explicit Batches(const mw::Values& values) : ways_(static_cast<int>(values.integer("ways"))) {}
  std::vector<mw::AxisRequest> axes() const override { return {{"b", ways_, {}}}; }
  void edit(mw::Draft& draft) const override { draft.shard("batch", "b"); }

 private:
  int ways_;
};

}  // namespace

MESHWRIGHT_PLUGIN(Batches, "batches", "0.1.0", "splits the batch, from outside the repository")
CPP

# The repository's own objects come from ccache; this one may too.
launcher=()
[[ ! -x "$(command -v ccache)" ]] || launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
{
  cmake -S "$work/author" -B "$work/author/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$work/prefix" "${launcher[@]}" &&
    cmake --build "$work/author/build"
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
echo "the installed program lists a plugin built against the installed SDK"
