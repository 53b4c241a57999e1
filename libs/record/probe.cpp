// Reads a whole run file in a copy of this process, to see whether HDF5 comes through.
#include "record/probe.h"

#include <fmt/format.h>
#include <hdf5.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
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

// Seconds of computing: for any file, and for each byte.
constexpr double seconds_at_least = 10, seconds_of_byte = 1e-7;
// By the clock a copy may take this many times as long, as other processes may compute too.
constexpr double patience = 3;
constexpr std::chrono::milliseconds between_looks{2};
constexpr hsize_t most_bytes_at_once = hsize_t{64} << 20;
constexpr std::uint64_t most_rows_at_once = std::uint64_t{1} << 16;
// What damage makes HDF5 die of. Other signals come from outside and say nothing of the file: the
// kernel's SIGKILL where memory runs out, a SIGTERM to all processes of a job.
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

// All that the file holds but tables, and then all of it by the calls that readers make: those
// convert what they read.
void read_all(const fs::path& path) {
  Hdf5File file(path, Hdf5File::Mode::read);
  H5Ovisit2(file.id(), H5_INDEX_NAME, H5_ITER_NATIVE, read_object, nullptr, H5O_INFO_BASIC);
  const auto tried = [](auto&& read) {
    try {
      read();
    } catch (const std::exception&) {  // which whoever reads it is told
    }
  };
  // A slice that cannot be read does not keep the later ones from being tried.
  const auto in_slices = [&](std::uint64_t rows, auto&& read) {
    for (std::uint64_t from = 0; from < rows; from += most_rows_at_once)
      tried([&] { read(from, std::min(most_rows_at_once, rows - from)); });
  };
  // Readers open these by their names. A list of what the file holds can end before it has them, at
  // the first object that is damaged.
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

// The copy may compute so many seconds more, and then dies of SIGXCPU.
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

void begin_copy() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  for (const int signal : signs_of_damage) ::signal(signal, SIG_DFL);
}

[[noreturn]] void try_in_copy(const fs::path& path, double seconds) {
  begin_copy();
  try_to_read(path, seconds);
  ::_exit(0);
}

// The state of the copy when it has ended. Nothing where it has not after so many seconds by the
// clock: it may have inherited a lock that another thread of this process held, and wait for it
// without computing. It is killed then.
std::optional<int> awaited(pid_t copy, double seconds) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(copy, &status, WNOHANG)) == 0) {
    if (std::chrono::steady_clock::now() > give_up) {
      ::kill(copy, SIGKILL);
      ::waitpid(copy, &status, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(between_looks);
  }
  if (ended < 0) return std::nullopt;
  return status;
}

// The signal of damage that a copy has died of, by its status; 0: none.
int damage_in(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return std::count(std::begin(signs_of_damage), std::end(signs_of_damage), signal) > 0 ? signal
                                                                                          : 0;
  }
  return WEXITSTATUS(status) == 0 ? 0 : SIGABRT;  // a sanitizer ends its process by a code
}

// The signal that the file made a copy die of. 0: the copy came through, or was ended from outside,
// or there is none to be had; then nothing is known against the file.
int died_of(const fs::path& path, double seconds) {
  const pid_t copy = fork_tied(SIGKILL);
  if (copy == 0) try_in_copy(path, seconds);
  if (copy < 0) return 0;
  const std::optional<int> status = awaited(copy, patience * seconds);
  return status ? damage_in(*status) : 0;
}

// A copy of this process that reads the files whose paths it is sent, and answers each with a byte.
class LastingCopy {
 public:
  LastingCopy() = default;
  ~LastingCopy() { end(); }
  LastingCopy(const LastingCopy&) = delete;
  LastingCopy& operator=(const LastingCopy&) = delete;

  // Whether the copy came through. No: it has died, or does not answer; whoever asks has the file
  // tried by a copy of its own.
  bool comes_through(const fs::path& path, double seconds) {
    if (process_ <= 0 && !begin()) return false;
    std::string message = fmt::format("{} {}", static_cast<std::int64_t>(seconds), path.string());
    message += '\0';
    pollfd ready{socket_, POLLIN, 0};
    char answer = 0;
    const bool through =
        ::send(socket_, message.data(), message.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(message.size()) &&
        ::poll(&ready, 1, static_cast<int>(1e3 * std::min(patience * seconds, 1e6))) == 1 &&
        ::read(socket_, &answer, 1) == 1;
    if (!through) end();
    return through;
  }

 private:
  bool begin() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    socket_ = ends[0];
    process_ = fork_tied(SIGKILL);
    if (process_ == 0) {
      ::close(ends[0]);
      answer_all(ends[1]);
    }
    ::close(ends[1]);
    if (process_ < 0) end();
    return process_ > 0;
  }

  [[noreturn]] static void answer_all(int socket) {
    begin_copy();
    std::string message;
    for (char byte = 0; ::read(socket, &byte, 1) == 1;) {
      message += byte;
      if (byte != '\0') continue;
      const std::size_t gap = message.find(' ');
      try_to_read(message.substr(gap + 1, message.size() - gap - 2), std::atof(message.c_str()));
      message.clear();
      if (::send(socket, "1", 1, MSG_NOSIGNAL) != 1) break;
    }
    ::_exit(0);
  }

  void end() {
    if (socket_ >= 0) ::close(socket_);
    if (process_ > 0) {
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
    socket_ = -1;
    process_ = -1;
  }

  pid_t process_ = -1;
  int socket_ = -1;
};

thread_local std::unique_ptr<LastingCopy> lasting;  // ProbeMany's; null: there is none

// A file as it is at a moment.
using Key = std::tuple<dev_t, ino_t, off_t, std::int64_t, std::int64_t>;

std::optional<Key> key_of(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return Key{info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

std::mutex trying;
std::map<Key, int> tried;  // and the signal that the copy died of; 0: it came through

}  // namespace

ProbeMany::ProbeMany() {
  if (lasting == nullptr) lasting = std::make_unique<LastingCopy>();
}
ProbeMany::~ProbeMany() {
  lasting.reset();
}

void need_not_probe(const fs::path& path) {
  const std::lock_guard guard(trying);
  if (const auto key = key_of(path)) tried[*key] = 0;
}

void probe_run_file(const fs::path& path) {
  const auto key = key_of(path);
  if (!key) return;
  const std::lock_guard guard(trying);
  auto known = tried.find(*key);
  if (known == tried.end()) {
    const double seconds =
        seconds_at_least + seconds_of_byte * static_cast<double>(std::get<2>(*key));
    if (tried.size() > 10'000) tried.clear();
    const bool through = lasting != nullptr && lasting->comes_through(path, seconds);
    known = tried.emplace(*key, through ? 0 : died_of(path, seconds)).first;
  }
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
