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

void put_json(const std::filesystem::path& path, const Json& json) {
  if (const int failed = replace_whole(path, json.dump()); failed != 0)
    throw not_written(path, failed);
}

}  // namespace

const std::vector<FaultKind>& fault_kinds() {
  static const std::vector<FaultKind> all = {
      {"error", "a rank throws at a collective", Fate::ends, true, false},
      {"kill", "a process is killed (SIGKILL)", Fate::ends, false, false},
      {"launcher", "what started the processes is killed", Fate::ends, false, false},
      {"hang", "a process stands still for longer than the timeout", Fate::ends, false, true},
      {"pause", "a process stands still for less than the timeout", Fate::passes, false, false},
      {"suspend", "all processes stand still for longer than the timeout", Fate::passes, false,
       false},
      {"slow", "a rank is late at each collective for a while", Fate::passes, true, false},
      {"delay", "a message comes late, within the timeout", Fate::passes, true, false},
      {"lost", "a message is lost", Fate::ends, true, false},
      {"clock", "the wall clock jumps", Fate::passes, false, false},
      {"full", "no file can be written beyond 4 KiB, as on a full disk", Fate::told, false, false},
      {"read-only", "the folder of the checkpoints cannot be written", Fate::told, false, false},
      {"nan", "NaN comes up in a tensor of one rank", Fate::ends, true, false},
      {"flip-checkpoint", "a bit flips in a file of the newest checkpoint", Fate::ends, false,
       false},
      {"flip-run-file", "a bit flips in the run file", Fate::ends, false, false},
      {"flip-shard", "a bit flips in a file of the data", Fate::ends, false, false},
      {"flip-gradient", "a bit flips in a gradient before its sum", Fate::unseen, true, false}};
  return all;
}

const FaultKind* kind_of(const std::string& name) {
  for (const FaultKind& kind : fault_kinds())
    if (name == kind.name) return &kind;
  return nullptr;
}

void give_order(const std::filesystem::path& folder, const Order& order) {
  put_json(folder / order_file, {{"id", order.id},
                                 {"kind", order.kind},
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
  return Order{json.value("id", std::int64_t{0}), json.value("kind", ""), json.value("rank", 0),
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

}  // namespace mw::chaos
