"""Files of the safetensors package are read, and ours are read by it."""

import os
import pathlib
import subprocess
import tempfile

import numpy as np
import safetensors
import safetensors.numpy

PROGRAM = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD", "build")) / "bin" / "test_run"


def copy(source, target):
    env = dict(os.environ, MESHWRIGHT_COPY_FROM=str(source), MESHWRIGHT_COPY_TO=str(target))
    return subprocess.run([PROGRAM, "[.copy]"], env=env, capture_output=True, text=True)


with tempfile.TemporaryDirectory() as folder:
    source, target = pathlib.Path(folder) / "a.safetensors", pathlib.Path(folder) / "b.safetensors"
    random = np.random.default_rng(0)
    arrays = {
        "model.layers.0.weight": random.standard_normal((3, 5)).astype(np.float32),
        "double": random.standard_normal((2, 2, 2)),
        "half": random.standard_normal(7).astype(np.float16),
        "long": np.arange(4),
        "flags": np.array([True, False, True]),
        "empty": np.zeros((0, 4), np.float32),
        "é": np.ones((), np.float32),
    }
    safetensors.numpy.save_file(arrays, source, metadata={"format": "pt"})
    done = copy(source, target)
    assert done.returncode == 0, done.stdout + done.stderr
    back = safetensors.numpy.load_file(target)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape, name
        assert back[name].tobytes() == array.tobytes(), name
    with safetensors.safe_open(target, "numpy") as f:
        assert f.metadata() == {"format": "pt"}

    # bfloat16, which numpy has not: through the package's raw form.
    bits = np.array([0x3F80, 0xBFC0, 0x7F80, 0x0001], np.uint16)
    spec = safetensors.TensorSpec(dtype="bfloat16", shape=[2, 2], data_ptr=bits.ctypes.data,
                                  data_len=bits.nbytes)
    source.write_bytes(safetensors.serialize({"w": spec}))
    assert copy(source, target).returncode == 0
    (name, entry), = safetensors.deserialize(target.read_bytes())
    assert (name, entry["dtype"], entry["shape"]) == ("w", "BF16", [2, 2])
    assert bytes(entry["data"]) == bits.tobytes()

    # A file cut short is refused, as the package refuses it.
    target.unlink()
    source.write_bytes(source.read_bytes()[:-1])
    assert copy(source, target).returncode != 0 and not target.exists()
print("ok")
