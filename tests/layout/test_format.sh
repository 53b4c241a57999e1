#!/usr/bin/env bash
# label: unit
# Every C++ file of ours looks as clang-format leaves it.
set -euo pipefail
cd "${MESHWRIGHT_SOURCE:?}"

# Without a .git folder (an unpacked archive) the same files are found by folder.
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.cpp' '*.h' 2>/dev/null |
  while read -r file; do [[ -f $file ]] && echo "$file"; done)
((${#files[@]})) || mapfile -t files < <(find core plugins tests bench cmake -name '*.cpp' -o -name '*.h')
((${#files[@]})) || {
  echo "found no C++ file in $PWD"
  exit 1
}

bad=0
for file in "${files[@]}"; do
  clang-format --dry-run --Werror "$file" 2>/dev/null || {
    echo "not formatted: $file"
    bad=$((bad + 1))
  }
done
echo "${#files[@]} files, $bad not formatted"
((bad == 0)) || {
  echo "run ./meshwright format"
  exit 1
}
