// An HDF5 identifier that is released by its own kind of close.
#pragma once

#include <hdf5.h>

namespace mw {

class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor)
  bool valid() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// Opens a dataset; an invalid id if there is none, or if any of its bytes would come from another
// file, which HDF5 would open by itself, with no regard to file bounds.
hid_t open_dataset(hid_t file, const char* name);
bool lies_in_its_file(hid_t dataset);

// Sets the file driver of steady_driver.cpp in a file access property list. `*write_error` becomes
// the errno of the first write that failed; the file is then broken, whatever HDF5 says, and later
// writes are left out. `write_error` must outlive the file. A file is opened for writing only if
// its name is no symbolic link.
void use_steady_driver(hid_t access, int* write_error);

}  // namespace mw
