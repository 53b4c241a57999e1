# The launcher's slow half, sourced by ./meshwright: what must be there, and the build.
# Uses $root, $cache and the exit codes set there. Functions in the order in which they are needed.

say() { printf 'meshwright: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit "$exit_environment"
}

# Lines of deps.txt whose first word is $1, for this architecture or for all, without that word.
pins() { sed -n "s/^$1\(\/$(uname -m)\)\? \+//p" "$root/cmake/deps.txt"; }

# One process at a time per folder; the lock goes with the file descriptor, so never stays behind.
lock() {
  local file=$1 status=0
  { mkdir -p "$(dirname "$file")" && : >>"$file"; } 2>/dev/null ||
    die "cannot write to $(dirname "$file"); move this clone to a folder that you may write to, or let" \
      "XDG_CACHE_HOME name one for what is downloaded"
  exec {lock_fd}>"$file"
  flock -n "$lock_fd" || status=$?
  if ((status == 1)); then
    say "waiting for another meshwright that is setting up"
    status=0
    flock "$lock_fd" || status=$?
  fi
  ((status == 0)) ||
    say "warning: $file cannot be locked (flock ended with $status), as where a file system has no locks:" \
      "start no second ./meshwright before this one is done"
}
unlock() { exec {lock_fd}>&-; }

source "$root/cmake/packages.sh"

# --- libtorch from wheels ---

# Debian's own interpreter where there is one: python3 on the PATH may lack pip or venv.
system_python() { if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else echo python3; fi; }

# pip, which may be unpacked only.
system_pip() {
  local python
  python=$(system_python)
  local lib=$unpacked/usr/lib/python3
  if [[ -d $lib/dist-packages/pip ]]; then
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    PYTHONPATH=$lib/dist-packages:$unpacked/usr/lib/python$version "$python" -m pip "$@"
  else
    "$python" -m pip "$@"
  fi
}

wheel_is_good() { [[ -f $1 ]] && echo "$2  $1" | sha256sum --check --status; }

# pip takes a platform by its name, not the older ones that it includes.
wheel_platforms() {
  printf -- "--platform manylinux%s_$(uname -m) " 2010 2014 _2_{5..39}
}

# Copies a wheel from the folder that MESHWRIGHT_WHEELS names, for machines without a network.
carried_wheel() {
  local carried=$MESHWRIGHT_WHEELS/$1 sum=$2 to=$3
  wheel_is_good "$carried" "$sum" ||
    die "there is no $1 with its pinned checksum in MESHWRIGHT_WHEELS ($MESHWRIGHT_WHEELS): copy it from" \
      "~/.cache/meshwright/wheels of a machine with a network on which the same build was made"
  cp "$carried" "$to.partial" && mv "$to.partial" "$to" || {
    rm -f "$to.partial"
    die "cannot copy $1 to ${to%/*}: is the disk full?"
  }
}

# Every wheel of these kinds of pins in the cache folder, checksum right.
fetch_wheels() {
  local folder=$cache/wheels name version sum file partial kind
  mkdir -p "$folder"
  while read -r name version sum file; do
    wheel_is_good "$folder/$file" "$sum" && continue
    if [[ -n ${MESHWRIGHT_WHEELS-} ]]; then
      carried_wheel "$file" "$sum" "$folder/$file"
      continue
    fi
    say "downloading $name $version (once; kept in $folder)"
    partial=$(mktemp -d "$folder/partial.XXXXXX")
    if ! system_pip download --quiet --no-deps --only-binary=:all: \
      --python-version 3.11 --implementation cp --dest "$partial" $(wheel_platforms) \
      "$name==$version" </dev/null >&2; then
      rm -rf "$partial"
      die "cannot download $name $version; what pip says of it stands above"
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
  done < <(for kind in "$@"; do pins "$kind"; done)
}

# Names what .deps/libtorch has of these kinds of pins, so that new ones are noticed.
parts_id() { for kind in "$@"; do pins "$kind"; done | sha256sum; }

# nvcc, and NCCL's header beside it or among the system's.
has_cuda_toolkit() {
  local nvcc
  nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
  [[ -x $nvcc ]] && [[ -e ${nvcc%/bin/nvcc}/include/nccl.h || -e /usr/include/nccl.h ]]
}

# .deps/libtorch: the parts of the wheels that the preset needs, all of them or no folder at all.
# The preset cuda12 has a libtorch of its own, in .deps/cuda12.
ensure_libtorch() {
  local target=$root/.deps/libtorch wheels=(wheel) kinds=(keep)
  case $1 in
    cuda) wheels+=(wheel-cuda) kinds+=(cuda keep-cuda) ;;
    cuda12) target=$root/.deps/cuda12/libtorch wheels=(wheel-cuda12) kinds+=(cuda keep-cuda12) ;;
    # With the toolkit there, a test compiles and links the module that needs CUDA's side.
    *) if has_cuda_toolkit; then kinds+=(cuda); fi ;;
  esac
  local fresh=$target.new
  [[ -n $(pins "${wheels[0]}") ]] || die "there are no wheels of PyTorch for $1 on $(uname -m)"
  grep -qxF "$(parts_id "${wheels[@]}" "${kinds[@]}")" "$target/.complete" 2>/dev/null && return 0
  (
    lock "$cache/wheels.lock"
    fetch_wheels "${wheels[@]}"
  ) || exit
  say "unpacking libtorch"
  rm -rf "$fresh"
  mkdir -p "$fresh"
  "$(system_python)" "$root/cmake/unpack_wheels.py" "$root/cmake/deps.txt" "$cache/wheels" \
    "$fresh" "${wheels[@]}" "${kinds[@]}" >&2 || die "cannot unpack the wheels in $cache/wheels"
  # What is unpacked for CUDA serves the builds without it too.
  if [[ $1 != cuda12 ]]; then
    parts_id wheel keep >"$fresh/.complete"
    if [[ " ${kinds[*]} " == *" cuda "* ]]; then parts_id wheel keep cuda >>"$fresh/.complete"; fi
  fi
  parts_id "${wheels[@]}" "${kinds[@]}" >>"$fresh/.complete"
  rm -rf "$target"
  mv "$fresh" "$target"
}

# --- Text to train on: the GNU dictionary of English, 40 MB ---

ensure_text() {
  local link=$root/.deps/text/gcide.txt text=$cache/text/gcide.txt
  local source=/usr/share/dictd/gcide.dict.dz
  [[ -f $source ]] || source=$unpacked$source
  [[ -f $link ]] && return 0
  if [[ ! -f $text ]]; then
    mkdir -p "${text%/*}"
    # A few quotations are not UTF-8; their bytes are dropped.
    gzip -dc <"$source" | "$(system_python)" -c 'import sys
sys.stdout.buffer.write(sys.stdin.buffer.read().decode("utf-8", "ignore").encode())' >"$text.$$" || {
      rm -f "$text.$$"
      die "cannot unpack $source to $text"
    }
    mv "$text.$$" "$text"
  fi
  mkdir -p "${link%/*}"
  ln -sfn "$text" "$link"
}

# --- Configure and build ---

build_folder() { if [[ $1 == release ]]; then echo "$root/build"; else echo "$root/build-$1"; fi; }

# Passes ninja's lines on, and shows how far it is: as one line that moves on a terminal, as a line
# now and then elsewhere.
show_progress() {
  local line whole="" at="" every=${MESHWRIGHT_PROGRESS_SECONDS:-30} start=$SECONDS status
  local said=$SECONDS
  while true; do
    status=0
    IFS= read -r -t 1 line || status=$?
    whole+=$line
    if ((status == 0)); then
      printf '%s\n' "$whole"
      if [[ $whole == \[*/*\]* ]]; then
        at=${whole%%]*}]
        if [[ -t 2 ]]; then printf '\r\033[Kmeshwright: building %s' "$at" >&2; fi
      fi
      whole=""
    elif ((status <= 128)); then  # no time-out: the end
      printf '%s' "$whole"
      break
    fi
    if [[ ! -t 2 ]] && ((SECONDS - said >= every)); then
      said=$SECONDS
      say "still building: ${at:-no step done yet}, $((SECONDS - start)) s"
    fi
  done
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
}

fail_with_log() {
  local log=$1
  say "the build failed; the end of $log:"
  # The first errors tell more than what ninja says last.
  {
    if grep -q 'error:' "$log"; then
      grep -m 5 -A 6 'error:' "$log"
    else
      tail -n 30 "$log"
    fi
  } | if [[ -t 2 ]]; then cat; else sed 's/\x1b\[[0-9;]*[mK]//g'; fi >&2
  exit "$exit_environment"
}

configure() {
  local preset=$1 log=$2 folder
  folder=$(build_folder "$preset")
  [[ -f $folder/build.ninja && ! $root/CMakePresets.json -nt $folder/build.ninja ]] && return 0
  mkdir -p "$folder"
  say "configuring ($preset)"
  (cd "$root" && cmake --preset "$preset" "-DMESHWRIGHT_TEST_PYTHON=$cache/venv/bin/python") \
    </dev/null >"$log" 2>&1 || fail_with_log "$log"
}

# build PRESET TARGET…
build() {
  local preset=$1 folder log jobs start=$SECONDS
  shift
  folder=$(build_folder "$preset")
  log=$folder/build.log
  mkdir -p "$folder"
  configure "$preset" "$log"
  mapfile -t jobs < <(bash "$root/cmake/jobs.sh")
  say "building ($preset)${jobs[1]:+: ${jobs[1]}}"
  (cd "$root" && NINJA_STATUS='[%f/%t] ' ninja -C "$folder" -j "${jobs[0]}" "$@") </dev/null 2>&1 |
    show_progress >"$log" || fail_with_log "$log"
  ((SECONDS - start < 2)) || say "built in $((SECONDS - start)) s"
}

ensure_dependencies() {
  mkdir -p "$root/.deps"
  lock "$root/.deps/lock"
  ensure_packages apt
  use_unpacked
  ensure_libtorch "$1"
  ensure_text
}

make_ready() {
  # What use_unpacked sets is for the build, not for the program.
  local -x PATH=$PATH LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
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
