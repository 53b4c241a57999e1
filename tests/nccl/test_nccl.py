"""What carries processes over NCCL compiles, links and loads wherever the CUDA toolkit is or the
cuda preset was built, and is the only module that needs libtorch's CUDA side."""
# label: unit

import os
import platform
import re
import shutil
import subprocess
import unittest

import nccl_module
from cases import SCRIPT, ProgramCase
from nccl_module import BUILD, needed

CUDA = 'e.device = "cuda"'
GPU = os.path.exists("/dev/nvidiactl")
# libtorch_cpu itself needs CUDA's runtime and CUPTI, which are idle then.
OF_CUDA = re.compile(r"lib(torch_cuda|c10_cuda|torch_nvshmem|cublas|cudnn|cufft|cusolver|cusparse|nccl|nvshmem|cuda)\b")
OLD_DRIVER = "int cuInit(unsigned f) { return 0; }\nint cuDriverGetVersion(int* v) { *v = 12040; return 0; }\n"


class Nccl(unittest.TestCase):
    def test_it_links(self):
        module = nccl_module.built(self)
        self.assertIn("libtorch_cuda.so", needed(module))
        undefined = subprocess.run(["nm", "-D", "-u", "-C", module], capture_output=True, text=True, check=True).stdout
        self.assertIn("c10d::ProcessGroupNCCL", undefined)
        provided = subprocess.run(["nm", "-D", "--defined-only", module], capture_output=True, text=True,
                                  check=True).stdout.split("\n")
        self.assertEqual([line.split()[-1] for line in provided if line], ["meshwright_plugin"])

    def test_nothing_else_needs_cuda(self):
        files = [*BUILD.glob("lib/**/*.so"), *BUILD.glob("bin/meshwright")]
        self.assertGreater(len(files), 5)
        for file in files:
            if file.stem != "nccl":
                self.assertEqual([name for name in needed(file) if "cuda" in name or "nccl" in name], [], file)


class Pins(unittest.TestCase):
    """What libtorch's CUDA side loads is pinned for the presets of CUDA, and for no other build."""

    def setUp(self):
        self.pins = [line.split() for line in (nccl_module.SOURCE / "cmake/deps.txt").read_text().splitlines() if line[:1].isalpha()]

    def wheels(self, *kinds, architecture=platform.machine()):
        """Of these kinds, by name: the version and the file."""
        return {pin[1]: (pin[2], pin[4]) for pin in self.pins if pin[0] in [f"{kind}/{architecture}" for kind in kinds]}

    def test_versions_are_those_that_torch_asks_for(self):
        seen = 0
        for kinds in (("wheel", "wheel-cuda"), ("wheel-cuda12",)):
            wheels = self.wheels(*kinds)
            file = nccl_module.cache() / "wheels" / wheels["torch"][1]
            if not file.exists():  # the preset was not built here
                continue
            asked = re.findall(r"^Requires-Dist: (nvidia-[\w-]+)==([\d.]+)", nccl_module.metadata(file), re.M)
            self.assertGreaterEqual(len(asked), 4)
            for name, version in asked:
                if not name.startswith("nvidia-nvtx"):  # only profilers load it
                    self.assertEqual(wheels.get(name, [None])[0], version, name)
            seen += 1
        if seen == 0:
            self.skipTest("no wheel of PyTorch is in the cache")

    def test_both_architectures_have_the_same(self):
        for kinds in (("wheel",), ("wheel-cuda",)):
            here, there = ({name: version for name, (version, _) in self.wheels(*kinds, architecture=architecture).items()}
                           for architecture in ("x86_64", "aarch64"))
            self.assertEqual(here, there)
            self.assertTrue(here)

    def test_every_library_has_its_wheel(self):
        seen = 0
        for libtorch, kinds in ((nccl_module.LIBTORCH, ("keep", "keep-cuda")),
                                (nccl_module.SOURCE / ".deps/cuda12/libtorch", ("keep", "keep-cuda12"))):
            library = libtorch / "torch/lib/libtorch_cuda.so"
            if not library.exists():  # the preset was not built here
                continue
            kept = " ".join(" ".join(pin[2:]) for pin in self.pins if pin[0] in kinds)
            names = [name for file in ("cuda", "cuda_linalg", "nvshmem") for name in needed(library.with_stem(f"libtorch_{file}"))]
            names = {name for name in names if re.match(r"lib(cu|nccl|nv)", name)}
            self.assertGreater(len(names), 8)
            for name in names:
                # A line keeps all libraries of cuDNN, and one those of NVSHMEM.
                self.assertIn(re.sub(r"^lib(cudnn|nvshmem).*", r"\1", name), kept)
            seen += 1
        if seen == 0:
            self.skipTest("libtorch's CUDA side is not unpacked")

    def test_other_builds_fetch_none_of_it(self):
        self.assertEqual(sorted(self.wheels("wheel")), ["nvidia-cuda-cupti", "nvidia-cuda-runtime", "torch"])


class Loading(ProgramCase):
    """The plugin loads without a GPU: what then cannot run says why in one error, and a run on CPUs loads nothing of
    CUDA's."""

    def setUp(self):
        super().setUp()
        if re.search("^MESHWRIGHT_SANITIZE:.*=.", (BUILD / "CMakeCache.txt").read_text(), re.M):
            self.skipTest("libtorch's CUDA side knows no sanitizer")
        module = nccl_module.built(self)
        self.environment = {}
        self.own = module == nccl_module.OWN
        if not self.own:
            (self.folder / "plugins").mkdir()
            shutil.copy(module, self.folder / "plugins/nccl.so")
            self.environment["MESHWRIGHT_PLUGIN_PATH"] = str(self.folder / "plugins")

    def with_stand_ins(self):
        folder = self.folder / "stand-ins"
        folder.mkdir()
        if not self.own:
            nccl_module.stand_ins(folder)
        self.environment["LD_LIBRARY_PATH"] = str(folder)
        return folder

    def ask(self, *arguments, **environment):
        return self.call(*arguments, **self.environment, **environment)

    def check(self, name):
        done = self.ask("doctor", "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return next((line for line in self.lines(done) if line["name"] == name), None)

    def error(self, script):
        """The one error of a run that starts nothing."""
        done = self.ask("run", self.write(script), "--json", "--quiet")
        self.assertEqual(done.returncode, 5, done.stdout + done.stderr)
        self.assertNotIn("Warning", done.stderr)
        found, = [line for line in self.lines(done) if line["kind"] == "error"]
        self.assertEqual(found["key"], "device")
        return found

    def loaded(self, script):
        """What of CUDA's a run maps, and its exit code."""
        done = self.ask("run", self.write(script), "--quiet", LD_DEBUG="files",
                        LD_DEBUG_OUTPUT=str(self.folder / "loads"))
        files = [re.findall(r"calling init: (\S+)", file.read_text()) for file in self.folder.glob("loads.*")]
        names = [name for each in files for name in each]
        self.assertTrue(any("libtorch_cpu" in name for name in names), names)
        for file in self.folder.glob("loads.*"):
            file.unlink()
        return [name for name in names if OF_CUDA.search(name)], done.returncode

    def test_the_program_has_it(self):
        self.with_stand_ins()
        self.assertIsNone(self.check("plugin nccl"))
        self.assertIn("nccl", self.check("plugins")["found"])
        done = self.ask("plugins", "list", "--json")
        named = [line for line in self.lines(done) if line.get("name") == "nccl"]
        self.assertEqual([(line["status"], each["kind"]) for line in named for each in line["brings"]],
                         [("ok", "communicator")], done.stdout[-2000:])

    @unittest.skipIf(GPU, "this machine has a GPU")
    def test_without_a_driver(self):
        self.with_stand_ins()
        found = self.error(SCRIPT % ("dp(2)", CUDA))
        self.assertEqual(found["code"], "device.none")
        self.assertIn(": Found no NVIDIA driver", found["message"])
        # A run on the CPU before it, which asks libtorch for its devices, changes nothing.
        found = self.error(SCRIPT % ("dp(2)", "mw.train(e) " + CUDA))
        self.assertIn(": Found no NVIDIA driver", found["message"])
        devices = self.check("devices")
        self.assertEqual(devices["status"], "warning")
        self.assertIn("Found no NVIDIA driver", devices["found"])

    @unittest.skipIf(GPU, "this machine has a GPU")
    def test_with_an_old_driver(self):
        driver = self.with_stand_ins() / "libcuda.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", driver], input=OLD_DRIVER, text=True, check=True)
        found = self.error(SCRIPT % ("dp(2)", CUDA))
        self.assertEqual(found["code"], "device.none")
        self.assertIn("too old (found version 12040)", found["message"])

    def test_a_library_that_is_missing_is_named(self):
        if self.own:
            self.skipTest("this build has all of them")
        library = sorted(self.with_stand_ins().glob("libcufile*"))
        if not library:
            self.skipTest("it is unpacked")
        library[0].unlink()
        found = self.error(SCRIPT % ("dp(2)", CUDA))
        self.assertEqual(found["code"], "device.build")
        self.assertIn("libcufile.so.0", found["message"])

    def test_a_run_on_the_cpu_loads_none_of_it(self):
        self.with_stand_ins()
        self.assertEqual(self.loaded(SCRIPT % ("dp(2), tp(2)", "")), ([], 0))
        files, code = self.loaded(SCRIPT % ("dp(2)", CUDA))
        self.assertEqual(code, 0 if GPU else 5)
        self.assertTrue(any("libtorch_cuda" in name for name in files), files)  # seen where it is loaded
        if not self.own:
            return
        # The versions that libtorch was built with, not a toolkit's.
        libtorch = str(nccl_module.LIBTORCH.resolve())
        foreign = [name for name in files if libtorch not in os.path.realpath(name) and "libcuda.so" not in name]
        self.assertEqual(foreign, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
