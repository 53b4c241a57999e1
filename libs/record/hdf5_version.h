// Which HDF5 this program runs, and whether it is the one it was built with.
#pragma once

#include <string>

namespace mw {

struct Hdf5Version {
  std::string running, built;  // "1.10.8"
  bool compatible = false;     // same major and minor: the library aborts the process otherwise
};
Hdf5Version hdf5_version();

}  // namespace mw
