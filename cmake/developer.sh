# Verbs for developers, sourced by ./meshwright after launcher.sh: build, test, docs, release,
# format, lint, clean.

# Takes --preset from the arguments: sets preset and rest.
parse_preset() {
  preset=release rest=()
  while (($#)); do
    case $1 in
      --preset)
        [[ -n ${2-} ]] || { say "--preset needs a name" && exit "$exit_usage"; }
        preset=$2 && shift 2
        ;;
      --preset=*) preset=${1#*=} && shift ;;
      *) rest+=("$1") && shift ;;
    esac
  done
  case $preset in
    release | dev | asan | tsan | fuzz | cuda | cuda12 | without) ;;
    *)
      say "there is no preset '$preset'; presets: release, dev, asan, tsan, fuzz, cuda, cuda12, without"
      exit "$exit_usage"
      ;;
  esac
}

verb_build() {
  local preset rest
  parse_preset "$@"
  [[ $preset != fuzz ]] || ensure_test_packages
  ensure_dependencies "$preset"
  local stamp
  stamp=$(build_folder "$preset")/.ready
  mkdir -p "${stamp%/*}"
  touch "$stamp.new"
  build "$preset" "${rest[@]:-all}"
  if ((${#rest[@]} == 0)); then mv "$stamp.new" "$stamp"; fi
  unlock
}

# PyTorch for the tests' Python: the wheel that libtorch comes from, without what its CUDA side
# needs, for which libraries that can do nothing stand in.
install_test_torch() {
  local venv=$1 site folder name
  name=$(pins wheel | sed -n 's/^torch .* //p')
  system_pip --python "$venv/bin/python" install --quiet --no-deps "$cache/wheels/$name" </dev/null >&2 || return
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return
  folder=$site/nvidia/cu13/lib
  mkdir -p "$folder" && cp "$root"/.deps/libtorch/nvidia/cu13/lib/*.so* "$folder/" || return
  "$(system_python)" "$root/cmake/stand_ins.py" "$site" "$folder"
}

# A Python environment in the cache folder with what is pinned as one of KINDS, made anew when the
# pins change. FINISH is called with its folder, before it counts as complete. It is made without
# pip, which Debian has in a package of its own for environments: the system's pip fills it.
ensure_environment() { # NAME KINDS PROGRAM WHAT FINISH [OPTION OF PIP…]
  local venv=$cache/$1 program=$3 what=$4 finish=$5 want kind
  want=$(for kind in $2; do pins "$kind"; done)
  is_complete() { [[ -x $venv/bin/$program && $(cat "$venv/.complete" 2>/dev/null) == "$want" ]]; }
  is_complete && return 0
  (
    lock "$venv.lock"
    is_complete && exit 0
    say "installing $what (once; kept in $venv)"
    rm -rf "$venv"
    "$(system_python)" -m venv --without-pip "$venv" &&
      system_pip --python "$venv/bin/python" install --quiet "${@:6}" $want </dev/null >&2 &&
      "$finish" "$venv" &&
      printf '%s\n' "$want" >"$venv/.complete"
  ) || die "cannot install $what; what pip says of it stands above"
}
ensure_figures() { ensure_environment figures pip-figures python "Python for figures and fits" true; }
ensure_venv() { ensure_environment venv "pip pip-figures" python "the tests' Python packages" install_test_torch; }
ensure_docs_venv() { ensure_environment docs-venv pip-docs mkdocs "what makes the site of docs/" true --no-deps; }

verb_docs() {
  local folder=$root/build/docs serve=
  while (($#)); do
    case $1 in
      --serve) serve=yes && shift ;;
      -o | --output)
        [[ -n ${2-} ]] || { say "$1 needs a folder" && exit "$exit_usage"; }
        folder=$(realpath -m "$2") && shift 2
        ;;
      *) say "docs has no argument '$1'; see ./meshwright docs --help" && exit "$exit_usage" ;;
    esac
  done
  ensure_docs_venv
  # mkdocs imports the function that makes anchors by this path.
  export NO_MKDOCS_2_WARNING=1 PYTHONPATH=$root/docs/site PYTHONDONTWRITEBYTECODE=1
  cd "$root"
  if [[ -n $serve ]]; then exec "$cache/docs-venv/bin/mkdocs" serve --quiet --dev-addr 127.0.0.1:8000; fi
  "$cache/docs-venv/bin/mkdocs" build --quiet --strict --site-dir "$folder" >&2 || exit 1
  say "written: $folder/index.html"
}

# Without the rights to install them, tests that need one are left out, and say so.
ensure_test_packages() {
  local missing
  mapfile -t missing < <(missing_packages apt-test)
  ((${#missing[@]})) || return 0
  if [[ $(id -u) == 0 ]]; then
    install_packages "${missing[@]}"
  else
    say "tests of pages, and the fuzzers, are left out: sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
}

verb_test() {
  local preset rest
  parse_preset "$@"
  if [[ $preset == cuda12 ]]; then
    say "the tests are of the libtorch of the other presets; cuda12 has an older one (docs/gpu.md)"
    exit "$exit_usage"
  fi
  verb_build --preset "$preset"
  ensure_packages apt-dev
  use_unpacked
  ensure_venv
  ensure_docs_venv
  ensure_test_packages
  # Sanitizers: what libtorch, libgomp and HDF5 do uninstrumented is not ours to mend.
  local supp=$root/tests/sanitizers
  # Tests ask for more memory than there is, which must be an error of ours and not the sanitizer's;
  # and chaos preloads a library of its own.
  export ASAN_OPTIONS=${ASAN_OPTIONS-allocator_may_return_null=1:verify_asan_link_order=0}
  export LSAN_OPTIONS=${LSAN_OPTIONS-suppressions=$supp/lsan.supp:print_suppressions=0}
  export TSAN_OPTIONS=${TSAN_OPTIONS-suppressions=$supp/tsan.supp:halt_on_error=1:allocator_may_return_null=1}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS-suppressions=$supp/ubsan.supp:print_stacktrace=1:halt_on_error=1}
  # What threads of an OpenMP region in libtorch hand to each other looks like a race: tsan.supp.
  [[ $preset != tsan ]] || export OMP_THREAD_LIMIT=${OMP_THREAD_LIMIT-1}
  # The matrices and what makes roots of other systems run where they are asked for, the GPU's
  # tests where there is one.
  local skip='^(matrix|machines)$' i
  for i in "${!rest[@]}"; do
    if [[ ${rest[i]} == --label ]]; then rest[i]=-L; fi
    if [[ ${rest[i]} == *matrix* || ${rest[i]} == *machines* ]]; then skip='^$'; fi
  done
  [[ $preset == cuda ]] || skip+='|^gpu$'
  cd "$(build_folder "$preset")"
  # One more test than there are cores: many wait for a process, a timeout or a file. No verdict
  # depends on the load; a test takes a gigabyte at most.
  local jobs=$(($(nproc) + 1))
  exec ctest --output-on-failure -j $((jobs < 9 ? jobs : 9)) -LE "$skip" "${rest[@]}"
}

# The archive, and a try of it where nothing else is.
verb_release() {
  local preset=release
  case ${1-} in
    --cuda | --cuda=13) preset=cuda && shift ;;
    --cuda=12) preset=cuda12 && shift ;;
  esac
  if (($# > 1)) || [[ ${1-} == -* || ${1-} =~ ^[0-9]+$ ]]; then
    say "release takes --cuda or --cuda=12, and a folder: release --cuda dist"
    exit "$exit_usage"
  fi
  if [[ $preset == release ]]; then make_ready; else verb_build --preset "$preset" programs; fi
  use_unpacked
  exec "$(system_python)" "$root/cmake/release.py" "$(build_folder "$preset")" "${1:-$root/dist}"
}

own_files() { (cd "$root" && git ls-files -co --exclude-standard '*.cpp' '*.h'); }

verb_format() {
  ensure_packages apt-dev
  use_unpacked
  (cd "$root" && own_files | xargs -r clang-format -i)
}

# clang-tidy reads no precompiled header of g++, so it has a configuration of its own, never built.
verb_lint() {
  ensure_dependencies release
  ensure_packages apt-dev
  build release all
  configure lint "$root/build-lint/configure.log"
  unlock
  cd "$root"
  own_files | xargs -r clang-format --dry-run --Werror || exit 1
  exec "$(system_python)" cmake/tidy.py "$cache/tidy" "$@"
}

verb_clean() { rm -rf "$root"/build "$root"/build-{dev,asan,tsan,fuzz,cuda,cuda12,without,lint} "$root/.deps"; }
