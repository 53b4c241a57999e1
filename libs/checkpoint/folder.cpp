// Locks a folder of checkpoints, lists it, and gives checkpoints their names once they are whole.
#include "checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <random>
#include <system_error>

#include "checkpoint/index.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// Endings of hidden folders, after ".step-00000100". A staged checkpoint also has the run's mark:
// ".step-00000100.5f0c19a2.writing".
constexpr const char* staged_end = ".writing";   // a checkpoint that is not complete
constexpr const char* old_end = ".old";          // a complete one that another is to replace
constexpr const char* removed_end = ".removed";  // one that is being removed
constexpr const char* lock_file = ".lock";

std::string hidden_checkpoint(std::int64_t step, const char* end) {
  return "." + checkpoint_name(step) + end;
}

Error cannot_write(const fs::path& path, int reason) {
  return {Stage::run, "checkpoint.write", "checkpoint.path",
          fmt::format("{}: {}", path.string(), std::generic_category().message(reason))};
}

[[noreturn]] void cannot_use(const fs::path& path, const std::string& why) {
  throw Error(Stage::options, "checkpoint.folder", "checkpoint.path",
              fmt::format("checkpoint.path: cannot write to {}: {}", path.string(), why),
              "name a folder that you may write to");
}

// Locks the folder. Throws Error (options, checkpoint.in-use) if another run has the lock.
FileLock locked(const fs::path& path) try {
  FileLock lock(path / lock_file);
  if (lock.held()) return lock;
  throw Error(
      Stage::options, "checkpoint.in-use", "checkpoint.path",
      fmt::format("checkpoint.path: another run writes its checkpoints to {}{}", path.string(),
                  lock.holder().empty() ? "" : ", " + lock.holder()),
      fmt::format(
          "give this one a folder of its own, path = \"checkpoints/{{name}}-{{seed}}\"; or {}",
          lock.unsure().empty()
              ? "wait"
              : fmt::format("remove {} if that run has ended", lock.unsure().string())));
} catch (const std::system_error& error) {
  cannot_use(path, fmt::format("its lock: {}", error.code().message()));
}

// The step in "step-00000100"; -1: no checkpoint's name.
std::int64_t step_of(std::string_view name) {
  constexpr std::string_view begin = "step-";
  std::int64_t step = -1;
  if (!name.starts_with(begin)) return -1;
  name.remove_prefix(begin.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

// Whether a folder with a checkpoint's name may be one: it has an index, or, if the index is lost,
// nothing but files of ranks. Anything else was put there by somebody and must not be removed.
bool may_be_checkpoint(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  bool others = false;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name == index_file) return true;
    others = others || !name.starts_with("rank-") || !name.ends_with(".safetensors");
  }
  return !others;
}

// Renames a checkpoint and then removes it, so that half of one never has a checkpoint's name.
std::error_code remove_as(const fs::path& from, const fs::path& to) {
  std::error_code error, ignored;
  fs::remove_all(to, ignored);
  fs::rename(from, to, error);
  fs::remove_all(to, error ? ignored : error);
  return error;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

std::vector<CheckpointEntry> checkpoints_in(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / index_file, error)) {
    const fs::path whole = fs::absolute(path, error).lexically_normal();
    const fs::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
    return {{std::max<std::int64_t>(0, step_of(name.string())), path}};
  }
  std::vector<CheckpointEntry> found;
  error.clear();
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::int64_t step = step_of(at->path().filename().string());
    if (step >= 0) found.push_back({step, at->path()});
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw Error(
        Stage::options, "file.read", "",
        fmt::format("cannot list the checkpoints in {}: {}", path.string(), error.message()));
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

fs::path staging_folder(const fs::path& path, std::int64_t step, const std::string& mark) {
  return path / hidden_checkpoint(step, ("." + mark + staged_end).c_str());
}

void write_to_disk(const fs::path& file, const std::string& text) {
  if (const int reason = replace_whole(file, text); reason != 0) throw cannot_write(file, reason);
}

void sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) throw cannot_write(folder, errno);
  const int reason = ::fsync(file) == 0 ? 0 : errno;
  ::close(file);
  // EINVAL: the file system cannot sync a folder.
  if (reason != 0 && reason != EINVAL) throw cannot_write(folder, reason);
}

CheckpointFolder::CheckpointFolder(const fs::path& path)
    : path_(behind_links(path)), mark_(fmt::format("{:08x}", std::random_device()())) {
  check_may_write(path, "checkpoint.path");
  const auto refuse = [&](const std::string& why) { cannot_use(path, why); };
  std::error_code error;
  if (fs::exists(path_ / index_file, error)) {  // no checkpoint inside would be found
    throw Error(Stage::options, "checkpoint.folder", "checkpoint.path",
                fmt::format("checkpoint.path: {} is a checkpoint, not a folder of checkpoints",
                            path.string()),
                "name the folder in which it lies");
  }
  fs::create_directories(path_, error);
  if (error) refuse(error.message());
  if (!fs::is_directory(path_, error)) refuse("it is no folder");
  fs::path tried;
  const int file = create_unguessable(path_, ".tried", tried);
  if (file < 0) refuse(std::generic_category().message(errno));
  ::close(file);
  fs::remove(tried, error);
  lock();
  clear_leftovers();
  for (const CheckpointEntry& entry : checkpoints_in(path_)) {
    if (may_be_checkpoint(entry.folder)) continue;
    throw Error(
        Stage::options, "checkpoint.folder", "checkpoint.path",
        fmt::format("checkpoint.path: {} has the name of a checkpoint and is none: there is "
                    "no {}",
                    entry.folder.string(), (entry.folder.filename() / index_file).string()),
        "move it away, or name another folder");
  }
}

void CheckpointFolder::lock() {
  lock_ = locked(path_);
}

void CheckpointFolder::hold() {
  std::error_code error;
  // In a folder that is gone there is nothing to lock.
  if (lock_.still_held() || !fs::is_directory(path_, error)) return;
  lock();
}

void CheckpointFolder::clear_leftovers() const {
  std::error_code error;
  std::vector<fs::path> hidden;
  for (fs::directory_iterator at(path_, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with(".step-")) hidden.push_back(at->path());
  for (const fs::path& path : hidden) {
    const std::string name = path.filename().string();
    if (name.ends_with(old_end)) {  // commit() was killed between two renames
      const fs::path named = path_ / name.substr(1, name.size() - 1 - std::string(old_end).size());
      if (!fs::exists(named, error)) {
        fs::rename(path, named, error);
        continue;
      }
    }
    fs::remove_all(path, error);
  }
}

void CheckpointFolder::commit(std::int64_t step) {
  hold();
  const fs::path staged = staging_folder(path_, step, mark_), named = path_ / checkpoint_name(step),
                 old = path_ / hidden_checkpoint(step, old_end);
  sync_folder(staged);
  std::error_code error;
  if (!fs::exists(named, error)) {
    fs::rename(staged, named, error);
    if (error) throw cannot_write(named, error.value());
    sync_folder(path_);
    return;
  }
  if (::renameat2(AT_FDCWD, staged.c_str(), AT_FDCWD, named.c_str(), RENAME_EXCHANGE) == 0) {
    sync_folder(path_);
    fs::remove_all(staged, error);
    return;
  }
  // The file system cannot swap names. After a kill between the renames, clear_leftovers() gives
  // the old checkpoint its name back.
  fs::rename(named, old, error);
  if (!error) fs::rename(staged, named, error);
  if (error) throw cannot_write(named, error.value());
  sync_folder(path_);
  fs::remove_all(old, error);
}

std::string CheckpointFolder::keep_newest(std::int64_t keep, std::int64_t step) const {
  if (keep <= 0) return "";
  std::vector<CheckpointEntry> there = checkpoints_in(path_);
  std::erase_if(there, [&](const CheckpointEntry& entry) { return entry.step > step; });
  const auto surplus = static_cast<std::int64_t>(there.size()) - keep;
  std::string stays;
  for (std::int64_t k = 0; k < surplus; ++k) {
    const CheckpointEntry& entry = there[static_cast<std::size_t>(k)];
    if (const std::error_code error = remove(entry.step))
      stays = fmt::format("{} cannot be removed: {}", entry.folder.string(), error.message());
  }
  return stays;
}

std::error_code CheckpointFolder::remove(std::int64_t step) const {
  return remove_as(path_ / checkpoint_name(step), path_ / hidden_checkpoint(step, removed_end));
}

void CheckpointFolder::remove_staged(std::int64_t step) const {
  std::error_code ignored;
  if (lock_.still_held()) fs::remove_all(staging_folder(path_, step, mark_), ignored);
}

void CheckpointFolder::remove_staged_before(std::int64_t step) const {
  std::vector<fs::path> left;
  std::error_code error;
  for (fs::directory_iterator at(path_, error), last; !error && at != last; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with('.') || !name.ends_with(staged_end)) continue;
    const std::int64_t there = step_of(std::string_view(name).substr(1, name.find('.', 1) - 1));
    if (there >= 0 && there < step) left.push_back(at->path());
  }
  for (const fs::path& path : left) fs::remove_all(path, error);
}

}  // namespace mw
