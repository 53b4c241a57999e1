"""The plugin nccl as tests find it: that of a CUDA build with CUDA's libraries beside it, or one
that is compiled where the toolkit is, for which stand-ins take their places."""
import importlib.util
import os
import pathlib
import subprocess
import zipfile

BUILD = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD", "build"))
SOURCE = pathlib.Path(os.environ.get("MESHWRIGHT_SOURCE", "."))
LIBTORCH = SOURCE / ".deps/libtorch"
OWN = BUILD / "lib/meshwright/plugins/nccl.so"
_specification = importlib.util.spec_from_file_location("stand_ins", SOURCE / "cmake/stand_ins.py")
_stand_ins = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(_stand_ins)
needed = _stand_ins.needed


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
    """Libraries in place of those of CUDA's that are not unpacked."""
    _stand_ins.make(LIBTORCH, folder)
