// Frames and encodes the few messages of TensorBoard's event files that a run needs.
#include "record/event_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/crc.hpp>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "common/process.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/run_path.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds interval{1};
constexpr const char* name_begins = "events.out.tfevents.";

template <class Number>
void append(std::string& to, Number number) {
  static_assert(std::endian::native == std::endian::little, "records are little-endian");
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// A message of protobuf, field by field (tensorflow/core/util/event.proto and what it imports).
class Message {
 public:
  Message& integer(int field, std::uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& real(int field, double value) {
    key(field, 1);
    append(bytes_, value);
    return *this;
  }
  Message& single(int field, float value) {
    key(field, 5);
    append(bytes_, value);
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, unsigned wire) { varint(static_cast<std::uint64_t>(field) << 3 | wire); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

enum Event { wall_time = 1, step_of_event = 2, file_version = 3, summary = 5, session_log = 7 };

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Message event_at(std::int64_t step) {
  Message event;
  event.real(wall_time, now());
  if (step != 0) event.integer(step_of_event, static_cast<std::uint64_t>(step));
  return event;
}

// CRC-32C, then rotated and shifted as in TFRecord, so that a checksum over checksums is not zero.
std::uint32_t masked_crc(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + 0xA282EAD8U;
}

// The hash at the end of the name of an event file of ours; empty where another program wrote it.
std::string hash_in(const std::string& name) {
  static constexpr std::size_t digits = 16;
  const std::size_t dot = name.rfind('.');
  const std::string last = dot == std::string::npos ? "" : name.substr(dot + 1);
  const bool is_hash =
      last.size() == digits && last.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_hash ? last : "";
}

// The seconds in the name of an event file; 0 where it has none.
std::int64_t time_in(const std::string& name) {
  std::int64_t seconds = 0;
  if (name.starts_with(name_begins)) {
    const char* begin = name.data() + std::string_view(name_begins).size();
    std::from_chars(begin, name.data() + name.size(), seconds);
  }
  return seconds;
}

[[noreturn]] void fail(const fs::path& path, int reason) {
  throw Error(Stage::run, "file.write", "tensorboard",
              fmt::format("{}: cannot write it: {}", path.string(),
                          std::generic_category().message(reason)),
              "name a folder that you may write to");
}

}  // namespace

EventFile::EventFile(const fs::path& folder, const EventOwner& owner)
    : last_flush_(std::chrono::steady_clock::now()) {
  check_may_write(folder, "tensorboard");
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, error.value());
  look_around(folder, owner);
  open(folder, owner.hash);
  Message version = event_at(0);
  version.text(file_version, "brain.Event:2");
  add_record(version.bytes());
  static constexpr std::uint64_t started = 1;  // SessionLog.status
  Message session = event_at(owner.first_step);
  session.message(session_log, Message().integer(1, started));
  add_record(session.bytes());
  flush();
  if (owner.first_step > 0) earlier_.clear();  // earlier files keep the steps before first_step
}

EventFile::~EventFile() {
  if (file_ < 0) return;
  try {
    flush();
  } catch (const Error&) {  // a caller that needs the error calls flush() before
  }
  ::close(file_);
}

// Finds earlier event files, of a run that this one replaces or goes on from.
void EventFile::look_around(const fs::path& folder, const EventOwner& owner) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.find("tfevents") == std::string::npos) continue;
    const std::string hash = hash_in(name);
    const bool own = !hash.empty() && (hash == owner.hash || hash == owner.continues);
    if (!own && !owner.overwrite) {
      throw Error(
          Stage::options, "log.taken", "tensorboard",
          fmt::format("tensorboard: events of another experiment are in {}: {}; this one has "
                      "the hash {}",
                      folder.string(), name, owner.hash),
          fmt::format("name a folder of its own, tensorboard = {}; or write overwrite = true",
                      quote((folder / "{name}-{seed}-{hash}").string())));
    }
    if (!own) fs::remove(entry->path(), error);
    if (own) earlier_.push_back(entry->path());
    latest_ = std::max(latest_, time_in(name));
  }
  if (error) fail(folder, error.value());
}

// Names sort by the time in them: a file that follows another one has a later one.
void EventFile::open(const fs::path& folder, const std::string& hash) {
  const std::int64_t seconds = std::max(static_cast<std::int64_t>(now()), latest_ + 1);
  path_ = folder /
          fmt::format("{}{:010}.{}.{}.{}", name_begins, seconds, host_name(), ::getpid(), hash);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file_ < 0) fail(path_, errno);
}

void EventFile::add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  if (scalars.empty()) return;
  Message values;
  for (const auto& [tag, number] : scalars)
    values.message(1, Message().text(1, tag).single(2, static_cast<float>(number)));
  add_record(event_at(step).message(summary, values).bytes());
}

void EventFile::add_text(std::int64_t step, const std::string& tag, const std::string& markdown) {
  static constexpr std::uint64_t string_type = 7;  // DT_STRING
  const Message shape = Message().message(2, Message().integer(1, 1));
  const Message tensor = Message().integer(1, string_type).message(2, shape).text(8, markdown);
  const Message plugin = Message().message(1, Message().text(1, "text"));
  const Message value =
      Message().text(1, tag + "/text_summary").message(8, tensor).message(9, plugin);
  add_record(event_at(step).message(summary, Message().message(1, value)).bytes());
}

void EventFile::add_record(std::string_view event) {
  std::string length;
  append(length, static_cast<std::uint64_t>(event.size()));
  buffer_ += length;
  append(buffer_, masked_crc(length));
  buffer_ += event;
  append(buffer_, masked_crc(event));
}

void EventFile::flush_if_due() {
  if (std::chrono::steady_clock::now() - last_flush_ >= interval) flush();
}

void EventFile::flush() {
  last_flush_ = std::chrono::steady_clock::now();
  struct stat own = {};
  if (::fstat(file_, &own) != 0 || inode_of(path_) != own.st_ino) {
    throw Error(Stage::run, "events.replaced", "tensorboard",
                fmt::format("tensorboard: another program has removed or replaced {}, so that the "
                            "events of this run are lost",
                            path_.string()),
                "let one run at a time write into a folder of events, and remove none while a run "
                "writes into it");
  }
  if (buffer_.empty()) return;
  const off_t before = ::lseek(file_, 0, SEEK_CUR);
  if (!write_whole(file_, buffer_.data(), buffer_.size())) {
    const int reason = errno;  // what is written in part is written again
    if (::ftruncate(file_, before) == 0) ::lseek(file_, before, SEEK_SET);
    fail(path_, reason);
  }
  buffer_.clear();
}

void EventFile::remove_earlier() {
  std::error_code ignored;
  for (const fs::path& file : earlier_) fs::remove(file, ignored);
  earlier_.clear();
}

}  // namespace mw
