# The launcher's slow half, sourced by ./meshwright: dependencies, build, developer verbs.
# Uses $root, $cache and the exit codes set there. Functions in the order in which they are needed.

say() { printf 'meshwright: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit "$exit_environment"
}

# Lines of deps.txt whose first word is $1, without that word.
pins() { sed -n "s/^$1 \+//p" "$root/cmake/deps.txt"; }

# One process at a time per folder; the lock goes with the file descriptor, so never stays behind.
lock() {
  local file=$1
  mkdir -p "$(dirname "$file")"
  exec {lock_fd}>"$file"
  flock -n "$lock_fd" || {
    say "waiting for another meshwright that is setting up"
    flock "$lock_fd"
  }
}
unlock() { exec {lock_fd}>&-; }

# --- Debian packages ---

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null |
    sed -n 's/^installed //p' | sort -u)
  comm -23 <(pins apt | sort -u) <(printf '%s\n' "$installed")
}

ensure_packages() {
  command -v dpkg-query >/dev/null ||
    die "this launcher installs with apt; on another system install the packages of cmake/deps.txt" \
      "and build with cmake --preset release"
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if [[ $(id -u) != 0 ]]; then
    say "these packages are missing; install them, then start again:"
    echo "sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit "$exit_environment"
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  local log=$root/.deps/apt.log
  export DEBIAN_FRONTEND=noninteractive
  {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"
  } </dev/null >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "apt-get failed; its log is $log"
  }
}

# --- libtorch from wheels ---

# Debian's own interpreter where there is one: python3 on the PATH may lack pip or venv.
system_python() { if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else echo python3; fi; }

wheel_is_good() { [[ -f $1 ]] && echo "$2  $1" | sha256sum --check --status; }

# Every pinned wheel in the cache folder, checksum right.
fetch_wheels() {
  local folder=$cache/wheels name version sum file partial
  mkdir -p "$folder"
  while read -r name version sum file; do
    wheel_is_good "$folder/$file" "$sum" && continue
    say "downloading $name $version (once; kept in $folder)"
    partial=$(mktemp -d "$folder/partial.XXXXXX")
    if ! "$(system_python)" -m pip download --quiet --no-deps --only-binary=:all: \
      --python-version 3.11 --implementation cp --dest "$partial" \
      --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
      --platform manylinux_2_17_x86_64 "$name==$version" </dev/null >&2; then
      rm -rf "$partial"
      die "cannot download $name $version; is the network there?"
    fi
    if ! wheel_is_good "$partial/$file" "$sum"; then
      local found
      found=$(cd "$partial" && sha256sum -- * 2>/dev/null || true)
      rm -rf "$partial"
      die "the download of $name $version is not the pinned file: got '$found'," \
        "expected '$sum  $file'"
    fi
    mv "$partial/$file" "$folder/$file"
    rm -rf "$partial"
  done < <(pins wheel)
}

# .deps/libtorch: the parts of the wheels that the build needs, complete or absent.
ensure_libtorch() {
  local kinds="keep" want
  [[ $1 == cuda ]] && kinds="keep cuda"
  want=$(for kind in wheel $kinds; do pins "$kind"; done | sha256sum)
  local target=$root/.deps/libtorch
  # The CUDA parts only add to the others: a CPU build is content with either.
  grep -qxF "$want" "$target/.complete" 2>/dev/null && return 0
  (
    lock "$cache/wheels.lock"
    fetch_wheels
  ) || exit
  say "unpacking libtorch"
  local fresh=$root/.deps/libtorch.new
  rm -rf "$fresh"
  mkdir -p "$fresh"
  "$(system_python)" - "$root/cmake/deps.txt" "$cache/wheels" "$fresh" $kinds <<'PYTHON'
import fnmatch, pathlib, sys, zipfile
pins, wheels, target, *kinds = sys.argv[1:]
rows = [line.split() for line in open(pins) if line.strip() and line[0] != "#"]
for _, name, _, _, file in (row for row in rows if row[0] == "wheel"):
    globs = [g for row in rows if row[0] in kinds and row[1] == name for g in row[2:]]
    with zipfile.ZipFile(pathlib.Path(wheels) / file) as archive:
        members = [m for m in archive.namelist() if any(fnmatch.fnmatch(m, g) for g in globs)]
        for pattern in globs:
            if not any(fnmatch.fnmatch(m, pattern) for m in members):
                sys.exit(f"{file} has nothing that matches {pattern}")
        archive.extractall(target, members)
PYTHON
  { for kind in wheel $kinds; do pins "$kind"; done | sha256sum
    [[ $1 == cuda ]] && for kind in wheel keep; do pins "$kind"; done | sha256sum; } \
    >"$fresh/.complete" || true
  rm -rf "$target"
  mv "$fresh" "$target"
}

# --- Text to train on: the GNU dictionary of English, 40 MB ---

ensure_text() {
  local link=$root/.deps/text/gcide.txt text=$cache/text/gcide.txt
  local source=/usr/share/dictd/gcide.dict.dz
  [[ -f $link ]] && return 0
  if [[ ! -f $text ]]; then
    mkdir -p "${text%/*}"
    # A few quotations are not UTF-8; their bytes are dropped.
    gzip -dc <"$source" | { iconv -c -f utf-8 -t utf-8 || true; } >"$text.$$"
    mv "$text.$$" "$text"
  fi
  mkdir -p "${link%/*}"
  ln -sfn "$text" "$link"
}

# --- Configure and build ---

build_folder() { if [[ $1 == release ]]; then echo "$root/build"; else echo "$root/build-$1"; fi; }

# Shows ninja's [n/m] lines as one line that moves on a terminal, as nothing elsewhere.
show_progress() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ -t 2 && $line == \[*/*\]* ]]; then
      printf '\r\033[Kmeshwright: building %s' "${line%%]*}]" >&2
    fi
  done
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
}

fail_with_log() {
  local log=$1
  say "the build failed; the end of $log:"
  # The first errors tell more than what ninja says last.
  if grep -q 'error:' "$log"; then
    grep -m 5 -A 6 'error:' "$log" | head -n 40 >&2
  else
    tail -n 30 "$log" >&2
  fi
  exit "$exit_environment"
}

# build PRESET TARGET…
build() {
  local preset=$1 folder log start=$SECONDS
  shift
  folder=$(build_folder "$preset")
  log=$folder/build.log
  mkdir -p "$folder"
  if [[ ! -f $folder/build.ninja || $root/CMakePresets.json -nt $folder/build.ninja ]]; then
    say "configuring ($preset)"
    (cd "$root" && cmake --preset "$preset" "-DMESHWRIGHT_TEST_PYTHON=$cache/venv/bin/python") \
      </dev/null >"$log" 2>&1 || fail_with_log "$log"
  fi
  say "building ($preset)"
  (cd "$root" && NINJA_STATUS='[%f/%t] ' ninja -C "$folder" -j "$(nproc)" "$@") </dev/null 2>&1 |
    show_progress >"$log" || fail_with_log "$log"
  ((SECONDS - start < 2)) || say "built in $((SECONDS - start)) s"
}

ensure_dependencies() {
  mkdir -p "$root/.deps"
  lock "$root/.deps/lock"
  ensure_packages
  ensure_libtorch "$1"
  ensure_text
}

make_ready() {
  ensure_dependencies release
  # Another process may have finished the build while this one waited.
  if ! is_ready; then
    local stamp=$root/build/.ready
    mkdir -p "$root/build"
    # Dated before the build: what is edited while it runs is newer and built next time.
    touch "$stamp.new"
    build release programs
    mv "$stamp.new" "$stamp"
  fi
  unlock
}

# --- Developer verbs ---

# Takes --preset from the arguments: sets preset and rest.
parse_preset() {
  preset=release rest=()
  while (($#)); do
    case $1 in
      --preset) preset=${2:?--preset needs a name} && shift 2 ;;
      --preset=*) preset=${1#*=} && shift ;;
      *) rest+=("$1") && shift ;;
    esac
  done
  case $preset in
    release | dev | asan | tsan | cuda) ;;
    *)
      say "there is no preset '$preset'; presets: release, dev, asan, tsan, cuda"
      exit "$exit_usage"
      ;;
  esac
}

verb_build() {
  local preset rest
  parse_preset "$@"
  ensure_dependencies "$preset"
  local stamp
  stamp=$(build_folder "$preset")/.ready
  mkdir -p "${stamp%/*}"
  touch "$stamp.new"
  build "$preset" "${rest[@]:-all}"
  if ((${#rest[@]} == 0)); then mv "$stamp.new" "$stamp"; fi
  unlock
}

# The tests' Python packages, in the cache folder, made anew when the pins change.
ensure_venv() {
  local venv=$cache/venv want
  want=$(pins pip)
  [[ -x $venv/bin/python && $(cat "$venv/.complete" 2>/dev/null) == "$want" ]] && return 0
  (
    lock "$cache/venv.lock"
    [[ -x $venv/bin/python && $(cat "$venv/.complete" 2>/dev/null) == "$want" ]] && exit 0
    say "installing the tests' Python packages (once; kept in $venv)"
    rm -rf "$venv"
    "$(system_python)" -m venv "$venv" &&
      "$venv/bin/python" -m pip install --quiet $want </dev/null >&2 &&
      printf '%s\n' "$want" >"$venv/.complete"
  ) || die "cannot install the tests' Python packages"
}

verb_test() {
  local preset rest
  parse_preset "$@"
  verb_build --preset "$preset"
  ensure_venv
  # Sanitizers: what libtorch, libgomp and HDF5 do uninstrumented is not ours to mend.
  local supp=$root/tests/sanitizers
  export LSAN_OPTIONS=${LSAN_OPTIONS-suppressions=$supp/lsan.supp:print_suppressions=0}
  export TSAN_OPTIONS=${TSAN_OPTIONS-suppressions=$supp/tsan.supp:halt_on_error=1}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS-suppressions=$supp/ubsan.supp:print_stacktrace=1:halt_on_error=1}
  local skip=(-LE gpu)
  [[ $preset == cuda ]] && skip=()
  cd "$(build_folder "$preset")"
  exec ctest --output-on-failure -j 2 "${skip[@]}" "${rest[@]}"
}

own_files() { (cd "$root" && git ls-files -co --exclude-standard '*.cpp' '*.h' | grep -v '^spike/'); }

verb_format() {
  (cd "$root" && own_files | xargs -r clang-format -i)
}

verb_lint() {
  ensure_dependencies release
  build release programs
  unlock
  cd "$root"
  own_files | xargs -r clang-format --dry-run --Werror || exit 1
  local files=("$@")
  if ((${#files[@]} == 0)); then mapfile -t files < <(own_files | grep '\.cpp$'); fi
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build || exit 1
}

verb_clean() { rm -rf "$root"/build "$root"/build-{dev,asan,tsan,cuda} "$root/.deps"; }
