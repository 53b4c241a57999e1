"""Imported by tests that start mpirun: a folder of this test's own for what OpenMPI keeps of its
sessions. Runs that begin and end at the same time in one folder make and remove the same
directory there, and some end of it (open-mpi/ompi#8510)."""
import os
import tempfile

FOLDER = tempfile.TemporaryDirectory(prefix="mpi")
os.environ.setdefault("OMPI_MCA_orte_tmpdir_base", FOLDER.name)
