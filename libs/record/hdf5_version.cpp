// Compares the HDF5 that is loaded with the one that this program was built with.
#include "record/hdf5_version.h"

#include <fmt/format.h>
#include <hdf5.h>

namespace mw {

Hdf5Version hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return {fmt::format("{}.{}.{}", major, minor, release),
          fmt::format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE),
          major == H5_VERS_MAJOR && minor == H5_VERS_MINOR};
}

}  // namespace mw
