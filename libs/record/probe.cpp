// Reads a whole run file in a copy of this process, to see whether HDF5 comes through.
#include "record/probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/process.h"
#include "meshwright/error.h"
#include "record/hdf5_file.h"
#include "record/hdf5_handle.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// CPU seconds that a copy may take: for any file, and for each byte.
constexpr double seconds_at_least = 2, seconds_of_byte = 1e-7;
// The wall seconds that a copy may take are this many times its CPU seconds, as other processes may
// compute too.
constexpr double patience = 15;
constexpr std::size_t most_known = 100'000;  // files whose result is remembered
constexpr hsize_t most_bytes_at_once = hsize_t{64} << 20;
constexpr std::uint64_t most_rows_at_once = std::uint64_t{1} << 16;
// Signals that HDF5 dies of where a file is damaged. Other signals come from outside and say
// nothing about the file: the kernel's SIGKILL where memory runs out, a SIGTERM to all processes of
// a job.
constexpr int signs_of_damage[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU};

// Reads an attribute's bytes as they are.
herr_t read_attribute(hid_t object, const char* name, const H5A_info_t*, void*) {
  const Handle attribute(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) return 0;
  const Handle type(H5Aget_type(attribute), H5Tclose);
  const Handle space(H5Aget_space(attribute), H5Sclose);
  const hssize_t count = H5Sget_simple_extent_npoints(space);
  const std::size_t size = H5Tget_size(type);
  if (H5Tdetect_class(type, H5T_VLEN) > 0 || H5Tis_variable_str(type) > 0) return 0;
  if (count <= 0 || size == 0 || size > most_bytes_at_once / static_cast<hsize_t>(count)) return 0;
  std::vector<char> bytes(size * static_cast<std::size_t>(count));
  H5Aread(attribute, type, bytes.data());
  return 0;
}

// Reads a dataset's bytes as they are, some rows at a time. Tables are left out: read_all() reads
// those by the calls that readers make.
void read_dataset(hid_t set) {
  const Handle type(H5Dget_type(set), H5Tclose);
  const Handle space(H5Dget_space(set), H5Sclose);
  const int dims = H5Sget_simple_extent_ndims(space);
  const std::size_t size = H5Tget_size(type);
  if (dims < 0 || dims > 1 || size == 0 || size > most_bytes_at_once) return;
  if (dims == 1 && H5Tget_class(type) == H5T_COMPOUND) return;
  if (H5Tdetect_class(type, H5T_VLEN) > 0 || H5Tis_variable_str(type) > 0) return;
  if (dims == 0) {
    std::vector<char> bytes(size);
    H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data());
    return;
  }
  hsize_t rows = 0;
  H5Sget_simple_extent_dims(space, &rows, nullptr);
  const hsize_t at_once = std::max<hsize_t>(1, most_bytes_at_once / size);
  std::vector<char> bytes(std::min(rows, at_once) * size);
  for (hsize_t from = 0; from < rows; from += at_once) {
    const hsize_t count = std::min(at_once, rows - from);
    const Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, &from, nullptr, &count, nullptr) < 0 ||
        H5Dread(set, type, memory, space, H5P_DEFAULT, bytes.data()) < 0)
      return;
  }
}

herr_t read_object(hid_t from, const char* name, const H5O_info_t* info, void*) {
  const Handle object(H5Oopen(from, name, H5P_DEFAULT), H5Oclose);
  if (!object.valid()) return 0;
  hsize_t at = 0;
  H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, &at, read_attribute, nullptr);
  if (info->type == H5O_TYPE_DATASET && lies_in_its_file(object)) read_dataset(object);
  return 0;
}

// Reads all bytes of the file but its tables, and then everything by the calls that readers make,
// which also convert what they read.
void read_all(const fs::path& path) {
  Hdf5File file(path, Hdf5File::Mode::read);
  H5Ovisit2(file.id(), H5_INDEX_NAME, H5_ITER_NATIVE, read_object, nullptr, H5O_INFO_BASIC);
  const auto tried = [](auto&& read) {
    try {
      read();
    } catch (const std::exception&) {  // a reader of the file gets this error
    }
  };
  // A slice that cannot be read does not keep the later ones from being tried.
  const auto in_slices = [&](std::uint64_t rows, auto&& read) {
    for (std::uint64_t from = 0; from < rows; from += most_rows_at_once)
      tried([&] { read(from, std::min(most_rows_at_once, rows - from)); });
  };
  // Datasets that readers open by name. A list of the file's datasets may lack them, as it ends at
  // the first damaged object.
  std::set<std::string> sets = {"script", "plan", "predicted", "experiment", "machine", "result"};
  for (const TableLayout* layout : all_tables()) sets.insert(layout->name);
  for (const char* group : {"/", "series"}) {
    const std::string before = std::string_view(group) == "/" ? "" : fmt::format("{}/", group);
    tried([&] {
      for (const std::string& name : file.datasets(group)) sets.insert(before + name);
    });
  }
  for (const char* name :
       {"schema", "status", "reason", "created", "host", "versions", "process", "name", "hash",
        "hash_without_seed", "plan_hash", "continues", "started_by"})
    tried([&] { file.attribute("/", name); });
  file.integer("/", "seed", 0);
  for (const std::string& name : sets) {
    tried([&] { file.attribute(name.c_str(), "name"); });
    tried([&] {
      file.read_table(name.c_str(), 0, 0);  // throws where it is no table
      in_slices(file.length(name), [&](std::uint64_t from, std::uint64_t count) {
        file.read_table(name.c_str(), from, count);
      });
    });
    tried([&] { file.read_numbers(name); });
    tried([&] { file.read_text(name.c_str()); });
  }
  for (const TableLayout* layout : all_tables())
    tried([&] {
      in_slices(file.count_rows(*layout), [&](std::uint64_t from, std::uint64_t count) {
        file.read_rows(*layout, from, count);
      });
    });
}

// Lets this process compute for `seconds` more, after which it dies of SIGXCPU.
void limit_computing(double seconds) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  rlimit time{};
  ::getrlimit(RLIMIT_CPU, &time);
  time.rlim_cur = static_cast<rlim_t>(used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1) +
                  static_cast<rlim_t>(seconds);
  ::setrlimit(RLIMIT_CPU, &time);
}

void try_to_read(const fs::path& path, double seconds) {
  limit_computing(seconds);
  try {
    read_all(path);
  } catch (const std::exception&) {
  }
}

// The signal of signs_of_damage that the copy died of, by its wait status; 0: none, for example
// where it was ended from outside.
int damage_in(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return std::count(std::begin(signs_of_damage), std::end(signs_of_damage), signal) > 0 ? signal
                                                                                          : 0;
  }
  return WEXITSTATUS(status) == 0 ? 0 : SIGABRT;  // a sanitizer ends its process by a code
}

double seconds_for(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return seconds_at_least + (error ? 0 : seconds_of_byte * static_cast<double>(size));
}

// For the forked copy: reads the files one after the other, and sends a byte after each.
[[noreturn]] void read_in_copy(std::span<const fs::path> paths, int to) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  for (const int signal : signs_of_damage) ::signal(signal, SIG_DFL);
  // The C library prints to stderr what the process dies of. This process reports it better.
  if (const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0)
    ::dup2(nowhere, STDERR_FILENO);
  for (const fs::path& path : paths) {
    try_to_read(path, seconds_for(path));
    if (::write(to, "1", 1) != 1) break;
  }
  ::_exit(0);
}

// Has a forked copy read the files in order. Returns how many it came through, and the signal of
// damage that it died of at the next one. A copy that sends nothing for long may wait for a lock
// that another thread of this process held at the fork: it is killed, and the file does not count
// as damaged.
std::pair<std::size_t, int> read_by_copy(std::span<const fs::path> paths) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {paths.size(), 0};
  const pid_t copy = fork_tied(SIGKILL);
  if (copy == 0) read_in_copy(paths, ends[1]);
  ::close(ends[1]);
  std::size_t through = 0;
  bool waits = copy > 0;
  while (waits && through < paths.size()) {
    pollfd ready{ends[0], POLLIN, 0};
    const double most = 1e3 * std::min(patience * seconds_for(paths[through]), 1e6);
    char byte = 0;
    int came = 0;
    do came = ::poll(&ready, 1, static_cast<int>(most));
    while (came < 0 && errno == EINTR);
    waits = came == 1;
    if (waits && ::read(ends[0], &byte, 1) != 1) break;  // the copy has died
    if (waits) ++through;
  }
  ::close(ends[0]);
  int status = 0;
  if (copy > 0 && !waits) ::kill(copy, SIGKILL);
  if (copy < 0 || ::waitpid(copy, &status, 0) != copy) return {paths.size(), 0};
  return {through, damage_in(status)};
}

// A file's state: device, inode, size, time of the last write.
using Key = std::tuple<dev_t, ino_t, off_t, std::int64_t, std::int64_t>;

std::optional<Key> key_of(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return Key{info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

std::mutex trying;
std::map<Key, int> tried;  // the signal that the copy died of, by file; 0: none

}  // namespace

void need_not_probe(const fs::path& path) {
  const std::lock_guard guard(trying);
  if (const auto key = key_of(path)) tried[*key] = 0;
}

void probe_all(const std::vector<fs::path>& given) {
  const std::lock_guard guard(trying);
  std::vector<fs::path> paths;
  std::vector<Key> keys;
  for (const fs::path& path : given) {
    const auto key = key_of(path);
    if (!key || tried.count(*key) > 0) continue;
    paths.push_back(path);
    keys.push_back(*key);
  }
  if (tried.size() + keys.size() > most_known) tried.clear();
  for (std::size_t at = 0; at < paths.size();) {
    const auto [through, signal] = read_by_copy(std::span(paths).subspan(at));
    for (std::size_t k = 0; k < through; ++k) tried[keys[at + k]] = 0;
    at += through;
    // A file read earlier by the same copy may have caused the crash: the next copy tries this file
    // first.
    if (through == 0) tried[keys[at++]] = signal;
  }
}

void probe_run_file(const fs::path& path) {
  probe_all({path});
  const std::lock_guard guard(trying);
  const auto key = key_of(path);
  const auto known = key ? tried.find(*key) : tried.end();
  if (known == tried.end()) return;
  const int signal = known->second;
  if (signal == 0) return;
  throw Error(
      Stage::options, "run-file.damaged", "",
      fmt::format("{}: the file is damaged: {}", path.string(),
                  signal == SIGXCPU
                      ? "HDF5 does not come to an end with it"
                      : fmt::format("HDF5 crashes when it reads it ({})", ::strsignal(signal))),
      "read another copy of the file; a killed run is not the cause, as it leaves a whole file");
}

}  // namespace mw
