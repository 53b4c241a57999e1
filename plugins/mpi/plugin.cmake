# Only this plugin links MPI. Where there is none it is left out, and the program says so when it is
# started by mpirun.
find_package(MPI COMPONENTS C QUIET)
if(MPI_C_FOUND)
  set(MESHWRIGHT_PLUGIN_LINK MPI::MPI_C)
else()
  set(MESHWRIGHT_PLUGIN_LEFT_OUT "MPI is not installed (openmpi-bin and libopenmpi-dev, or the site's own)")
endif()
