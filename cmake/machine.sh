# Whether Meshwright can be built on this machine; ./meshwright asks before it downloads anything.
# The file is written for bash 3.2, which macOS has, and calls no program that only GNU has.
# Uses $root and $exit_environment.

cannot_build() {
  printf 'meshwright: %s\n' "$*" >&2
  exit "$exit_environment"
}

elsewhere='use a Debian 12 or 13 or Ubuntu 24.04 machine, a release or the container: docs/commands.md'

# at_least FOUND LEAST: two versions, such as 3.25.1. A version that is not known passes.
at_least() {
  local IFS=. i found least
  found=($1)
  least=($2)
  case $1 in [0-9]*) ;; *) return 0 ;; esac
  for ((i = 0; i < ${#least[@]}; i++)); do
    found[i]=${found[i]-0}
    found[i]=${found[i]%%[!0-9]*}
    ((10#${found[i]:-0} == 10#${least[i]})) || {
      ((10#${found[i]:-0} > 10#${least[i]}))
      return
    }
  done
}

# The value of a key of the file that describes the distribution. Either kind of quotes may be
# around it.
of_distribution() {
  sed -n "s/^$1=\([\"']\{0,1\}\)\(.*\)\1\$/\2/p" "${MESHWRIGHT_SYSTEM_ROOT-}/etc/os-release" 2>/dev/null || true
}

# The first version in a text, such as 12.2.0 in "g++ (Debian 12.2.0-14) 12.2.0".
version_in() {
  local version='[0-9]+\.[0-9.]*[0-9]'
  if [[ $1 =~ $version ]]; then printf '%s\n' "${BASH_REMATCH[0]}"; fi
}

# The version of a package that apt-get would install, without its epoch; empty: not known.
version_to_come() {
  LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p'
}

# require_version PROGRAM LEAST ADVICE: of the program on the PATH, else of the package that is to
# be installed.
require_version() {
  local program=$1 least=$2 advice=$3 path found
  path=$(PATH=$root/.deps/root/usr/bin:$PATH command -v "$program" || true)
  if [ -n "$path" ]; then
    found=$(version_in "$("$path" --version 2>/dev/null || true)")
    at_least "$found" "$least" ||
      cannot_build "the build needs $program $least or newer, and $path is $found: $advice, or $elsewhere"
  else
    found=$(version_to_come "$program")
    at_least "$found" "$least" ||
      cannot_build "the build needs $program $least or newer, and the package sources of this machine have $found:" \
        "$advice, or $elsewhere"
  fi
}

check_machine() {
  local kernel machine name id version
  kernel=$(uname -s)
  machine=$(uname -m)
  name=$(of_distribution PRETTY_NAME)
  id=$(of_distribution ID)
  version=$(of_distribution VERSION_ID)
  [ "$kernel" = Linux ] ||
    cannot_build "Meshwright is built on Linux on x86-64 or ARM64, and this machine runs $kernel on $machine: $elsewhere"
  case $machine in
    x86_64 | aarch64) ;;
    *)
      cannot_build "Meshwright is built on x86-64 or ARM64, for which its libtorch is made, and this machine is" \
        "$machine: $elsewhere"
      ;;
  esac
  at_least "$BASH_VERSION" 4.4 ||
    cannot_build "this launcher needs bash 4.4 or newer, and $BASH is $BASH_VERSION: put a newer bash first on the PATH"
  { [ "$id" != debian ] || at_least "$version" 12; } && { [ "$id" != ubuntu ] || at_least "$version" 24.04; } ||
    cannot_build "the packages of Debian 12, Ubuntu 24.04 or newer are needed, and this machine runs ${name:-$id $version}: $elsewhere"
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    cannot_build "this launcher gets packages with apt-get, which is not here${name:+ (this machine runs $name)}: $elsewhere"
  require_version cmake "$(sed -n 's/^cmake_minimum_required(VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")" \
    'put a newer one first on the PATH (python3 -m pip install cmake)'
  require_version g++ 12 'put a newer one first on the PATH (on a cluster: module load gcc)'
  require_version python3 3.9 'put a newer one first on the PATH (on a cluster: module load python)'
}
