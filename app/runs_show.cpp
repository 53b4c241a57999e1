// `meshwright runs show`: all that a run file says of its run.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "app/runs_rows.h"
#include "common/run_timing.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "record/run_result.h"

namespace mw {
namespace {

std::string bytes_or_dash(std::int64_t bytes) {
  return bytes < 0 ? "-" : format_bytes(static_cast<double>(bytes));
}

Json bytes_or_null(std::int64_t bytes) {
  return bytes < 0 ? Json() : Json(bytes);
}

struct MeasuredBytes {
  std::int64_t measured = -1, predicted = -1;
};

// The rank with most of each category, and with the highest peak.
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

// What the rank that sends most of each has sent in the last step, and the calls of the rank that
// makes most.
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

std::string experiment_text(const Json& experiment) {
  TextTable table({"", ""});
  for (const auto& [key, value] : leaves(experiment)) {
    if (value.is_null()) continue;
    table.add({key, value.is_string() ? value.get<std::string>() : json_text(value)});
  }
  return table.text("  ");
}

std::string events_text(RunReader& reader) {
  const Table events = reader.table("events");
  std::string text;
  const auto kind = events.texts("kind"), message = events.texts("message");
  const auto step = events.integers("step");
  for (std::size_t r = 0; r < kind.size(); ++r)
    text += fmt::format("  step {}: {}: {}\n", step[r], kind[r], message[r]);
  return text;
}

std::string head_text(const RunEntry& entry, const RunHead& head) {
  std::string text = readable_line(fmt::format("{}: {}", entry.name, entry.status));
  if (!entry.reason.empty()) text += ": " + readable_line(entry.reason);
  text += '\n';
  const auto line = [&](const char* what, const std::string& value) {
    if (!value.empty()) text += fmt::format("  {:10}{}\n", what, readable_line(value));
  };
  line("file", entry.path.string());
  line("mix", head.mix());
  line("hash", head.hash);
  line("plan hash", head.plan_hash);
  line("seed", std::to_string(head.seed));
  line("created", head.created);
  line("machine", head.host);
  line("sweep", entry.sweep);
  for (const auto& [key, value] : entry.values) line("", fmt::format("{} = {}", key, value));
  std::vector<std::string> versions;
  if (head.versions.is_object()) {
    for (const auto& [name, version] : head.versions.items())
      versions.push_back(fmt::format(
          "{} {}", name, version.is_string() ? version.get<std::string>() : json_text(version)));
  }
  line("versions", join(versions));
  return text;
}

// A run folder's machine.json is more than the file's host.
std::string machine_text(const RunEntry& entry) {
  if (entry.folder.empty()) return "";
  std::error_code error;
  const auto file = entry.folder / "machine.json";
  return std::filesystem::exists(file, error)
             ? fmt::format("  machine's own file: {}\n", file.string())
             : "";
}

std::string result_text(const Json& numbers, const RunTiming& timing) {
  TextTable table({"", ""}, {1});
  for (const char* field :
       {"steps", "first_loss", "loss", "grad_norm", "step_seconds", "tokens_per_second",
        "cpu_seconds_per_step", "mfu", "bubble_fraction", "startup_seconds"})
    table.add({field, field_text(field, numbers[field])});
  table.add({"others_cores", field_text("others_cores", numbers["others_cores"])});
  std::string text = table.text("  ");
  if (const std::string why = disturbance_text(timing); !why.empty())
    text += fmt::format("  {}{}\n", why,
                        timing.disturbed ? "; its wall seconds are not the machine's own" : "");
  return text;
}

void show(const RunEntry& entry, Output& output) {
  RunReader reader(entry.path);
  const RunHead head = reader.head();
  const Json numbers = run_numbers(reader);
  const Json experiment = experiment_of(reader);
  const Json kept = reader.result();
  const auto memory = memory_beside(reader);
  const auto sent = sent_of(reader);

  Json json = run_result(reader, entry);
  json["kind"] = "run";
  json["memory_beside_predicted"] = Json::object();
  for (const auto& [name, sizes] : memory) {
    json["memory_beside_predicted"][name] = {{"bytes", bytes_or_null(sizes.measured)},
                                             {"predicted_bytes", bytes_or_null(sizes.predicted)}};
  }
  if (!output.json()) {
    std::string text = head_text(entry, head) + machine_text(entry);
    text += "\nexperiment\n" + experiment_text(experiment);
    if (kept.is_object() && kept.contains("plan") && kept["plan"].is_string())
      text += "\n" + kept["plan"].get<std::string>();
    text += "\nresult\n" + result_text(numbers, read_timing(kept));
    if (!memory.empty()) {
      TextTable table({"memory", "measured", "predicted"}, {1, 2});
      for (const auto& [name, sizes] : memory)
        table.add({name, bytes_or_dash(sizes.measured), bytes_or_dash(sizes.predicted)});
      text += "\n" + table.text("  ");
    }
    if (!sent.empty()) {
      TextTable table({"axis", "op", "phase", "calls", "bytes a rank and step", "predicted"},
                      {3, 4, 5});
      for (const auto& [key, use] : sent) {
        table.add({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::to_string(use.calls),
                   bytes_or_dash(use.bytes.measured), bytes_or_dash(use.bytes.predicted)});
      }
      text += "\n" + table.text("  ");
    }
    if (reader.table("account").rows > 0)
      text += fmt::format("\n  account: where the seconds of a step went: runs show {} --where\n",
                          entry.path.string());
    if (kept.is_object() && kept.contains("experts") && kept["experts"].contains("note"))
      text += fmt::format("\n  {}\n", kept["experts"]["note"].get<std::string>());
    if (const std::string events = events_text(reader); !events.empty())
      text += "\nevents\n" + events;
    output.text(text);
  }
  output.result(json);
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
