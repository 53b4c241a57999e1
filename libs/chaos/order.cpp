// Lists the kinds of faults, and writes and reads the files by which a rank hears of its own.
#include "chaos/order.h"

#include <system_error>

#include "common/files.h"
#include "meshwright/engine/files.h"
#include "meshwright/json.h"

namespace mw::chaos {
namespace {

constexpr const char* order_file = "order.json";
constexpr const char* taken_file = "taken.json";
constexpr const char* files_file = "files.json";

void put_json(const std::filesystem::path& path, const Json& json) {
  if (const int failed = replace_whole(path, json.dump()); failed != 0)
    throw not_written(path, failed);
}

}  // namespace

const std::vector<FaultKind>& fault_kinds() {
  static const std::vector<FaultKind> all = {
      {.name = "error",
       .about = "a rank throws at a collective",
       .fate = Fate::ends,
       .way = Way::throws_error,
       .named = Named::rank},
      {.name = "kill",
       .about = "a process is killed (SIGKILL)",
       .fate = Fate::ends,
       .way = Way::kills_rank},
      // Once the launcher is killed, nobody is left to say anything.
      {.name = "launcher",
       .about = "what started the processes is killed",
       .fate = Fate::ends,
       .way = Way::kills_launcher,
       .may_be_silent = true},
      {.name = "hang",
       .about = "a process stands still for longer than the timeout",
       .fate = Fate::ends,
       .way = Way::stops_one,
       .several = true,
       .longer = true},
      {.name = "pause",
       .about = "a process stands still for less than the timeout",
       .fate = Fate::passes,
       .way = Way::stops_one},
      {.name = "suspend",
       .about = "all processes stand still for longer than the timeout",
       .fate = Fate::passes,
       .way = Way::stops_all,
       .longer = true},
      {.name = "slow",
       .about = "a rank is late at each collective for a while",
       .fate = Fate::passes,
       .way = Way::sleeps_often},
      {.name = "delay",
       .about = "a message comes late, within the timeout",
       .fate = Fate::passes,
       .way = Way::sleeps_once},
      {.name = "lost",
       .about = "a message is lost",
       .fate = Fate::ends,
       .way = Way::loses_call,
       .named = Named::rank,
       .longer = true},
      {.name = "clock",
       .about = "the wall clock jumps",
       .fate = Fate::passes,
       .way = Way::turns_clock},
      {.name = "full",
       .about = "no file can be written beyond 4 KiB, as on a full disk",
       .fate = Fate::told,
       .way = Way::fills_disk},
      {.name = "read-only",
       .about = "the folder of the checkpoints cannot be written",
       .fate = Fate::told,
       .way = Way::closes_folder},
      {.name = "nan",
       .about = "NaN comes up in a tensor of one rank",
       .fate = Fate::ends,
       .way = Way::makes_nan},
      {.name = "flip-checkpoint",
       .about = "a bit flips in a file of the newest checkpoint",
       .fate = Fate::ends,
       .way = Way::flips_checkpoint,
       .named = Named::file,
       .checkpoints = 2},
      // A flipped bit need not make the run file wrong.
      {.name = "flip-run-file",
       .about = "a bit flips in the run file",
       .fate = Fate::ends,
       .way = Way::flips_run_file,
       .may_be_silent = true},
      {.name = "flip-shard",
       .about = "a bit flips in a file of the data",
       .fate = Fate::ends,
       .way = Way::flips_data,
       .named = Named::file},
      {.name = "flip-gradient",
       .about = "a bit flips in a gradient before its sum",
       .fate = Fate::unseen,
       .way = Way::flips_gradient}};
  return all;
}

const FaultKind* kind_of(const std::string& name) {
  for (const FaultKind& kind : fault_kinds())
    if (name == kind.name) return &kind;
  return nullptr;
}

void give_order(const std::filesystem::path& folder, const Order& order) {
  put_json(folder / order_file, {{"id", order.id},
                                 {"kind", order.kind->name},
                                 {"rank", order.rank},
                                 {"seconds", order.seconds},
                                 {"draw", order.draw}});
}

void withdraw_order(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::remove(folder / order_file, ignored);
}

std::optional<Order> order_in(const std::filesystem::path& folder) {
  const Json json = read_json(folder / order_file);
  if (!json.is_object()) return std::nullopt;
  const FaultKind* kind = kind_of(json.value("kind", ""));
  if (kind == nullptr) return std::nullopt;
  return Order{json.value("id", std::int64_t{0}), kind, json.value("rank", 0),
               json.value("seconds", 0.0), json.value("draw", std::uint64_t{0})};
}

void note_taken(const std::filesystem::path& folder, const Taken& taken) {
  put_json(folder / taken_file,
           {{"id", taken.id}, {"step", taken.step}, {"rank", taken.rank}, {"call", taken.call}});
}

std::optional<Taken> taken_in(const std::filesystem::path& folder) {
  const Json json = read_json(folder / taken_file);
  if (!json.is_object()) return std::nullopt;
  return Taken{json.value("id", std::int64_t{0}), json.value("step", std::int64_t{-1}),
               json.value("rank", 0), json.value("call", "")};
}

void note_files(const std::filesystem::path& folder, const std::vector<SourceFile>& files) {
  Json list = Json::array();
  for (const SourceFile& file : files) {
    list.push_back(
        {{"path", std::filesystem::absolute(file.path).string()}, {"implied", file.implied}});
  }
  put_json(folder / files_file, list);
}

std::vector<SourceFile> files_in(const std::filesystem::path& folder) {
  std::vector<SourceFile> files;
  const Json list = read_json(folder / files_file);
  if (!list.is_array()) return files;
  for (const Json& file : list)
    files.push_back({file.value("path", ""), file.value("implied", false)});
  return files;
}

}  // namespace mw::chaos
