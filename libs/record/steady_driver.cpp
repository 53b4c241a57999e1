// An HDF5 file driver that remembers a failed write instead of reporting it, as HDF5 1.10 cannot
// close a file after one.
#include "record/hdf5_handle.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <tuple>

#include "common/files.h"

namespace mw {
namespace {

struct Info {
  int* write_error;
};

// HDF5 knows only the first member, `known`.
struct File {
  H5FD_t known{};
  int descriptor = -1;
  int* write_error = nullptr;
  haddr_t allocated = 0, end = 0;  // HDF5's allocated size; size if no write had failed
  dev_t device = 0;
  ino_t inode = 0;
};

File& file_of(H5FD_t* file) {
  return *reinterpret_cast<File*>(file);
}
const File& file_of(const H5FD_t* file) {
  return *reinterpret_cast<const File*>(file);
}

void failed(File& file, int reason) {
  if (*file.write_error == 0) *file.write_error = reason;
}

// A run in progress has two files, which take turns with the run file's name. It writes the file
// without the name, unless a reader has locked it. A reader therefore locks the file, and reads it
// if it still has the name.
int open_to_read(const char* name) {
  constexpr int most_tries = 1000;
  for (int tries = 1;; ++tries) {
    const int descriptor = ::open(name, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return descriptor;
    (void)::flock(descriptor, LOCK_SH | LOCK_NB);  // there are file systems without locks
    if (is_named(descriptor, name) || tries == most_tries) return descriptor;
    ::close(descriptor);
  }
}

int open_to_write(const char* name, unsigned flags) {
  int how = O_CLOEXEC | O_RDWR | O_NOFOLLOW;
  if (flags & H5F_ACC_TRUNC) how |= O_TRUNC;
  if (flags & H5F_ACC_CREAT) how |= O_CREAT;
  if (flags & H5F_ACC_EXCL) how |= O_EXCL;
  return ::open(name, how, 0666);
}

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t most) {
  const auto* info = static_cast<const Info*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  auto file = std::make_unique<File>();
  file->descriptor = flags & H5F_ACC_RDWR ? open_to_write(name, flags) : open_to_read(name);
  struct stat status {};
  if (file->descriptor < 0 || ::fstat(file->descriptor, &status) != 0) {
    const int reason = errno;
    if (file->descriptor >= 0) ::close(file->descriptor);
    if (flags & H5F_ACC_RDWR) *info->write_error = reason;
    return nullptr;
  }
  *info->write_error = 0;  // an earlier attempt of HDF5's to open the file may have failed
  file->write_error = info->write_error;
  file->end = static_cast<haddr_t>(status.st_size);
  file->device = status.st_dev;
  file->inode = status.st_ino;
  file->known.maxaddr = most;
  return &file.release()->known;
}

herr_t close_file(H5FD_t* given) {
  const std::unique_ptr<File> file(&file_of(given));
  // Some file systems tell only now that there was no room.
  if (::close(file->descriptor) != 0) failed(*file, errno);
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  const auto key = [](const File& file) { return std::tie(file.device, file.inode); };
  if (key(file_of(a)) == key(file_of(b))) return 0;
  return key(file_of(a)) < key(file_of(b)) ? -1 : 1;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  if (flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  }
  return 0;
}

haddr_t allocated(const H5FD_t* file, H5FD_mem_t) {
  return file_of(file).allocated;
}

herr_t set_allocated(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  file_of(file).allocated = address;
  return 0;
}

haddr_t end_of(const H5FD_t* file, H5FD_mem_t) {
  return file_of(file).end;
}

herr_t handle_of(H5FD_t* file, hid_t, void** handle) {
  *handle = &file_of(file).descriptor;
  return 0;
}

herr_t read(H5FD_t* given, H5FD_mem_t, hid_t, haddr_t at, std::size_t size, void* into) {
  const File& file = file_of(given);
  auto* bytes = static_cast<char*>(into);
  while (size > 0) {
    const ssize_t got = ::pread(file.descriptor, bytes, size, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) {  // behind the end there are zeros
      std::memset(bytes, 0, size);
      return 0;
    }
    bytes += got;
    at += static_cast<haddr_t>(got);
    size -= static_cast<std::size_t>(got);
  }
  return 0;
}

herr_t write(H5FD_t* given, H5FD_mem_t, hid_t, haddr_t at, std::size_t size, const void* from) {
  File& file = file_of(given);
  file.end = std::max(file.end, at + size);
  const auto* bytes = static_cast<const char*>(from);
  while (size > 0 && *file.write_error == 0) {
    const ssize_t put = ::pwrite(file.descriptor, bytes, size, static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      failed(file, put < 0 ? errno : ENOSPC);
      break;
    }
    bytes += put;
    at += static_cast<haddr_t>(put);
    size -= static_cast<std::size_t>(put);
  }
  return 0;
}

herr_t truncate(H5FD_t* given, hid_t, hbool_t) {
  File& file = file_of(given);
  if (file.end == file.allocated) return 0;
  file.end = file.allocated;
  if (*file.write_error == 0 && ::ftruncate(file.descriptor, static_cast<off_t>(file.end)) != 0)
    failed(file, errno);
  return 0;
}

// HDF5's own lock would refuse to read a file while another process writes it. open_to_read() and
// RunWriter lock files instead.
herr_t lock(H5FD_t*, hbool_t) {
  return 0;
}
herr_t unlock(H5FD_t*) {
  return 0;
}

hid_t driver() {
  static const hid_t id = [] {
    static H5FD_class_t kind{};
    kind.name = "steady";
    kind.maxaddr = static_cast<haddr_t>(std::numeric_limits<off_t>::max());
    kind.fc_degree = H5F_CLOSE_WEAK;
    kind.fapl_size = sizeof(Info);
    kind.open = open_file;
    kind.close = close_file;
    kind.cmp = compare;
    kind.query = query;
    kind.get_eoa = allocated;
    kind.set_eoa = set_allocated;
    kind.get_eof = end_of;
    kind.get_handle = handle_of;
    kind.read = read;
    kind.write = write;
    kind.truncate = truncate;
    kind.lock = lock;
    kind.unlock = unlock;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::memcpy(kind.fl_map, map, sizeof map);
    return H5FDregister(&kind);
  }();
  return id;
}

}  // namespace

void use_steady_driver(hid_t access, int* write_error) {
  const Info info{write_error};
  H5Pset_driver(access, driver(), &info);
}

}  // namespace mw
