# Only this plugin links MPI. Where there is none it is left out, and the program says so when it is
# started by mpirun.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI COMPONENTS CXX QUIET)
if(MPI_CXX_FOUND)
  set(MESHWRIGHT_PLUGIN_LINK MPI::MPI_CXX)
else()
  set(MESHWRIGHT_PLUGIN_LEFT_OUT "MPI is not installed")
  set(MESHWRIGHT_PLUGIN_HINT
      "install openmpi-bin and libopenmpi-dev, or the site's own MPI, then ./meshwright build")
endif()
