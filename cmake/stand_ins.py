"""Makes libraries that have what libtorch's CUDA side asks of CUDA's libraries, and can do nothing.

Usage: stand_ins.py LIBTORCH FOLDER

LIBTORCH has torch/lib. FOLDER gets a library for each one that libtorch's CUDA side, and PyTorch
where it is there, name and that LIBTORCH and FOLDER lack. Without a GPU nothing calls them, so that
some gigabytes need not be there.
"""
import os
import pathlib
import re
import subprocess
import sys


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "-dW", file))


def make(libtorch, folder):
    names = ("torch_cuda", "c10_cuda", "torch_nvshmem", "torch_python")
    files = [file for file in (libtorch / f"torch/lib/lib{name}.so" for name in names) if file.exists()]
    there = {file.name for place in (libtorch, folder) for file in place.rglob("*.so*")}
    missing = {name for file in files for name in needed(file) if re.match(r"lib(cu|nccl|nv)", name)} - there
    asked = {name: [] for name in missing}
    version_of = {}  # the version of the symbols of each library
    for table in "".join(said("readelf", "-VW", file) for file in files).split("File: ")[1:]:
        version_of[table.split()[0]] = re.search(r"Name: (\S+)", table)[1]
    library_of = {version: library for library, version in version_of.items()}
    for symbol in sorted({line.split()[-1] for file in files for line in said("nm", "-D", "-u", file).splitlines()}):
        name, _, version = symbol.partition("@")
        # Without a version any of them may have it.
        library = library_of.get(version) if version else "libnccl.so.2"
        if library in missing and (version or re.match("cu|nccl|nv", name)):
            asked[library].append(name)
    for library, names in asked.items():
        exported = folder / f"{library}.map"
        exported.write_text(f"{version_of.get(library, '')} {{ *; }};\n")
        text = "".join(f"void {name}(void) {{}}\n" for name in names)
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", f"-Wl,-soname,{library}",
                        f"-Wl,--version-script,{exported}", "-o", folder / library], input=text, text=True, check=True)


if __name__ == "__main__":
    make(*map(pathlib.Path, sys.argv[1:]))
