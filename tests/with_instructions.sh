#!/usr/bin/env bash
# Runs a command whose libraries keep to an instruction set: with_instructions.sh avx2|default
# COMMAND… Ends with 77 where this CPU lacks it: one above the CPU's own would be an
# illegal instruction.
set -euo pipefail
case $1 in
  avx2)
    grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo || exit 77
    export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
    ;;
  default) export ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 ;;
  *)
    echo "no such instruction set: $1; there are avx2 and default" >&2
    exit 2
    ;;
esac
shift
"$@" || exit 1 # Catch2 ends with the number of failures, which may be 77
