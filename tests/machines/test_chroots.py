"""The ways to other machines, in root file systems of Debian's that mmdebstrap makes, without a
network: the archive of a release trains, the steps of the Apptainer recipe do what they say, and a
build with CUDA's side links from wheels that are carried. It needs root and a mirror of Debian, and
takes a quarter of an hour."""
# label: machines

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (pathlib.Path(os.environ[name]) for name in ("MESHWRIGHT_SOURCE", "MESHWRIGHT_BUILD"))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "meshwright"
PACKAGES = re.findall(r"(?m)^apt (\S+)$", (SOURCE / "cmake/deps.txt").read_text())


def setUpModule():
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise unittest.SkipTest("a root of Debian's needs root and mmdebstrap (apt-get install mmdebstrap)")


class Root:
    """A root file system of a release of Debian's."""

    def __init__(self, folder, suite, packages=()):
        self.folder = folder / suite
        include = [f"--include={','.join(packages)}"] if packages else []
        done = subprocess.run(["mmdebstrap", "--quiet", "--mode=root", "--variant=apt", *include, suite, self.folder],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"mmdebstrap {suite}: {done.stderr[-2000:]}")

    def run(self, line, network=False, user="nobody", mounts=(), **environment):
        """A line of a shell in the root: by default without a network, as a user without rights."""
        prepare = "".join(f"mkdir -p {self.folder}{to} && mount --bind {shlex.quote(str(of))} {self.folder}{to} && "
                          for of, to in [("/proc", "/proc"), ("/sys", "/sys"), ("/dev", "/dev"), *mounts])
        environment = {"HOME": "/tmp", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}
        words = [f"{name}={value}" for name, value in environment.items()]
        inner = shlex.join(["env", "-i", *words, "chroot", *([] if user == "root" else [f"--userspec={user}"]),
                            str(self.folder), "/bin/sh", "-ec", line])
        return subprocess.run(["unshare", "--mount", *([] if network else ["--net"]), "sh", "-ec", prepare + "exec " + inner],
                              capture_output=True, text=True)


def sections(recipe):
    """The sections of an Apptainer recipe, by name."""
    parts = re.split(r"(?m)^%(\w+)\n", recipe.read_text())
    return dict(zip(parts[1::2], parts[2::2]))


class Chroots(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def good(self, done):
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout + done.stderr

    def release(self):
        out = self.folder / "out"
        self.good(subprocess.run([sys.executable, SOURCE / "cmake/release.py", BUILD, out, "--level=1", "--steps=2"],
                                 capture_output=True, text=True))
        return next(out.glob("*.tar.gz"))

    def trains(self, root, program):
        text = self.good(root.run(f"cd /tmp && {program} run {program.rpartition('/bin/')[0]}/share/meshwright/scripts/"
                                  "quickstart.lua --set steps=3 --set log=/tmp/run.h5 && test -s /tmp/run.h5"))
        self.assertIn("done after 3 of 3 steps", text)

    def test_a_release_and_its_image(self):
        archive = self.release()
        for suite in ("bookworm", "trixie"):
            root = Root(self.folder, suite)
            (root.folder / "opt/release").mkdir()
            self.good(subprocess.run(["tar", "-xf", archive, "-C", root.folder / "opt/release", "--strip-components=1"],
                                     capture_output=True, text=True))
            self.trains(root, "/opt/release/bin/meshwright")
            if suite == "bookworm":  # the recipe begins with this system
                shutil.copy(archive, root.folder / "opt")
                recipe = sections(SOURCE / "scripts/containers/meshwright.def")
                self.good(root.run(recipe["post"], network=True, user="root"))
                self.good(root.run(recipe["test"]))
                self.trains(root, "/opt/meshwright/bin/meshwright")
                text = self.good(root.run(f"set -- --version\n{recipe['runscript']}"))
                self.assertIn("meshwright", text)
            shutil.rmtree(root.folder)

    def test_a_build_for_gpus_without_a_network(self):
        root = Root(self.folder, "bookworm", ["ca-certificates", *PACKAGES])
        clone = root.folder / "tmp/clone"
        self.good(subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", SOURCE, clone], capture_output=True, text=True))
        self.good(root.run("chown -R nobody /tmp/clone", user="root"))
        line = "cd /tmp/clone && ./meshwright build --preset cuda programs"
        done = root.run(line, MESHWRIGHT_WHEELS="/nowhere")
        self.assertEqual(done.returncode, 5)
        self.assertIn("with its pinned checksum in MESHWRIGHT_WHEELS (/nowhere)", done.stderr)
        self.good(root.run(line, mounts=[(CACHE / "wheels", "/carried")], MESHWRIGHT_WHEELS="/carried"))
        text = self.good(root.run("cd /tmp/clone && build-cuda/bin/meshwright run scripts/quickstart.lua --set steps=3"))
        self.assertIn("done after 3 of 3 steps", text)
        done = root.run("cd /tmp/clone && build-cuda/bin/meshwright run scripts/quickstart.lua --set device=cuda")
        self.assertEqual(done.returncode, 5, done.stdout + done.stderr)
        self.assertIn("NVIDIA", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
