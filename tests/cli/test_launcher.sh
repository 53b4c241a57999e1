#!/usr/bin/env bash
# The launcher on machines that lack something, in a copy of its files with a faked system around
# it. Nothing is downloaded, installed or built.
set -euo pipefail
source_root=${MESHWRIGHT_SOURCE:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

failures=0
check() {
  local what=$1
  shift
  if "$@"; then
    echo "ok      $what"
  else
    echo "FAILED  $what"
    failures=$((failures + 1))
    sed 's/^/          stdout: /' "$work/out"
    sed 's/^/          stderr: /' "$work/err"
  fi
}

# A fresh copy of the launcher, a cache and a PATH whose first folder holds the fakes.
fresh() {
  rm -rf "$work/clone" "$work/cache" "$work/fakes"
  mkdir -p "$work/clone" "$work/cache" "$work/fakes" "$work/elsewhere"
  cp -r "$source_root/meshwright" "$source_root/cmake" "$source_root/CMakeLists.txt" \
    "$source_root/CMakePresets.json" "$work/clone/"
}

fake() {
  printf '#!/bin/bash\n%s\n' "$2" >"$work/fakes/$1"
  chmod +x "$work/fakes/$1"
}

# launch ARGUMENT…: sets status; output in $work/out and $work/err.
launch() {
  status=0
  (cd "$work/elsewhere" && PATH=$work/fakes:$PATH XDG_CACHE_HOME=$work/cache PIP_NO_INDEX=1 \
    PIP_FIND_LINKS="" "${launcher:-$work/clone/meshwright}" "$@") \
    >"$work/out" 2>"$work/err" <"${input:-/dev/null}" || status=$?
}

exits() { [[ $status == "$1" ]]; }
says() { grep -qF -- "$1" "$work/err"; }
prints() { grep -qF -- "$1" "$work/out"; }
silent() { [[ ! -s $work/out ]]; }
absent() { [[ ! -e $1 ]]; }

# --- help and usage need nothing ---
fresh
launch --help
check "help exits 0" exits 0
check "help is on stdout" prints "Usage: ./meshwright COMMAND"
check "help builds nothing" absent "$work/clone/.deps"
for verb in build test docs release format lint clean; do
  for flag in --help -h; do
    launch "$verb" --preset release "$flag"
    check "$verb $flag exits 0" exits 0
    check "$verb $flag is about it" prints "Usage: ./meshwright $verb"
    check "$verb $flag builds nothing" absent "$work/clone/.deps"
  done
done
launch build --preset fast
check "an unknown preset exits 2" exits 2
check "an unknown preset names the known ones" says "presets: release, dev, asan, tsan, fuzz, cuda"

# --- packages missing, not root: unpacked; if they cannot be, one line to paste, exit 5 ---
fresh
fake id 'echo 1000'
fake dpkg-query 'printf "installed cmake\ninstalled g++\n"'
fake g++ 'exit 0'
fake apt-get 'echo "apt-get was called" >&2; exit 1'
launch run script.lua
check "missing packages exit 5" exits 5
check "missing packages leave stdout alone" silent
check "what apt-get said is told" says "apt-get was called"
line=$(grep '^sudo apt-get update' "$work/err" || true)
check "there is exactly one apt line" test "$(grep -c '^sudo apt-get' "$work/err")" = 1
wanted=$(sed -n 's/^apt \+//p' "$work/clone/cmake/deps.txt" | grep -vxE 'cmake|g\+\+|python3' | sort)
listed=$(tr ' ' '\n' <<<"$line" | grep -vxE 'sudo|apt-get|update|-qq|&&|install|-y|--no-install-recommends' | sort)
check "it names all missing packages and no other" test "$wanted" = "$listed"

# A package as Debian makes them: a library by two links and pkg-config's file, a link from /.
make_deb() {
  local at=$work/deb lib
  lib=$at/usr/lib/$(uname -m)-linux-gnu
  mkdir -p "$at/DEBIAN" "$lib/pkgconfig" "$at/lib" "$at/usr/share/x"
  printf 'Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n' >"$at/DEBIAN/control"
  echo library >"$lib/libx.so.1.0"
  ln -sf libx.so.1.0 "$lib/libx.so"
  ln -sf libc.so.6 "$lib/libofthemachine.so"
  ln -sf /usr/share/x/real "$at/usr/share/x/link"
  echo real >"$at/usr/share/x/real"
  echo early >"$at/lib/early"
  printf 'prefix=/usr\nName: x\nDescription: x\nVersion: 1\nLibs: -L${prefix}/lib -lx\nCflags: -I/usr/include/x\n' \
    >"$lib/pkgconfig/x.pc"
  dpkg-deb --build "$at" "$work/x.deb" >/dev/null
}
make_deb
fake apt-get 'case " $* " in *" install "*)
  for word; do [[ $word != Dir::Cache::archives=* ]] || folder=${word#*=}; done
  cp "'"$work"'/x.deb" "$folder/x_1_all.deb"
  cp "'"$work"'/x.deb" "$folder/libc6_1_all.deb" ;;
esac'
launch run script.lua
there=$work/clone/.deps/root
library=$there/usr/lib/$(uname -m)-linux-gnu
check "what is fetched is said" says "fetching "
check "a library is unpacked" test "$(cat "$library/libx.so")" = library
check "one that the machine has is linked to" test "$(readlink -f "$library/libofthemachine.so")" = \
  "$(readlink -f "/usr/lib/$(uname -m)-linux-gnu/libc.so.6")"
check "a link from / leads into the folder" test "$(readlink -f "$there/usr/share/x/link")" = "$there/usr/share/x/real"
check "what goes to /lib lies in usr/lib" test -f "$there/usr/lib/early"
check "the C library is left to the machine" absent "$there/.lists/libc6"
check "each package's files are listed" grep -qF ./usr/lib/ "$there/.lists/x"
mv "$work/clone" "$work/moved"
check "pkg-config finds it, wherever the folder goes" test \
  "$(PKG_CONFIG_PATH=$work/moved/.deps/root/usr/lib/$(uname -m)-linux-gnu/pkgconfig pkg-config --variable=prefix x |
    xargs realpath)" = "$work/moved/.deps/root/usr"
mv "$work/moved" "$work/clone"
fake apt-get 'echo "apt-get was called" >&2; exit 1'
launch run script.lua
check "what is unpacked is not fetched again" test "$(grep -c 'apt-get was called' "$work/err")" = 0

fresh
fake id 'echo 1000'
fake dpkg-query 'exit 0'
fake apt-get 'echo "apt-get was called" >&2; exit 1'
fake g++ 'exit 1'
launch run script.lua
check "without a compiler nothing can be done" exits 5
check "and that is said" says "there is no g++"
check "before anything is fetched" test "$(grep -c 'apt-get was called' "$work/err")" = 0

# --- packages missing, root: installed, failure of apt-get told ---
fresh
fake dpkg-query 'exit 0'
fake apt-get 'echo "apt-get was called" >&2; exit 1'
fake id 'echo 0'
launch run script.lua
check "a failing apt-get exits 5" exits 5
check "a failing apt-get shows its output" says "apt-get was called"

# --- wheels ---
all_installed="sed -n 's/^apt */installed /p' '$work/clone/cmake/deps.txt'"
# pin NAME SUFFIX: a wheel in the cache, pinned as wheel$SUFFIX and keep$SUFFIX.
pin() {
  local folder=$work/cache/meshwright/wheels name=$1 suffix=$2 sum
  mkdir -p "$folder" "$work/wheel/$name/lib" "$work/wheel/$name/junk"
  echo "library" >"$work/wheel/$name/lib/libx.so"
  echo "junk" >"$work/wheel/$name/junk/y"
  (cd "$work/wheel" && python3 -m zipfile -c "$folder/$name-1-py3-none-any.whl" "$name/")
  sum=$(sha256sum "$folder/$name-1-py3-none-any.whl" | cut -d' ' -f1)
  printf 'wheel%s %s 1 %s %s-1-py3-none-any.whl\nkeep%s %s %s/lib/*\n' \
    "$suffix" "$name" "$sum" "$name" "$suffix" "$name" "$name" >>"$work/clone/cmake/deps.txt"
}
pin_one_wheel() {
  sed -i '/^\(wheel\|keep\|cuda\)/d' "$work/clone/cmake/deps.txt"
  pin pack ""
}
fresh
fake dpkg-query "$all_installed"
fake cmake 'echo "cmake ran" ; exit 1'
pin_one_wheel
launch run script.lua
check "a failing configuration exits 5" exits 5
check "a failing configuration shows its log" says "cmake ran"
check "a good wheel in the cache is unpacked" test -f "$work/clone/.deps/libtorch/pack/lib/libx.so"
check "only the pinned members are" absent "$work/clone/.deps/libtorch/pack/junk"

fresh
fake dpkg-query "$all_installed"
pin_one_wheel
echo "spoilt" >>"$work/cache/meshwright/wheels/pack-1-py3-none-any.whl"
launch run script.lua
check "a spoilt wheel that cannot be fetched again exits 5" exits 5
check "it is named" says "cannot download pack 1"
check "nothing is unpacked from it" absent "$work/clone/.deps/libtorch"
check "no partial download stays" test -z "$(ls -d "$work"/cache/meshwright/wheels/partial.* 2>/dev/null)"

# --- what CUDA needs is for the cuda preset alone ---
fresh
fake dpkg-query "$all_installed"
fake cmake 'echo "cmake ran" ; exit 1'
pin_one_wheel
pin gpu -cuda
mv "$work/cache/meshwright/wheels/gpu-1-py3-none-any.whl" "$work/elsewhere/"
launch run script.lua
check "an ordinary build needs no wheel of CUDA's" test -f "$work/clone/.deps/libtorch/pack/lib/libx.so"
check "and has nothing of it" absent "$work/clone/.deps/libtorch/gpu"
launch build --preset cuda
check "the cuda preset does" says "cannot download gpu 1"
mv "$work/elsewhere/gpu-1-py3-none-any.whl" "$work/cache/meshwright/wheels/"
launch build --preset cuda
check "it unpacks it" test -f "$work/clone/.deps/libtorch/gpu/lib/libx.so"
check "beside the rest" test -f "$work/clone/.deps/libtorch/pack/lib/libx.so"
check "and is configured then" says "cmake ran"
launch run script.lua
check "an ordinary build takes what is there" test -f "$work/clone/.deps/libtorch/gpu/lib/libx.so"

# --- a long build says how far it is, where no terminal shows it ---
fresh
fake dpkg-query "$all_installed"
fake cmake 'mkdir -p build; touch build/build.ninja'
fake ninja 'echo "[1/9] Building a"; sleep 2.5; printf "[2/9] Buil"; sleep 1.2; echo "ding b"; exit 1'
pin_one_wheel
MESHWRIGHT_PROGRESS_SECONDS=1 launch run script.lua
check "a failing build exits 5" exits 5
check "how far it is is said" says "still building: [1/9], "
check "a line that comes in parts is whole in the log" \
  grep -qxF "[2/9] Building b" "$work/clone/build/build.log"

# --- a warm start hands over to the program untouched ---
fresh
mkdir -p "$work/clone/build/bin" "$work/clone/.deps/libtorch" "$work/clone/core/src/base"
touch "$work/clone/.deps/libtorch/.complete"
cat >"$work/clone/build/bin/meshwright" <<'PROGRAM'
#!/bin/bash
printf 'argument <%s>\n' "$@"
echo "stdin <$(cat)>"
echo "waits ${OMP_WAIT_POLICY-unset}"
echo "tunables ${GLIBC_TUNABLES-unset}"
exit 7
PROGRAM
chmod +x "$work/clone/build/bin/meshwright"
touch -d '1 minute' "$work/clone/build/.ready"
ln -sf "$work/clone/meshwright" "$work/elsewhere/mw"
echo "from stdin" >"$work/input"
launcher=$work/elsewhere/mw input=$work/input launch run "a b.lua" --set 'x=1 2' ''
check "the exit code is the program's" exits 7
check "arguments arrive whole" prints "argument <a b.lua>"
check "an empty argument too" prints "argument <>"
check "stdin is the program's" prints "stdin <from stdin>"
check "OpenMP waits passively" prints "waits PASSIVE"
check "big blocks get huge pages" prints "tunables glibc.malloc.hugetlb=1"
check "the launcher is silent" test ! -s "$work/err"
OMP_WAIT_POLICY=ACTIVE launch run x
check "unless the user says otherwise" prints "waits ACTIVE"
GLIBC_TUNABLES=glibc.malloc.check=0 launch run x
check "nor are the user's tunables touched" prints "tunables glibc.malloc.check=0"

fake id 'echo 1000'
fake dpkg-query 'exit 0'
fake apt-get 'exit 1'
touch -d '2 minutes' "$work/clone/core/src/base/new.cpp"
launch run x
check "a new source is noticed" exits 5

echo
echo "$failures failures"
exit $((failures > 0))
