"""What users read run files with: h5py, pandas, PyTables, xarray."""

import json
import pathlib
import tempfile
import warnings

import h5py
import numpy as np
import pandas as pd
import tables
import xarray as xr

import run_file_tools

COLUMNS = {
    "steps": "step seconds loss grad_norm lr tokens tokens_per_second mfu bubble cpu_seconds others_cores "
             "throttled_cores clock",
    "memory": "rank stage category bytes peak_bytes predicted_bytes",
    "rank_memory": "rank stage bytes peak_bytes predicted_bytes",
    "communication": "step rank axis op phase calls bytes seconds predicted_bytes predicted_seconds",
    "work": "step rank stage op piece calls flops seconds",
    "experts": "step layer expert chosen taken",
    "actions": "step rank stage chunk action microbatch start end",
    "predicted_actions": "rank stage chunk action microbatch start end",
    "events": "time step rank kind message",
    "trace": "step rank stage kind axis name phase label microbatch start end bytes",
    "predicted_trace": "step rank stage kind axis name phase label microbatch start end bytes",
    "trace_memory": "step rank time parameters gradients optimizer activations buffers host",
    "predicted_trace_memory": "step rank time parameters gradients optimizer activations buffers host",
    "account": "step rank stage part name shape calls kernels seconds flops bytes limit_seconds",
    "bandwidth": "kind ranks bytes bytes_per_second",
}
# Columns that count or name things; all others have a unit.
NAMES = set("step rank stage chunk microbatch layer expert category axis op phase piece action kind message name label part shape".split())
STEPS = 1300  # more than one chunk


def check_h5py(path):
    with h5py.File(path) as f:
        attributes = dict(f.attrs)
        assert attributes["schema"] == b"meshwright.run/1", attributes
        assert attributes["status"] == b"done"
        assert attributes["seed"] == 42
        assert attributes["host"] and attributes["created"].endswith(b"Z")
        versions = json.loads(attributes["versions"])
        assert versions["torch"] == "2.15.0" and "hdf5" in versions
        assert f["script"].asstr()[()] == 'local mw = require "meshwright"  -- é\n'
        assert json.loads(f["plan"][()]) == {"ranks": 8}
        for table, columns in COLUMNS.items():
            assert " ".join(f[table].dtype.names) == columns, f[table].dtype
            units = {name[len("units_"):] for name in f[table].attrs if name.startswith("units_")}
            assert units == set(columns.split()) - NAMES, (table, units)
        assert f["steps"].attrs["units_seconds"] == b"s"
        assert attributes["reason"] == b""
        assert f["memory"].attrs["units_peak_bytes"] == b"bytes"
        steps = f["steps"][:]
        assert (steps["step"] == np.arange(STEPS)).all()
        assert np.allclose(steps["loss"], 10 / (1 + np.arange(STEPS)), rtol=1e-15)
        assert np.isnan(steps["bubble"]).all() and (steps["tokens"] == 2048).all()
        communication = f["communication"][:]
        assert len(communication) == 2 * STEPS
        assert communication[3]["axis"] == b"dp" and communication[3]["phase"] == b"gradients"
        assert communication[3]["step"] == 1 and communication[3]["bytes"] == 1 << 20
        assert f["memory"][1].tolist() == (1, 1, b"gradients", 4, 5, 6)
        assert f["rank_memory"][0].tolist() == (0, 0, 7, 8, 9)
        assert f["series/group/deep"][0] == 0.25  # in groups, as the name says
        assert f["actions"][5].tolist() == (5, 1, 0, 0, b"F", 1, 0.125, 0.25)
        assert f["work"][5].tolist() == (5, 1, 0, b"linear", b"dgrad", 7, 1e9, 0.5)
        assert f["experts"][5].tolist() == (5, 1, 3, 9, 8)
        assert f["predicted_actions"][:].tolist() == [(1, 1, 0, b"receive F", 2, 0.5, 0.75)]
        assert f["events"][0]["message"].decode() == "héllo"
        assert 0 < f["events"][0]["time"] < 600 and f["events"][0]["rank"] == 1


def check_pandas(path):
    steps = pd.read_hdf(path, "steps")
    assert list(steps.columns) == COLUMNS["steps"].split()
    assert len(steps) == STEPS and steps["seconds"].iloc[7] == 7.5
    for table, columns in COLUMNS.items():
        frame = pd.read_hdf(path, table)
        assert list(frame.columns) == columns.split(), table
    assert pd.read_hdf(path, "memory")["peak_bytes"].tolist() == [2, 5]


def check_tables(path):
    with tables.open_file(str(path)) as f:
        rows = f.root.steps.read_where("(step >= 10) & (step < 20)")
        assert rows["step"].tolist() == list(range(10, 20))
        first = f.root.communication.read_where("rank == 1")[0]
        assert first["axis"] == b"dp" and first["op"] == b"all_reduce"


def check_xarray(path):
    # The tables beside have no named dimensions; without phony_dims xarray warns and goes on.
    with xr.open_dataset(path, group="series", engine="h5netcdf", phony_dims="access") as series:
        late = series["late"]
        assert late.dims == ("step",), late
        assert late.sel(step=0).isnull().all() and series["accuracy"].sel(step=10).values == 5.0
        assert (late.sel(step=4) == 7.0).any()
        assert series["step"].dtype == np.int64 and series.sizes["step"] == STEPS // 2 + 1


def check_oldest_format(path):
    """The superblock is version 0: what every HDF5 since 1.0 reads."""
    assert path.read_bytes()[:9] == b"\x89HDF\r\n\x1a\n\x00"


with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    warnings.simplefilter("error")
    path = pathlib.Path(folder) / "run.h5"
    run_file_tools.write(path, STEPS)
    for check in (check_h5py, check_pandas, check_tables, check_xarray, check_oldest_format):
        check(path)
        print(check.__name__, "ok")
