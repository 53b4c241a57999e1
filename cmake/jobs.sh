#!/usr/bin/env bash
# Prints how many compilers run side by side: one for each core that this process may use, and only
# as many as fit into the free memory. Where memory decides, a second line says so.
system=${MESHWRIGHT_SYSTEM_ROOT-}
unit=$((13 * (1 << 30) / 10)) # bytes that a compiler takes for the largest of our files

if [[ ${CMAKE_BUILD_PARALLEL_LEVEL-} =~ ^[1-9][0-9]*$ ]]; then
  echo "$CMAKE_BUILD_PARALLEL_LEVEL"
  exit
fi

number_in() { # FILE: its number, or nothing where there is none ("max": no limit)
  local number=
  { read -r number <"$1"; } 2>/dev/null
  [[ ! $number =~ ^[0-9]+$ ]] || echo "$number"
}
count_in() { # FILE NAME: the number in the line of this name; 0: there is none
  local count
  count=$(sed -n "s/^$2:\{0,1\} *\([0-9]*\).*/\1/p" "$1" 2>/dev/null)
  echo "${count:-0}"
}

cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
free=$(($(count_in "$system/proc/meminfo" MemAvailable) * 1024))
((free > 0)) || free=$((1 << 50))

# Each control group of this process and those around it. Those of version 1 have a tree for each
# controller.
groups=$(cat "$system/proc/self/cgroup" 2>/dev/null || printf '0::/\n1:cpu,memory:/\n')
while IFS=: read -r _ controllers group; do
  for tree in ${controllers//,/ } ${controllers:-. unified}; do
    part=$group
    for (( ; ; )); do
      folder=$system/sys/fs/cgroup/$tree${part%/}
      quota= period=
      { read -r quota period <"$folder/cpu.max"; } 2>/dev/null ||
        { quota=$(number_in "$folder/cpu.cfs_quota_us") period=$(number_in "$folder/cpu.cfs_period_us"); }
      if [[ $quota =~ ^[1-9][0-9]*$ && $period =~ ^[1-9][0-9]*$ ]]; then
        limit=$(((quota + period - 1) / period))
        ((limit >= cores)) || cores=$limit
      fi
      limit=$(number_in "$folder/memory.max")$(number_in "$folder/memory.limit_in_bytes")
      used=$(number_in "$folder/memory.current")$(number_in "$folder/memory.usage_in_bytes")
      if [[ $limit && $used ]]; then # the kernel takes pages of files back where a group needs them
        left=$((limit - used + $(count_in "$folder/memory.stat" inactive_file)))
        ((left >= free)) || free=$((left > 0 ? left : 0))
      fi
      [[ ${part%/} ]] || break
      part=${part%/*}
    done
  done
done <<<"$groups"

jobs=$((free / unit > 0 ? free / unit : 1))
((jobs < cores)) || { echo "$cores" && exit; }
echo "$jobs"
printf '%d compiler%s at a time on %d cores, as %d.%d GiB of memory are free and a file may need 1.3 GiB\n' "$jobs" \
  "$( ((jobs == 1)) || echo s)" "$cores" $((free >> 30)) $((free * 10 / (1 << 30) % 10))
