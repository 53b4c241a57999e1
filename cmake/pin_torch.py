"""Pins the wheels of a version of PyTorch in deps.txt: its lines `wheel…`, for each architecture.

Usage: pin_torch.py VERSION [12]      (12: the lines of the preset cuda12)

The lines that say what is unpacked (`keep`, `keep-cuda`, `keep-cuda12`) name the wheels. Versions
and checksums are what pip would install of PyTorch VERSION; pip downloads only what it must know
for that. CONTRIBUTING.md says what to do before and after a change of version.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

DEPS = pathlib.Path(__file__).resolve().parent / "deps.txt"
# The launcher downloads wheels with these tags (wheel_platforms in launcher.sh).
GLIBC = ("2010", "2014", *(f"_2_{minor}" for minor in range(5, 40)))


def installed(requirements, architecture):
    """Name, version, checksum and file of each wheel that pip would install. pip reads what depends on the architecture as
    on this machine; PyTorch's wheels of Linux ask for the same on all."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report,
                        "--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--target", folder,
                        *(f"--platform=manylinux{glibc}_{architecture}" for glibc in GLIBC),
                        *requirements], check=True)
        return {each["metadata"]["name"].lower():
                (each["metadata"]["version"], each["download_info"]["archive_info"]["hashes"]["sha256"],
                 each["download_info"]["url"].rsplit("/", 1)[1])
                for each in json.loads(report.read_text())["install"]}


def pins(version, keeps, architecture):
    found = installed([f"torch=={version}"], architecture)
    # Headers that PyTorch does not ask for are of the version of CUDA's runtime.
    runtime = next(v for name, (v, *_) in found.items() if name.startswith("nvidia-cuda-runtime"))
    rest = [name for name in keeps if name not in found]
    if rest:
        minor = ".".join(runtime.split(".")[:2])
        found.update(installed([f"{name}=={minor}.*" for name in rest], architecture))
    return {name: found[name] for name in keeps}


def main(version, suffix=""):
    lines = DEPS.read_text().splitlines()
    architectures = ("x86_64", "aarch64") if not suffix else ("x86_64",)  # the wheels of 2.10 for ARM64 have no CUDA
    kinds = {"keep": "wheel", "keep-cuda": "wheel-cuda"} if not suffix else {"keep-cuda12": "wheel-cuda12"}
    keeps = {} if not suffix else {"torch": "wheel-cuda12"}
    for words in map(str.split, lines):
        if words and words[0] in kinds:
            keeps.setdefault(words[1], kinds[words[0]])
    old = re.compile(rf"({'|'.join(set(kinds.values()))})(/\w+)? ")
    places = [i for i, line in enumerate(lines) if old.match(line)]
    new = [f"{keeps[name]}/{architecture} {name} {' '.join(pin)}" for architecture in architectures
           for name, pin in pins(version, list(keeps), architecture).items()]
    start = places[0] if places else len(lines)
    lines = [line for i, line in enumerate(lines) if i not in places]
    DEPS.write_text("\n".join([*lines[:start], *new, *lines[start:]]) + "\n")


if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["12"]):
    sys.exit(__doc__)
try:
    main(*sys.argv[1:])
except subprocess.CalledProcessError as error:
    sys.exit(f"pip finds no wheels of PyTorch {sys.argv[1]} ({error.returncode}); what it says stands above")
