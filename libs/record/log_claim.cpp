// Locks a run's log, and refuses one whose file is another experiment's.
#include "record/log_claim.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/hdf5_file.h"
#include "record/probe.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Logs that this process has held, as absolute paths.
std::mutex written_mutex;
std::set<fs::path>& written_here() {
  static std::set<fs::path> paths;
  return paths;
}

Error refused(const char* code, const std::string& message, std::string hint) {
  return {Stage::options, code, "log", message, std::move(hint)};
}

// A hint: a log beside the given one, with `words` that tell runs apart.
std::string own_log(const std::string& log, const char* words) {
  const bool folder = log.ends_with('/');
  const fs::path there(folder ? log.substr(0, log.size() - 1) : log);
  return fmt::format("log = \"{}{}\"", (there.parent_path() / words).string(),
                     folder ? "/" : ".h5");
}

struct OtherWriter {
  std::string name, hash, status, created, continues, started_by;
  std::int64_t steps = 0;
  std::string unread;  // why the file could not be read; empty: it was read
};

// Reads which run wrote a file. Where the file cannot be read as a run file, only `unread` is set.
OtherWriter read_owner(const fs::path& path) {
  OtherWriter found;
  try {
    probe_run_file(path);
    Hdf5File file(path, Hdf5File::Mode::read);
    found.name = file.attribute("/", "name");
    found.hash = file.attribute("/", "hash");
    found.status = file.attribute("/", "status");
    found.created = file.attribute("/", "created");
    found.continues = file.attribute("/", "continues");
    found.started_by = file.attribute("/", "started_by");
    if (file.has("steps")) found.steps = static_cast<std::int64_t>(file.length("steps"));
  } catch (const Error& error) {
    found = {};
    found.unread = error.problems().front().message;
  }
  return found;
}

// Whether the log's run is one that this run goes on from, or one that went on from the same
// checkpoint and ended before it wrote a checkpoint of its own.
bool is_continued(const OtherWriter& found, const LogOwner& owner) {
  return !owner.continues.empty() && (found.hash == owner.continues || found.hash == owner.hash ||
                                      found.continues == owner.continues);
}

bool has_all(const OtherWriter& found, const LogOwner& owner) {
  return is_continued(found, owner) && found.status == "done" && owner.all_steps > 0 &&
         found.steps == owner.all_steps;
}

// A note for the user on an existing log, which is replaced, continued or stays. Throws if the run
// may not replace the log.
std::string may_replace(const OtherWriter& found, const LogOwner& owner, bool overwrite) {
  const std::string& log = owner.log;
  if (has_all(found, owner)) return fmt::format("{} has all steps, and stays as it is", log);
  if (is_continued(found, owner)) return fmt::format("{} {}", log, owner.continued);
  if (found.hash == owner.hash ||
      (!owner.started_by.empty() && found.started_by == owner.started_by))
    return fmt::format("{} is replaced: an earlier run of this experiment ({}, {})", log,
                       found.status, found.created);
  if (overwrite)
    return fmt::format("{} is replaced (overwrite): {}", log,
                       !found.unread.empty() ? "it cannot be read"
                       : found.hash.empty()  ? "another experiment's"
                                             : found.name);
  if (!found.unread.empty())
    throw refused(
        "log.taken",
        fmt::format("log: {} is there and cannot be read, so that nobody knows whose it is: {}",
                    log, found.unread),
        fmt::format("move it away, or name the log otherwise, {}; or write overwrite = true",
                    own_log(log, "{name}-{seed}")));
  const bool apart = !found.hash.empty() && found.name != owner.name;
  throw refused(
      "log.taken",
      fmt::format("log: {} is there, and is another experiment's: {}; this one is {}", log,
                  found.hash.empty() ? "of a version that wrote no hash"
                                     : fmt::format("{} (hash {}, {}, {})", found.name, found.hash,
                                                   found.status, found.created),
                  fmt::format("{} (hash {})", owner.name, owner.hash)),
      fmt::format("name it otherwise, {}; or write overwrite = true",
                  own_log(log, apart ? "{name}-{seed}" : "{name}-{seed}-{hash}")));
}

}  // namespace

LogClaim::LogClaim(const fs::path& file, const LogOwner& owner, bool overwrite)
    : path_(behind_links(file)), named_(owner.log) {
  check_may_write(file, "log");
  const std::string& log = named_;
  std::error_code error;
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), error);
  if (error) {
    throw refused("log.folder",
                  fmt::format("log: cannot write {}: its folder: {}", log, error.message()),
                  "name a file in a folder that you may write to");
  }
  lock();
  const fs::path whole = fs::absolute(path_, error).lexically_normal();
  const bool there = fs::exists(path_, error) && fs::file_size(path_, error) > 0;
  try {
    if (there && !overwrite && owner.continues.empty()) {
      const std::lock_guard guard(written_mutex);
      if (written_here().count(whole) > 0) {
        throw refused("log.twice",
                      fmt::format("log: {} has been written by a run of this script already", log),
                      fmt::format("give each run a log of its own: {}; or write overwrite = true",
                                  own_log(log, "{name}-{seed}")));
      }
    }
    if (there) {
      const OtherWriter found = read_owner(path_);
      stays_ = has_all(found, owner);
      note_ = may_replace(found, owner, overwrite);
      if (!stays_) put_aside(found.status == "done");
    }
  } catch (...) {
    LogClaim ends(std::move(*this));
    throw;
  }
  const std::lock_guard guard(written_mutex);
  written_here().insert(whole);
}

void LogClaim::lock() try {
  lock_ = FileLock(path_.parent_path() / fmt::format(".{}.lock", path_.filename().string()));
  if (lock_.held()) return;
  throw refused(
      "log.in-use",
      fmt::format("log: {} is being written by another run{}", named_,
                  lock_.holder().empty() ? "" : ", " + lock_.holder()),
      fmt::format("give this one a log of its own, {}; or {}", own_log(named_, "{name}-{seed}"),
                  lock_.unsure().empty()
                      ? "wait"
                      : fmt::format("remove {} if that run has ended", lock_.unsure().string())));
} catch (const std::system_error& error) {
  throw refused("log.folder",
                fmt::format("log: cannot write {}: its lock: {}", named_, error.code().message()),
                "name a file in a folder that you may write to");
}

// Keeps the existing log as NAME.earlier.h5. One kept there already gives way only to a finished
// run's.
void LogClaim::put_aside(bool whole) {
  fs::path beside = path_;
  beside.replace_filename(path_.stem().string() + ".earlier" + path_.extension().string());
  std::error_code error;
  if (whole || !fs::exists(beside, error)) {
    fs::remove(beside, error);
    fs::create_hard_link(path_, beside, error);
    if (error) fs::copy_file(path_, beside, error);
    if (error) {
      throw refused("log.folder",
                    fmt::format("log: cannot keep the earlier {} as {}: {}", named_,
                                beside.string(), error.message()),
                    "make room for it, or name another log");
    }
  }
  earlier_ = beside;
  note_ += fmt::format("; {} is kept until this one is done", beside.filename().string());
}

void LogClaim::done() {
  std::error_code ignored;
  if (!earlier_.empty()) fs::remove(std::exchange(earlier_, {}), ignored);
}

}  // namespace mw
