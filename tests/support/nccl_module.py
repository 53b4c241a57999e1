"""The plugin nccl as tests find it: that of a CUDA build with CUDA's libraries beside it, or one
that is compiled where the toolkit is, for which stand-ins take their places."""
import os
import pathlib
import re
import subprocess
import zipfile

BUILD = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD", "build"))
SOURCE = pathlib.Path(os.environ.get("MESHWRIGHT_SOURCE", "."))
LIBTORCH = SOURCE / ".deps/libtorch"
OWN = BUILD / "lib/meshwright/plugins/nccl.so"


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(file):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "-d", file))


def cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "meshwright"


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))).decode()


def built(test):
    """The module: this build's own, or compiled now. Skips the test where there can be none."""
    if OWN.exists():
        return OWN
    state = (BUILD / "nccl.txt").read_text().strip()
    if state != "check":
        test.skipTest(f"the plugin nccl is left out: {state}")
    done = subprocess.run(["cmake", "--build", BUILD, "--target", "check_nccl"], capture_output=True, text=True)
    test.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
    return BUILD / "checked" / "nccl_checked.so"


def stand_ins(folder):
    """Libraries that have what libtorch's CUDA side asks of CUDA's, and can do nothing, for those that
    are not unpacked. Nothing calls them where there is no GPU."""
    files = [LIBTORCH / f"torch/lib/lib{name}.so" for name in ("torch_cuda", "c10_cuda", "torch_nvshmem")]
    there = {file.name for file in LIBTORCH.rglob("*.so*")}
    missing = {name for file in files for name in needed(file) if re.match(r"lib(cu|nccl|nv)", name)} - there
    asked = {name: [] for name in missing}
    version_of = {}  # by library: of its symbols
    for table in "".join(said("readelf", "-V", file) for file in files).split("File: ")[1:]:
        version_of[table.split()[0]] = re.search(r"Name: (\S+)", table)[1]
    library_of = {version: library for library, version in version_of.items()}
    for symbol in {line.split()[-1] for file in files for line in said("nm", "-D", "-u", file).splitlines()}:
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
