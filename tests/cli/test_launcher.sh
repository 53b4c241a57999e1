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
absent_words() { ! grep -qF -- "$1" "$work/err"; }
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
check "an unknown preset names the known ones" says "presets: release, dev, asan, tsan, fuzz, cuda, cuda12, without"

# --- what this machine cannot build is said before anything is fetched ---
# refuses WHAT SENTENCE [ADVICE]: with what the fakes and the files of $work/system say.
refuses() {
  launch run script.lua
  check "$1 exits 5" exits 5
  check "$1 is said" says "$2"
  check "$1: what to do is said" says "${3:-docs/commands.md}"
  check "$1: in one line" test "$(wc -l <"$work/err")" = 1
  check "$1: nothing is made" absent "$work/clone/.deps"
}
distribution() {
  mkdir -p "$work/system/etc"
  printf 'PRETTY_NAME="%s"\nNAME="x"\nVERSION_ID="%s"\nID=%s\nID_LIKE=debian\n' "$1" "$3" "$2" >"$work/system/etc/os-release"
}
export MESHWRIGHT_SYSTEM_ROOT=$work/system
fresh
fake apt-get 'echo "apt-get was called" >&2; exit 1'
fake dpkg-query 'exit 0'
distribution "Debian GNU/Linux 12 (bookworm)" debian 12
fake uname 'case $1 in -s) echo Darwin ;; *) echo arm64 ;; esac'
refuses "another system" "this machine runs Darwin on arm64"
fake uname 'case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac'
refuses "another architecture" "this machine is riscv64"
rm "$work/fakes/uname"
distribution "Ubuntu 22.04.4 LTS" ubuntu 22.04
refuses "an older Ubuntu" "this machine runs Ubuntu 22.04.4 LTS"
distribution "Debian GNU/Linux 11 (bullseye)" debian 11
refuses "an older Debian" "this machine runs Debian GNU/Linux 11"
sed -i "y/\"/'/" "$work/system/etc/os-release"
refuses "an older Debian, in other quotes" "this machine runs Debian GNU/Linux 11"
distribution "Linux Mint 21.3" linuxmint 21.3
fake cmake 'echo "cmake version 3.22.1"'
refuses "an older cmake" "the build needs cmake 3.25 or newer, and $work/fakes/cmake is 3.22.1"
fake cmake 'echo "cmake version 3.31.0-rc1"'
fake g++ 'echo "g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"'
refuses "an older compiler" "the build needs g++ 12 or newer, and $work/fakes/g++ is 11.4.0"
fake g++ 'echo "g++-12 (Debian 12.2.0-14) 12.2.0"'
fake python3 'echo "Python 3.8.10"'
refuses "an older Python" "the build needs python3 3.9 or newer"
rm "$work/fakes/python3"
launch run script.lua
check "newer ones are taken" says "apt-get was called"
rm -rf "$work/clone/.deps"
# What is not there yet comes from the machine's package sources.
without() { # PROGRAM: a PATH on which it is not
  mkdir -p "$work/tools"
  for tool in /usr/bin/* /bin/*; do ln -sf "$tool" "$work/tools/"; done
  rm -f "$work/tools/$1" "$work/fakes/$1"
}
without cmake
fake apt-cache 'printf "cmake:\n  Installed: (none)\n  Candidate: 3.22.1-1ubuntu1\n"'
PATH=$work/tools refuses "an older cmake to come" "the package sources of this machine have 3.22.1"
without apt-get
distribution "Fedora Linux 41" fedora 41
PATH=$work/tools refuses "a system without apt-get" "apt-get, which is not here (this machine runs Fedora Linux 41)"
rm -rf "$work/tools"
unset MESHWRIGHT_SYSTEM_ROOT
fresh
launcher_with() { (BASH_VERSION=$1 && root=$work/clone exit_environment=5 && source "$work/clone/cmake/machine.sh" && check_machine); }
status=0
launcher_with "3.2.57(1)-release" >"$work/out" 2>"$work/err" || status=$?
check "an older bash exits 5" exits 5
check "an older bash is said" says "this launcher needs bash 4.4 or newer, and $BASH is 3.2.57(1)-release"
for pair in "3.25 3.25" "3.25.1 3.25" "4 3.25" "12 12" "10.1 9.9" "3.31-rc1 3.25" "unknown 3.25" " 3.25"; do
  check "at least: $pair" bash -c "source '$work/clone/cmake/machine.sh'; at_least '${pair% *}' '${pair#* }'"
done
for pair in "3.24.9 3.25" "3 3.25" "11.4 12" "08.1 9"; do
  check "less: $pair" bash -c "source '$work/clone/cmake/machine.sh'; ! at_least '${pair% *}' '${pair#* }'"
done
# What bash 3.2 and the tools of other systems lack is not used before the check.
check "nothing that bash 3.2 lacks" bash -c "! grep -nE '\[\[ -v|mapfile|readarray|local -[nA]|declare -A|\\$\{[a-z_]+(,,|\^\^)|readlink -f|&>>|\|&' '$work/clone/meshwright' '$work/clone/cmake/machine.sh'"

# --- compilers at a time: as many as cores and memory allow ---
jobs_with() { # MEMORY IN KIB: sets MESHWRIGHT_SYSTEM_ROOT's files
  mkdir -p "$work/system/proc/self" "$work/system/sys/fs/cgroup/a/b"
  printf 'MemTotal: 99999999 kB\nMemAvailable: %s kB\n' "$1" >"$work/system/proc/meminfo"
  printf '0::/a/b\n' >"$work/system/proc/self/cgroup"
}
job_count() { MESHWRIGHT_SYSTEM_ROOT=$work/system bash "$work/clone/cmake/jobs.sh" | sed -n 1p; }
allowed=$(python3 -c 'import os; print(len(os.sched_getaffinity(0)))')
jobs_with 99999999
check "enough memory: one a core" test "$(job_count)" = "$allowed"
check "one core by affinity: one" test "$(taskset -c "$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')" \
  env MESHWRIGHT_SYSTEM_ROOT="$work/system" bash "$work/clone/cmake/jobs.sh" | sed -n 1p)" = 1
jobs_with 1500000
check "little memory: one" test "$(job_count)" = 1
jobs_with 400000
check "hardly any memory: still one" test "$(job_count)" = 1
jobs_with 99999999
echo 100000 100000 >"$work/system/sys/fs/cgroup/a/cpu.max"
check "a control group of one core: one" test "$(job_count)" = 1
echo max 100000 >"$work/system/sys/fs/cgroup/a/cpu.max"
echo 3000000000 >"$work/system/sys/fs/cgroup/a/memory.max"
echo 2500000000 >"$work/system/sys/fs/cgroup/a/memory.current"
check "a control group of little memory: one" test "$(job_count)" = 1
echo "inactive_file 2400000000" >"$work/system/sys/fs/cgroup/a/memory.stat"
check "what the kernel keeps of files is free" test "$(job_count)" = "$((allowed < 2 ? allowed : 2))"
rm -r "$work/system/sys" # version 1: a tree for each controller, and both may be named in one line
jobs_with 99999999
echo 4:cpu,memory:/a/b >"$work/system/proc/self/cgroup"
mkdir -p "$work/system/sys/fs/cgroup/memory/a/b"
echo 1500000000 >"$work/system/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes"
echo 0 >"$work/system/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes"
check "the second tree of a line counts too" test "$(job_count)" = 1
check "the user may say another number" test "$(CMAKE_BUILD_PARALLEL_LEVEL=7 job_count)" = 7
rm -rf "$work/system"

# --- HOME ---
fresh
for home in unset empty relative; do
  case $home in
    unset) options=(-u HOME) ;;
    empty) options=(HOME=) ;;
    relative) options=(HOME=here XDG_CACHE_HOME=there) ;;
  esac
  status=0
  (cd "$work/elsewhere" && env -u XDG_CACHE_HOME "${options[@]}" bash -c "PATH=$work/fakes:\$PATH; exec '$work/clone/meshwright' build --preset none") \
    >"$work/out" 2>"$work/err" || status=$?
  check "HOME $home: the launcher works" exits 2
  check "HOME $home: it says what it should" says "there is no preset 'none'"
done
touch "$work/plain"
fake dpkg-query "sed -n 's/^apt */installed /p' '$work/clone/cmake/deps.txt'"
fake flock 'exit 71'
status=0
(cd "$work/elsewhere" && PATH=$work/fakes:$PATH XDG_CACHE_HOME=$work/plain/cache "$work/clone/meshwright" build) \
  >"$work/out" 2>"$work/err" || status=$?
check "a cache that cannot be written exits 5" exits 5
check "a cache that cannot be written is said" says "cannot write to $work/plain/cache/meshwright"
check "a file system without locks is said" says "cannot be locked (flock ended with 71)"

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

fresh
fake dpkg-query "$all_installed"
fake cmake 'echo "cmake ran" ; exit 1'
pin_one_wheel
mkdir -p "$work/elsewhere/carried"
mv "$work/cache/meshwright/wheels/pack-1-py3-none-any.whl" "$work/elsewhere/carried/"
export MESHWRIGHT_WHEELS=$work/elsewhere/nowhere
launch run script.lua
check "a wheel that MESHWRIGHT_WHEELS lacks exits 5" exits 5
check "and is named" says "there is no pack-1-py3-none-any.whl with its pinned checksum in MESHWRIGHT_WHEELS"
export MESHWRIGHT_WHEELS=$work/elsewhere/carried
launch run script.lua
unset MESHWRIGHT_WHEELS
check "a carried wheel is unpacked" test -f "$work/clone/.deps/libtorch/pack/lib/libx.so"
check "nothing is downloaded for it" absent_words "downloading"

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
fake ninja 'echo "[1/9] Building a"
for _ in {1..600}; do grep -qF "building: [1/9], " "'"$work"'/err" && break; sleep 0.1; done
printf "[2/9] Buil"; sleep 1.2; echo "ding b"; exit 1'
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

# --- A text that is not unpacked to its end is none ---
fresh
fake gzip 'echo cut off; exit 1'
fake python3 'cat'
status=0
(
  root=$work/clone cache=$work/cache unpacked=$work/unpacked exit_environment=5
  PATH=$work/fakes:$PATH
  source "$work/clone/cmake/launcher.sh"
  ensure_text
) >"$work/out" 2>"$work/err" || status=$?
check "a text that cannot be unpacked ends the launcher" exits 5
check "it says which" says "cannot unpack"
check "nothing of it stays" test -z "$(ls -A "$work/cache/text")"

echo
echo "$failures failures"
exit $((failures > 0))
