// `meshwright runs show`: all that a run file says of its run, or where the seconds of a step went.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "app/runs_rows.h"
#include "app/texts.h"
#include "common/run_timing.h"
#include "meshwright/error.h"
#include "record/account.h"
#include "record/run_result.h"

namespace mw {
namespace {

Json bytes_or_null(std::int64_t bytes) {
  return bytes < 0 ? Json() : Json(bytes);
}

struct MeasuredBytes {
  std::int64_t measured = -1, predicted = -1;
};

// Measured and predicted peaks: of the rank with the highest, and of that with most of each
// category.
std::vector<std::pair<std::string, MeasuredBytes>> memory_beside(RunReader& reader) {
  std::vector<std::pair<std::string, MeasuredBytes>> lines;
  const auto add = [&](const std::string& name, std::int64_t measured, std::int64_t predicted) {
    auto at = std::find_if(lines.begin(), lines.end(), [&](auto& l) { return l.first == name; });
    if (at == lines.end()) at = lines.insert(lines.end(), {name, {}});
    at->second.measured = std::max(at->second.measured, measured);
    at->second.predicted = std::max(at->second.predicted, predicted);
  };
  const auto take = [&](const Table& table, bool all) {
    const auto category = table.texts("category");
    const auto peak = table.integers("peak_bytes"), predicted = table.integers("predicted_bytes");
    for (std::size_t r = 0; r < peak.size(); ++r)
      add(all ? "a rank's peak" : category[r], peak[r], predicted[r]);
  };
  take(reader.table("rank_memory"), true);
  take(reader.table("memory"), false);
  return lines;
}

struct Sent {
  std::int64_t calls = 0;
  MeasuredBytes bytes;
  double seconds = 0;
};
using SentKey = std::tuple<std::string, std::string, std::string>;  // axis, op, phase

// Transfers of the last step: bytes and seconds of the rank that sent most, and the most calls.
std::map<SentKey, Sent> sent_of(RunReader& reader) {
  std::map<SentKey, Sent> most;
  const Table steps = reader.table("steps");
  if (steps.rows == 0) return most;
  const Table table = reader.table_of_step("communication", steps.integers("step").back());
  const auto axis = table.texts("axis"), op = table.texts("op"), phase = table.texts("phase");
  const auto calls = table.integers("calls"), bytes = table.integers("bytes"),
             predicted = table.integers("predicted_bytes");
  const auto seconds = table.numbers("seconds");
  for (std::size_t r = 0; r < axis.size(); ++r) {
    Sent& known = most[{axis[r], op[r], phase[r]}];
    const std::int64_t most_calls = std::max(known.calls, calls[r]);
    if (bytes[r] > known.bytes.measured) known = {calls[r], {bytes[r], predicted[r]}, seconds[r]};
    known.calls = most_calls;
  }
  return most;
}

// What the text for people is made of: `json`, and more of the run file.
Json for_people(const RunEntry& entry, RunReader& reader, const Json& json) {
  const RunTiming timing = read_timing(reader.result());
  Json told = {{"run", json},
               {"mix", reader.head().mix()},
               {"kept", reader.result()},
               {"numbers", run_numbers(reader)},
               {"disturbance", disturbance_text(timing)},
               {"disturbed", timing.disturbed},
               {"account", reader.table("account").rows > 0},
               {"sent", Json::array()},
               {"events", Json::array()}};
  // The run folder's machine.json says more of the machine than the run file's host.
  const auto machine = entry.folder / "machine.json";
  std::error_code error;
  if (!entry.folder.empty() && std::filesystem::exists(machine, error))
    told["machine"] = machine.string();
  for (const auto& [key, use] : sent_of(reader)) {
    const auto& [axis, op, phase] = key;
    told["sent"].push_back({axis, op, phase, use.calls, bytes_or_null(use.bytes.measured),
                            bytes_or_null(use.bytes.predicted)});
  }
  const Table events = reader.table("events");
  const auto kind = events.texts("kind"), message = events.texts("message");
  const auto step = events.integers("step");
  for (std::size_t r = 0; r < kind.size(); ++r)
    told["events"].push_back({step[r], kind[r], message[r]});
  return told;
}

void show(const RunEntry& entry, Output& output) {
  RunReader reader(entry.path);
  Json json = run_result(reader, entry);
  json["kind"] = "run";
  json["memory_beside_predicted"] = Json::object();
  for (const auto& [name, sizes] : memory_beside(reader)) {
    json["memory_beside_predicted"][name] = {{"bytes", bytes_or_null(sizes.measured)},
                                             {"predicted_bytes", bytes_or_null(sizes.predicted)}};
  }
  if (!output.json())
    output.text(from_library("runs_show", for_people(entry, reader, json)).get<std::string>());
  output.result(json);
}

// Throws Error (options) if no account was taken of a step.
void show_where(const RunEntry& entry, Output& output) {
  RunReader reader(entry.path);
  const std::optional<Account> account = read_account(reader);
  if (!account)
    throw Error(
        Stage::options, "account.missing", "",
        fmt::format("run file {}: no account was taken of any of its steps", entry.path.string()),
        "set account = true in the experiment, or --set account=true, and run it again");
  Json json = {{"kind", "account"}, {"name", entry.name}, {"mix", reader.head().mix()}};
  json.update(account->to_json());
  output.result(json);
  if (output.json()) return;
  json["together"] = account->whole.to_json();
  output.text(from_library("account", json).get<std::string>());
}

int show_run(const RunsArguments& arguments, Output& output) {
  const RunEntry entry = find_run(arguments.files.front());
  reading(entry.path, [&] { arguments.account ? show_where(entry, output) : show(entry, output); });
  return 0;
}

const CommandOf<RunsArguments> runs_show_command{
    {"runs show", 152, "one run: its experiment, machine, plan, result, memory, bytes and events"},
    [](CLI::App& command, RunsArguments& a) {
      command.footer("runs/quickstart.h5");
      add_run_files(command, a)->required()->expected(1);
      command.add_flag("--where", a.account,
                       "where the seconds of a step went, of a run with account = true");
      add_json(command, a);
    },
    show_run};

}  // namespace
}  // namespace mw
