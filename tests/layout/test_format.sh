#!/usr/bin/env bash
# label: unit
# Every C++ file of ours looks as clang-format leaves it.
set -euo pipefail
cd "${MESHWRIGHT_SOURCE:?}"

# Without a .git folder (an unpacked archive) the same files are found by folder.
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.cpp' '*.h' 2>/dev/null |
  while read -r file; do [[ -f $file ]] && echo "$file"; done)
((${#files[@]})) || mapfile -t files < <(find core libs app plugins tests bench cmake -name '*.cpp' -o -name '*.h')
((${#files[@]})) || {
  echo "found no C++ file in $PWD"
  exit 1
}

echo "${#files[@]} files"
findings=$(clang-format --dry-run --Werror "${files[@]}" 2>&1) && exit 0
# A file is named once for every line that would change.
sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: error.*/not formatted: \1/p' <<<"$findings" | sort -u
grep -q 'error:' <<<"$findings" || echo "$findings"
echo "run ./meshwright format"
exit 1
