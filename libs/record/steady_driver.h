// How HDF5 reaches the disk: as its own driver for plain files does, but a write that fails is
// remembered here and not told to HDF5. HDF5 1.10 cannot close a file that it failed to write, and
// takes the process down at exit.
#pragma once

#include <hdf5.h>

namespace mw {

// Sets the driver in a file access property list. `*write_error` becomes the errno of the first
// write that failed; the file is then broken, whatever HDF5 says, and what follows is not written.
// It must outlive the file. A file is opened for writing only if its name is no symbolic link.
void use_steady_driver(hid_t access, int* write_error);

}  // namespace mw
