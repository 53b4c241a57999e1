// Maps a file into memory, turns SIGBUS for a page that is gone (the file was cut off) into an
// error, and digests the file's bytes: once in a process, and again after somebody has written to
// the file.
#include "common/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <tuple>
#include <utility>

#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/host.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

// A mapping that is in use. The signal handler walks the list of mappings without a lock, so
// entries are reused but never freed.
struct MappedRange {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin 0: free
  std::atomic<bool> broken{false};               // a page of it could not be read
  MappedRange* next = nullptr;
};

namespace {

std::atomic<MappedRange*> ranges{nullptr};
std::mutex changing_ranges;
struct sigaction handler_before;  // earlier handler of SIGBUS
std::uintptr_t page_size;

// Replaces a page that is gone by zeros, so that the reader continues and can call
// MappedFile::check().
void on_bus_error(int number, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (MappedRange* range = ranges.load(); range != nullptr; range = range->next) {
    const std::uintptr_t begin = range->begin.load(), end = range->end.load();
    if (begin == 0 || at < begin || at >= end) continue;
    void* page = reinterpret_cast<void*>(at / page_size * page_size);
    range->broken = true;
    const int error = errno;
    const bool mapped =
        ::mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
    errno = error;
    if (mapped) return;
  }
  if ((handler_before.sa_flags & SA_SIGINFO) != 0 && handler_before.sa_sigaction != nullptr) {
    handler_before.sa_sigaction(number, info, context);
    return;
  }
  // the signal is raised again, and ends the process
  ::sigaction(number, &handler_before, nullptr);
}

void catch_bus_errors() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &handler_before);
  });
}

MappedRange* watch(const void* data, std::int64_t size) {
  catch_bus_errors();
  const std::lock_guard lock(changing_ranges);
  MappedRange* range = ranges.load();
  while (range != nullptr && range->begin != 0) range = range->next;
  const bool fresh = range == nullptr;
  if (fresh) range = new MappedRange;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  range->broken = false;
  range->end = begin + static_cast<std::uintptr_t>(size);
  range->begin = begin;
  if (fresh) {
    range->next = ranges.load();
    ranges = range;
  }
  return range;
}

constexpr std::int64_t digest_block = 64 << 10;

// A hash of four 64-bit lanes, each multiplied and rotated as in XXH64 (Collet), so that memory
// bandwidth is its limit.
class Lanes {
 public:
  void add(const std::uint8_t* bytes, std::int64_t size) {
    for (; size >= 32; size -= 32, bytes += 32) {
      std::uint64_t words[4];
      std::memcpy(words, bytes, sizeof words);
      for (int i = 0; i < 4; ++i) turn(lanes_[i], words[i]);
    }
    for (; size > 0; size -= 8, bytes += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes, static_cast<std::size_t>(std::min<std::int64_t>(8, size)));
      turn(lanes_[0], word);
    }
  }
  std::uint64_t value(std::int64_t size) const {
    auto value = static_cast<std::uint64_t>(size);
    for (const std::uint64_t lane : lanes_) value = mix64(value ^ lane);
    return value;
  }

 private:
  static void turn(std::uint64_t& lane, std::uint64_t word) {
    lane = std::rotl(lane + word * 0xC2B2AE3D27D4EB4Full, 31) * 0x9E3779B185EBCA87ull;
  }
  std::uint64_t lanes_[4] = {1, 2, 3, 4};
};

std::uint64_t digest_of(const std::uint8_t* data, std::int64_t size, std::int64_t most) {
  Lanes lanes;
  const std::int64_t blocks = std::max<std::int64_t>(2, most / digest_block);
  if (size <= most || size < blocks * digest_block) {
    lanes.add(data, size);
  } else {
    const double apart = static_cast<double>(size - digest_block) / static_cast<double>(blocks - 1);
    for (std::int64_t i = 0; i < blocks; ++i)
      lanes.add(data + static_cast<std::int64_t>(static_cast<double>(i) * apart), digest_block);
  }
  return lanes.value(size);
}

std::int64_t time_of_last_write(const struct stat& info) {
  return info.st_mtim.tv_sec * std::int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
}

}  // namespace

// The digest of the file, shared by all threads that check it.
struct MappedFile::Digested {
  // time of the last write (ns) when the file was digested; 0: it never was
  std::atomic<std::int64_t> written{0};
  std::mutex mutex;  // guards the fields below
  std::int64_t most = 0;
  std::uint64_t digest = 0;
  double next = 0;  // the file is not digested again before this time (seconds_now())
};

MappedFile::MappedFile(const fs::path& path)
    : path_(path), digested_(std::make_unique<Digested>()) {
  check_may_read(path);
  check_regular(path);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto fail = [&](int reason) {
    if (file >= 0) ::close(file);
    throw Error(
        Stage::options, "file.read", "",
        fmt::format("cannot read {}: {}", path.string(), std::generic_category().message(reason)));
  };
  struct stat info {};
  if (file < 0 || ::fstat(file, &info) != 0) fail(errno);
  if (!S_ISREG(info.st_mode)) fail(EINVAL);  // a pipe cannot be mapped
  device_ = info.st_dev;
  inode_ = info.st_ino;
  written_ = time_of_last_write(info);
  size_ = info.st_size;
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (address == MAP_FAILED) fail(errno);
    data_ = static_cast<const std::uint8_t*>(address);
    range_ = watch(data_, size_);
  }
  ::close(file);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      device_(other.device_),
      inode_(other.inode_),
      written_(other.written_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      range_(std::exchange(other.range_, nullptr)),
      digested_(std::move(other.digested_)) {}

MappedFile::~MappedFile() {
  if (range_ != nullptr) {
    const std::lock_guard lock(changing_ranges);
    range_->begin = 0;
  }
  if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

// A file that was cut off within its last page can be read to the end of the page, so its size
// counts too. The file is looked up by name, as a folder may hold more files than a process may
// have open. Where the name is another file's by now, nothing is lost.
void MappedFile::check() const {
  struct stat info {};
  const bool there =
      ::stat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
  const bool shorter = there && info.st_size < size_;
  const bool broken = range_ != nullptr && range_->broken;
  if (!shorter && !broken) {
    const std::int64_t before = digested_->written;
    if (there && before != 0 && before != time_of_last_write(info))
      look_again(time_of_last_write(info));
    return;
  }
  throw Error(Stage::run, "file.changed", "",
              shorter ? fmt::format("{} was cut off while it was in use: it had {} bytes, now {}",
                                    path_.string(), size_, info.st_size)
                      : fmt::format("{} could not be read in full", path_.string()),
              shorter ? "leave the file alone while a run reads it, or give the run a copy"
                      : "was it changed while it was in use? Else look at its disk");
}

// Limits digests to a twentieth of the time, as a file to which others append changes again and
// again.
void MappedFile::look_again(std::int64_t written) const {
  constexpr double share = 0.05;
  const std::lock_guard lock(digested_->mutex);
  const double began = seconds_now();
  if (began < digested_->next || written == digested_->written) return;
  if (digest_of(data_, size_, digested_->most) != digested_->digest) {
    throw Error(Stage::run, "file.changed", "",
                fmt::format("{} was written while it was in use, and its bytes are others since",
                            path_.string()),
                "put back the file as it was; leave it alone while a run reads it, or give the "
                "run a copy");
  }
  digested_->next = seconds_now() + (seconds_now() - began) / share;
  digested_->written = written;
}

std::uint64_t MappedFile::digest(std::int64_t most) const {
  static std::mutex mutex;
  using Known = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t>;
  static std::map<Known, std::uint64_t> known;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = known.try_emplace({device_, inode_, size_, written_, most});
  if (fresh) found->second = digest_of(data_, size_, most);
  {
    const std::lock_guard digested(digested_->mutex);
    digested_->most = most;
    digested_->digest = found->second;
    digested_->written = written_;
  }
  check();
  return found->second;
}

}  // namespace mw
