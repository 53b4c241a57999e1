"""How many compilers run side by side: as many as the cores that this process may use, and as fit
into the memory that is free. As a program it prints that number, and where memory decides it a
sentence that says so."""
import math
import os
import pathlib

GIB = 1 << 30
OF_A_UNIT = 1.3 * GIB  # that a compiler takes for the largest of our files


def groups(controller, root):
    """The folders of the control groups that limit this process, and whether they are of version 1."""
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines or ["0::/", f"1:{controller}:/"]:
        _, controllers, group = line.split(":", 2)
        trees = [(mounted / controller, True)] if controller in controllers.split(",") else []
        trees += [] if controllers else [(mounted, False), (mounted / "unified", False)]
        for tree, first in trees:
            inner = pathlib.PurePosixPath(group.lstrip("/"))
            for each in (inner, *inner.parents):
                yield tree / each, first


def numbers_in(file):
    try:
        return [float(word) for word in file.read_text().split()]
    except (OSError, ValueError):  # "max": no limit
        return []


def cores(root):
    least = len(os.sched_getaffinity(0))
    for folder, first in groups("cpu", root):
        limit = (numbers_in(folder / "cpu.cfs_quota_us") + numbers_in(folder / "cpu.cfs_period_us") if first
                 else numbers_in(folder / "cpu.max"))
        if len(limit) == 2 and min(limit) > 0:
            least = min(least, math.ceil(limit[0] / limit[1]))
    return max(1, least)


def counts_in(file):
    try:
        return dict(line.replace(":", "").split()[:2] for line in file.read_text().splitlines() if line.strip())
    except (OSError, ValueError):
        return {}


def free_memory(root):
    least = int(counts_in(root / "proc/meminfo").get("MemAvailable", 1 << 40)) * 1024
    for folder, first in groups("memory", root):
        limit = numbers_in(folder / ("memory.limit_in_bytes" if first else "memory.max"))
        used = numbers_in(folder / ("memory.usage_in_bytes" if first else "memory.current"))
        if limit and used:  # the kernel takes pages of files back where a group needs them
            files = int(counts_in(folder / "memory.stat").get("inactive_file", 0))
            least = min(least, max(0, limit[0] - used[0] + files))
    return least


def jobs(root=pathlib.Path(os.environ.get("MESHWRIGHT_SYSTEM_ROOT") or "/")):
    """The number, and a sentence where it is less than the cores; else an empty one."""
    if (given := os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "")).isdecimal() and int(given) > 0:
        return int(given), ""
    most, memory = cores(root), free_memory(root)
    number = max(1, min(most, int(memory // OF_A_UNIT)))
    if number == most:
        return number, ""
    return number, (f"{number} compiler{'s' if number > 1 else ''} at a time on {most} cores, as {memory / GIB:.1f} GiB "
                    "of memory are free and a file may need 1.3 GiB")


if __name__ == "__main__":
    print(*jobs(), sep="\n")
