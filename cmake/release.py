"""Makes the archive of a release from a build folder, and tries it where nothing else is.

Usage: release.py BUILD OUT [--level N] [--steps N]

OUT gets meshwright-VERSION-linux-ARCH.tar.gz and its .sha256: the program, its plugins, the kit for
plugins of one's own, libtorch, every library that the program needs but those of the C and C++
compilers, and the licences of all. Of a build folder of the presets cuda and cuda12, libtorch has
its CUDA side, and all that this loads but the driver; the name then says of which CUDA
(meshwright-VERSION-cuda13-linux-ARCH.tar.gz). The archive is then unpacked into a root of its
own that has these libraries alone, and the quickstart runs there: whatever it needs of the source
folder, the build folder or this machine is missing there, and fails the release.
Exit codes: 0, 5.
"""
import argparse
import fnmatch
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
UNPACKED = SOURCE / ".deps/root"
# A machine's own: they go with its kernel, its loader and its compilers, and are not brought along.
MACHINES_OWN = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s))\.so(\.\d+)*$")
SITES_OWN = ("mpi.so",)  # modules whose libraries a site brings
DRIVERS = {"13": "580", "12": "525"}  # the oldest driver of NVIDIA's that runs programs of a CUDA
# What is compiled in or copied, beside the libraries that are found by their names.
COMPILED_IN = ("libboost1.74-dev", "libboost-dev", "libboost1.83-dev", "libcli11-dev", "nlohmann-json3-dev", "libfmt-dev",
               "libxxhash-dev", "libjs-chart.js", "dict-gcide")
README = """\
Meshwright {version}, for Linux on {arch}

{driver}It needs glibc {glibc} or newer and a libstdc++ with GLIBCXX_{glibcxx} (3.4.29 came with GCC 11), and nothing else:

    bin/meshwright run share/meshwright/scripts/quickstart.lua

share/meshwright/README.md says what it is, share/meshwright/docs/ has its pages, licenses/ the licences of all
that is in here and is not its own. A plugin of your own needs g++ of the version that built this ({compiler}) and
the headers of Boost, fmt and nlohmann's JSON: share/meshwright/docs/plugins.md. Runs of several processes need an
OpenMPI 4 of the machine's. Figures (report --figures) need python3 with numpy and matplotlib, calibrate --from needs numpy.
--sandbox needs bubblewrap (bwrap).
"""


DRIVER = """\
For GPUs it needs NVIDIA's driver {driver} or newer (nvidia-smi shows it), and nothing else of CUDA. It has libtorch {torch}
and the libraries of CUDA {cuda}.

"""


class Failed(Exception):
    pass


def call(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Failed(f"{command[0]} failed ({done.returncode}): {' '.join(map(str, command))}\n"
                     f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def of_cache(build, name):
    found = re.search(rf"(?m)^{name}:\w+=(.*)$", (build / "CMakeCache.txt").read_text())
    if not found:
        raise Failed(f"{build}/CMakeCache.txt has no {name}; run ./meshwright build, then start again")
    return found[1]


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def search_path(path):
    """What the loader looks through for the libraries of a file, as the file says it."""
    found = re.search(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", call("readelf", "-dW", path, env={**os.environ, "LC_ALL": "C"}))
    return found[1] if found else ""


def cuda_of(build):
    """The version of CUDA, such as "13", of a build folder's libtorch; empty: the build has no CUDA side."""
    if not re.search(r"(?m)^MESHWRIGHT_CUDA:\w+=ON$", (build / "CMakeCache.txt").read_text()):
        return ""
    (runtime,) = (pathlib.Path(of_cache(build, "MESHWRIGHT_DEPS_DIR")) / "libtorch").glob("nvidia/*/lib/libcudart.so.*")
    return runtime.name.rpartition(".")[2]


def install(build, stage):
    call("cmake", "--install", build, "--prefix", stage)
    call("cmake", "--install", build, "--prefix", stage, "--component", "libtorch")
    if not cuda_of(build):  # .deps may have what other builds unpacked
        folder = stage / "lib/meshwright/libtorch"
        lines = map(str.split, (SOURCE / "cmake/deps.txt").read_text().splitlines())
        patterns = [pattern for words in lines if words[:1] in (["cuda"], ["keep-cuda"]) for pattern in words[2:]]
        for path in folder.rglob("*"):
            if path.is_file() and any(fnmatch.fnmatch(str(path.relative_to(folder)), pattern) for pattern in patterns):
                path.unlink()
    for path in sorted(stage.rglob("*")):
        if not is_elf(path):
            continue
        old = search_path(path)
        own = ":".join(part for part in old.split(":") if part.startswith("$ORIGIN"))
        if own != old:  # as the installation itself does; CMake's page does not mention it
            script = f'file(RPATH_CHANGE FILE "{path}" OLD_RPATH "{old}" NEW_RPATH "{own}")\n'.replace("$", "\\$")
            with tempfile.NamedTemporaryFile("w", suffix=".cmake") as file:
                file.write(script)
                file.flush()
                call("cmake", "-P", file.name)
    config = stage / "lib/cmake/Meshwright/MeshwrightConfig.cmake"
    config.write_text(re.sub(r'set\(MESHWRIGHT_DEPS_DIR "/[^"]*"\)',
                             'message(FATAL_ERROR "There is no lib/meshwright/libtorch in ${PACKAGE_PREFIX_DIR}.")',
                             config.read_text()))


def libraries(build):
    """Path on this machine of each library that the program and its plugins need of it."""
    found = {}
    modules = [path for path in (build / "lib/meshwright/plugins").glob("*.so") if path.name not in SITES_OWN]
    ours = (build.resolve(), pathlib.Path(of_cache(build, "MESHWRIGHT_DEPS_DIR")) / "libtorch")
    for path in (build / "bin/meshwright", *modules):
        for name, where in re.findall(r"(?m)^\s*(\S+) => (.*?)(?: \(0x[0-9a-f]+\))?$", call("ldd", path)):
            if not where.startswith("/"):
                raise Failed(f"this machine has no {name}, which {path} needs")
            # Not resolved, as links may lead anywhere.
            lies = pathlib.Path(os.path.normpath(where))
            if not MACHINES_OWN.match(name) and not any(lies.is_relative_to(one) for one in ours):
                found[name] = pathlib.Path(where)
    return found


def package_of(path):
    """The Debian package that a library comes from, and the root below which its documents lie."""
    if path.resolve().is_relative_to(UNPACKED):
        name = str(path.resolve().relative_to(UNPACKED))
        for listing in (UNPACKED / ".lists").iterdir():
            if any(line.removeprefix("./").removeprefix("usr/") == name.removeprefix("usr/")
                   for line in listing.read_text().splitlines()):
                return listing.name, UNPACKED
        raise Failed(f"no package in {UNPACKED} is known to hold {name}; remove .deps and start again")
    # dpkg knows a file by the path that its package gave, before /lib became a link.
    for name in (path.resolve(), str(path.resolve()).removeprefix("/usr"), path):
        done = subprocess.run(["dpkg-query", "-S", str(name)], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.split(":")[0], pathlib.Path("/")
    raise Failed(f"no package is known to hold {path}, so its licence is not known either")


def bring_libraries(stage, build):
    folder, licences = stage / "lib/meshwright/system", stage / "licenses"
    folder.mkdir()
    licences.mkdir()
    packages = {}
    for name, path in sorted(libraries(build).items()):
        shutil.copyfile(path.resolve(), folder / name)
        package, root = package_of(path)
        packages[package] = root
    for package in COMPILED_IN:
        for root in (UNPACKED, pathlib.Path("/")):
            if (root / "usr/share/doc" / package / "copyright").is_file():
                packages.setdefault(package, root)
    for package, root in packages.items():
        text = root / "usr/share/doc" / package / "copyright"
        if not text.is_file():
            raise Failed(f"{package} has no licence at {text}")
        shutil.copyfile(text, licences / f"{package}.txt")


def wheel_pins(cuda):
    """The words of the lines of deps.txt whose wheels are in the archive."""
    kinds = {"": ("wheel",), "13": ("wheel", "wheel-cuda"), "12": ("wheel-cuda12",)}[cuda]
    lines = map(str.split, (SOURCE / "cmake/deps.txt").read_text().splitlines())
    return [words for words in lines if words and words[0] in [f"{kind}/{platform.machine()}" for kind in kinds]]


def bring_wheel_licences(stage, wheels, cuda):
    for words in wheel_pins(cuda):
        with zipfile.ZipFile(wheels / words[4]) as archive:
            wanted = re.compile(r"^(?:[^/]*\.dist-info/(?:licenses/)?|nvidia/\w+/)((?:.*/)?(?:LICEN[CS]E|License|NOTICE)[^/]*)$")
            texts = [found for found in map(wanted.search, archive.namelist()) if found]
            if not texts:
                raise Failed(f"{words[4]} has no licence in it")
            for found in texts:
                target = stage / "licenses" / words[1] / found[1]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(found[0]))


def newest(stage, prefix):
    """The newest version of a symbol that a file in the folder asks for."""
    found = {tuple(map(int, version.split(b"."))) for path in stage.rglob("*") if is_elf(path)
             for version in re.findall(rb"\0" + prefix + rb"_(\d+(?:\.\d+)+)(?=\0)", path.read_bytes())}
    return ".".join(map(str, max(found)))


def check_names(stage, build):
    """No file names the source folder or the build folder."""
    names = {str(SOURCE).encode() + b"/", str(build.resolve()).encode() + b"/"}
    for path in stage.rglob("*"):
        if path.is_symlink() and os.path.isabs(os.readlink(path)):
            raise Failed(f"{path.relative_to(stage)} is a link to {os.readlink(path)}, which no other machine has")
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes()
            for name in names:
                if name in text:
                    at = text.index(name)
                    raise Failed(f"{path.relative_to(stage)} names {text[at:at + 100].split(bytes(1))[0]!r}")
        if is_elf(path) and any(part and not part.startswith("$ORIGIN") for part in search_path(path).split(":")):
            raise Failed(f"{path.relative_to(stage)} is looked for in {search_path(path)}")


def of_nobody(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def pack(stage, archive, level):
    with tarfile.open(archive, "w:gz", compresslevel=level) as tar:
        tar.add(stage, stage.name, filter=of_nobody)
    with archive.open("rb") as file:
        total = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
    archive.with_name(f"{archive.name}.sha256").write_text(f"{total.hexdigest()}  {archive.name}\n")


def own_root():
    """How to start a program in a root of its own here, without a right that a user lacks; None if not at all."""
    for words in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
            return words
    return None


def make_root(folder, archive):
    """A root that has the archive's files and the libraries that it may expect, no shell and no compiler."""
    for name in ("dev", "proc", "sys", "tmp", "home", "lib"):
        (folder / name).mkdir()
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))
    kit = folder / archive.name.removesuffix(".tar.gz")
    program = kit / "bin/meshwright"
    loader = re.search(r"interpreter: (\S+)\]", call("readelf", "-lW", program, env={**os.environ, "LC_ALL": "C"}))[1]
    (folder / loader[1:]).parent.mkdir(exist_ok=True)
    shutil.copyfile(pathlib.Path(loader).resolve(), folder / loader[1:])
    (folder / loader[1:]).chmod(0o755)
    for name, where in re.findall(r"(?m)^\s*(\S+) => (/\S+)", call("ldd", program)):
        if MACHINES_OWN.match(name):
            shutil.copyfile(pathlib.Path(where).resolve(), folder / "lib" / name)
    return kit


def try_it(archive, steps):
    """Runs the quickstart from the archive, in a root of its own where the machine lets one, and loads every plugin."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        kit = make_root(folder, archive)
        script = "share/meshwright/scripts/quickstart.lua"
        settings = ["--set", f"steps={steps}"] if steps else []
        words = own_root()
        if words:
            prepare = "; ".join(f"mount --rbind /{name} '{folder}/{name}'" for name in ("proc", "sys", "dev"))
            line = f"{prepare}; exec env -i HOME=/home PATH=/nowhere {shutil.which('chroot')} '{folder}' \"$@\""
            command = [*words, "sh", "-ec", line, "sh", f"/{kit.name}/bin/meshwright", "run", f"/{kit.name}/{script}",
                       "--set", "log=/home/quickstart.h5", *settings]
            environment = None
        else:
            print("meshwright: nobody may make a root of one's own here (unshare), so the archive is tried with nothing on"
                  " its PATH alone", file=sys.stderr)
            command = [kit / "bin/meshwright", "run", kit / script, "--set", f"log={folder}/home/quickstart.h5", *settings]
            environment = {"HOME": f"{folder}/home", "PATH": "/nowhere"}
        done = subprocess.run(command, cwd=kit, env=environment, capture_output=True, text=True, timeout=900)
        if done.returncode != 0 or not (folder / "home/quickstart.h5").is_file():
            raise Failed(f"the quickstart does not run from {archive} ({done.returncode}):\n"
                         f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
        listed = subprocess.run([kit / "bin/meshwright", "plugins", "list", "--json"], cwd=kit, capture_output=True, text=True)
        bad = [line["name"] for line in map(json.loads, listed.stdout.splitlines())
               if line.get("status", "ok") not in ("ok", "not built") and f"{line['name']}.so" not in SITES_OWN]
        if listed.returncode != 0 or bad:
            raise Failed(f"plugins of {archive} cannot be loaded: {', '.join(bad)}\n{listed.stderr[-2000:]}")
        return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--level", type=int, default=6, help="of gzip: 1 (quick) to 9 (small)")
    parser.add_argument("--steps", type=int, help="of the quickstart, in place of its own")
    given = parser.parse_args()
    wheels = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "meshwright/wheels"
    try:
        version, arch = of_cache(given.build, "CMAKE_PROJECT_VERSION"), platform.machine()
        cuda = cuda_of(given.build)
        name = f"meshwright-{version}-{f'cuda{cuda}-' if cuda else ''}linux-{arch}"
        driver = ""
        if cuda:
            torch = next(words[2] for words in wheel_pins(cuda) if words[1] == "torch")
            driver = DRIVER.format(driver=DRIVERS[cuda], torch=torch, cuda=cuda)
            print(driver.strip(), file=sys.stderr)
        given.out.mkdir(parents=True, exist_ok=True)
        archive = given.out / f"{name}.tar.gz"
        with tempfile.TemporaryDirectory(dir=given.out) as temporary:
            stage = pathlib.Path(temporary).resolve() / name
            install(given.build, stage)
            bring_libraries(stage, given.build)
            bring_wheel_licences(stage, wheels, cuda)
            compiler = call(of_cache(given.build, "CMAKE_CXX_COMPILER"), "-dumpfullversion").strip()
            (stage / "README.txt").write_text(README.format(
                version=version, arch=arch, compiler=compiler, driver=driver, glibc=newest(stage, b"GLIBC"),
                glibcxx=newest(stage, b"GLIBCXX")))
            check_names(stage, given.build)
            pack(stage, archive, given.level)
        said = try_it(archive, given.steps)
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"meshwright: no release: {error}", file=sys.stderr)
        return 5
    print(said, end="")
    print(f"{archive}\n{archive}.sha256")
    return 0


if __name__ == "__main__":
    sys.exit(main())
