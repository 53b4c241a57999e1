#!/usr/bin/env bash
# Packages are fetched from the machine's own sources and unpacked by somebody who is not root: a
# program of one runs, and a library of another is compiled against, linked and loaded.
set -euo pipefail
source_root=${MESHWRIGHT_SOURCE:?}
left_out=77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/clone"
cp -r "$source_root/cmake" "$work/clone/"
printf 'apt hello\napt libargon2-dev\napt pkg-config\napt g++\napt python3\n' >"$work/clone/cmake/deps.txt"
chmod -R a+rX "$work"

cat >"$work/try.sh" <<'TRY'
set -euo pipefail
root=$1 cache=$root/cache exit_environment=5
cd "$root"
source cmake/launcher.sh
mkdir -p .deps
# As on a machine that has neither: another package's test may have installed them.
dpkg-query() { command dpkg-query "$@" | grep -vE ' (hello|libargon2-dev)$'; }
ensure_packages apt
use_unpacked
[[ $(command -v hello) == "$root/.deps/root/usr/bin/hello" ]]
hello >/dev/null
export PKG_CONFIG_PATH=$root/.deps/root/usr/lib/$multiarch/pkgconfig
[[ $(realpath "$(pkg-config --variable=prefix libargon2)") == "$root/.deps/root/usr" ]]
printf '#include <argon2.h>\nint main() { return argon2_error_message(ARGON2_OK) == nullptr; }\n' >main.cpp
g++ -I"$root/.deps/root/usr/include" main.cpp -o main -L"$root/.deps/root/usr/lib/$multiarch" $(pkg-config --libs libargon2)
[[ $(ldd ./main) =~ libargon2\.so[^[:space:]]*' => /' ]]
./main
# Asked again, nothing is fetched.
[[ -z $(missing_packages apt | grep -E 'hello|argon2') ]]
echo unpacked
TRY

as_nobody=()
if [[ $(id -u) == 0 ]]; then
  chown -R 65534:65534 "$work"
  as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
status=0
"${as_nobody[@]}" env HOME="$work" timeout 600 bash "$work/try.sh" "$work/clone" >"$work/out" 2>"$work/err" || status=$?
cat "$work/out" "$work/err"
if ((status != 0)) && [[ -z ${CI:-} ]] &&
  grep -qE 'Could not resolve|Failed to fetch|Cannot initiate|Unable to locate package' "$work/clone/.deps/apt.log"; then
  echo "left out: no packages can be downloaded here"
  exit "$left_out"
fi
((status == 0)) && grep -qxF unpacked "$work/out"
