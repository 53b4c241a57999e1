# Debian packages, sourced by launcher.sh: root installs them; for everybody else they are fetched
# and unpacked into .deps/root, where CMake (unpacked.cmake) and the launcher look.
# Uses $root, say and die.

unpacked=$root/.deps/root
multiarch=$(uname -m)-linux-gnu

# Packages of these kinds of pins that are neither installed nor unpacked.
missing_packages() {
  local there kind
  there=$({
    dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p'
    cat "$unpacked/.packages" 2>/dev/null || true
  } | sort -u)
  comm -23 <(for kind in "$@"; do pins "$kind"; done | sort -u) <(printf '%s\n' "$there")
}

install_packages() {
  say "installing $# packages: $*"
  local log=$root/.deps/apt.log
  export DEBIAN_FRONTEND=noninteractive
  {
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"
  } </dev/null >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "apt-get failed; its log is $log"
  }
}

# What lets programs that are unpacked run, and others find what is unpacked: for the launcher's own
# commands and for the program that it starts.
use_unpacked() {
  local usr=$unpacked/usr
  [[ -f $unpacked/.packages ]] || return 0
  export PATH=$unpacked/bin:$usr/bin:$PATH
  export LD_LIBRARY_PATH=$usr/lib/$multiarch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# A compiler with the C library's headers, and Python, cannot be moved into a folder of one's own.
require_own_tools() {
  g++ -std=c++20 -x c++ -fsyntax-only - <<<'#include <cstdlib>' 2>/dev/null ||
    die "there is no g++ that compiles C++20 here, and it cannot be unpacked without root;" \
      "ask who runs this machine for it (package g++; on a cluster: module load gcc), 12 or newer"
  python3 -c 'import hashlib, ssl, zipfile' 2>/dev/null ||
    die "there is no python3 here, and it cannot be unpacked without root; ask who runs this" \
      "machine for it (package python3; on a cluster: module load python), 3.9 or newer"
}

# Asks the machine's own sources, with lists, cache and locks of our own: of the machine's state
# only what is installed is read, and nothing is written.
own_apt_get() {
  local state=$root/.deps/apt
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  apt-get -q -y -o Dir::State="$state" -o Dir::State::status=/var/lib/dpkg/status \
    -o Dir::Cache="$state/cache" -o Dir::Cache::archives="$state/cache/archives" \
    -o APT::Keep-Downloaded-Packages=true -o Acquire::Languages=none -o Debug::NoLocking=true "$@"
}

# Links that lead to nothing in the folder: those from / lead into the folder, where it has what
# they name, and a library that the machine has already is linked to there.
mend_links() {
  local link target file
  find "$unpacked" -xtype l -print0 | while IFS= read -r -d '' link; do
    target=$(readlink "$link")
    if [[ $target == /* && -e $unpacked$target ]]; then
      ln -srf "$unpacked$target" "$link"
      continue
    fi
    file=$target
    [[ $target == /* ]] || file=$(realpath -ms "/$(dirname "${link#"$unpacked"/}")/$target")
    if [[ -e $file ]]; then ln -sfn "$file" "$link"; fi
  done
}

# pkg-config's files name /usr; they are to name the folder in which they lie.
mend_pkg_config() {
  local folder up
  for folder in "lib/$multiarch" lib share; do
    [[ -d $unpacked/usr/$folder/pkgconfig ]] || continue
    up=$(sed 's|[^/]*|..|g' <<<"$folder/pkgconfig")
    find "$unpacked/usr/$folder/pkgconfig" -name '*.pc' -type f -exec \
      sed -i -E "s#(=|-I|-L| )/usr(/|\$)#\\1\${pcfiledir}/$up\\2#g" {} +
  done
}

# The links that update-alternatives makes for OpenMPI when it is installed, as scripts that say
# where it lies.
link_openmpi() {
  local name file
  mkdir -p "$unpacked/bin"
  for name in mpicc mpicxx mpirun mpiexec; do
    file=$unpacked/usr/bin/$name.openmpi
    [[ -e $file ]] || continue
    {
      printf '#!/bin/sh\nusr=$(dirname "$(dirname "$(readlink -f "$0")")")/usr\n'
      printf 'export OPAL_PREFIX="$usr"\nexport PMIX_INSTALL_PREFIX="$usr/lib/%s/pmix2"\n' "$multiarch"
      printf 'LD_LIBRARY_PATH="$usr/lib/%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n' "$multiarch"
      printf 'export LD_LIBRARY_PATH\nexec "$usr/bin/%s.openmpi" "$@"\n' "$name"
    } >"$unpacked/bin/$name"
    chmod +x "$unpacked/bin/$name"
  done
}

# fetch_packages PACKAGE…: unpacked into .deps/root, with what they depend on and is not installed.
fetch_packages() {
  local log=$root/.deps/apt.log archives=$root/.deps/apt/cache/archives file name
  say "fetching $# packages into $unpacked, as only root can install them:" "$@"
  rm -rf "$archives"
  {
    own_apt_get update && own_apt_get install --no-install-recommends --download-only "$@"
  } </dev/null >"$log" 2>&1 || return
  mkdir -p "$unpacked/usr"/{bin,lib,sbin} "$unpacked/.lists"
  for name in lib sbin; do ln -sfn "usr/$name" "$unpacked/$name"; done
  for file in "$archives"/*.deb; do
    name=${file##*/}
    # The machine's own: what it runs with does not go together with another of them.
    case ${name%%_*} in libc6 | libc-bin | libc6-dev | libstdc++6 | libgcc-s1) continue ;; esac
    dpkg-deb --fsys-tarfile "$file" |
      tar -xv --keep-directory-symlink --no-same-owner -C "$unpacked" >"$unpacked/.lists/${name%%_*}" \
        2>>"$log" || return
  done
  mend_links
  mend_pkg_config
  link_openmpi
  printf '%s\n' "$@" >>"$unpacked/.packages"
  rm -rf "$root/.deps/apt"
}

# ensure_packages KIND…: the packages of these kinds of pins are there when it returns.
ensure_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if [[ $(id -u) == 0 ]]; then
    install_packages "${missing[@]}"
    return
  fi
  require_own_tools
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | grep -vxE 'g\+\+|python3')
  ((${#missing[@]})) || return 0
  fetch_packages "${missing[@]}" || {
    tail -n 20 "$root/.deps/apt.log" >&2
    say "these packages could not be fetched (log: $root/.deps/apt.log);" \
      "root can install them, then start again:"
    echo "sudo apt-get update -qq &&" \
      "sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit "$exit_environment"
  }
}
