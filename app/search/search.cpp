// The verb mw.search: reads the table, searches, and writes what was found.
#include "app/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "app/texts.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "script/read_search.h"
#include "search/search.h"

namespace mw {
namespace {

Json found_json(const FoundPlan& found) {
  Json json = {{"plan", found.plan},
               {"entries", found.entries},
               {"microbatch", found.microbatch},
               {"recompute", found.recompute},
               {"offload", found.offload},
               {"layers", found.layers},
               {"fits", found.fits},
               {"room", found.fits ? name_of(found.predicted.room()) : "does not fit"},
               {"closed_form_seconds", found.closed_form_seconds},
               {"closed_form_bytes", found.closed_form_bytes},
               {"closed_form_host_bytes", found.closed_form_host_bytes},
               {"beyond_measured", found.beyond_measured()},
               {"predicted", found.predicted.to_json()}};
  if (found.measured) json["nearest_measured"] = found.measured->step.to_json();
  return json;
}

Json all_json(const std::vector<FoundPlan>& plans) {
  Json all = Json::array();
  for (const FoundPlan& one : plans) all.push_back(found_json(one));
  return all;
}

// Optional columns of a table of plans: some plan has them.
struct Columns {
  bool staged = false;
  bool offload = false, reported = false, host = false, room = false;
  bool measured = false;  // some plan has a nearest measured step

  explicit Columns(const std::vector<FoundPlan>& plans) {
    for (const FoundPlan& one : plans) {
      offload = offload || one.offload != "none";
      reported = reported || !one.predicted.most_reported().beside.empty();
      host = host || one.predicted.host_needed > 0;
      measured = measured || one.measured.has_value();
      room = room || one.predicted.room() != Room::ample;
      staged = staged || one.predicted.stages.size() > 1;
    }
  }
};

// A duration in as many digits as people read.
std::string seconds_text(double seconds) {
  return seconds < 1e-3   ? fmt::format("{:.0f} us", 1e6 * seconds)
         : seconds < 0.01 ? fmt::format("{:.1f} ms", 1e3 * seconds)
         : seconds < 1    ? fmt::format("{:.0f} ms", 1e3 * seconds)
         : seconds < 10   ? fmt::format("{:.1f} s", seconds)
                          : fmt::format("{:.0f} s", seconds);
}
std::string step_text(double seconds) {
  return seconds < 1000 ? fmt::format("{:.4g} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::string table_text(const std::vector<FoundPlan>& plans) {
  const Columns columns(plans);
  std::vector<std::string> header = {"", "plan", "microbatch", "recompute"};
  if (columns.offload) header.emplace_back("offload");
  std::vector<std::size_t> right = {0, 2};
  const auto numbers = [&](const char* name) {
    right.push_back(header.size());
    header.emplace_back(name);
  };
  for (const char* name : {"step", "closed form", "MFU", "memory"}) numbers(name);
  if (columns.reported) numbers("reported");
  if (columns.host) numbers("host, a node");
  if (columns.room) header.emplace_back("room");
  if (columns.measured) header.emplace_back("measured");
  TextTable table(header, right);
  const auto bytes = [](std::int64_t count) { return format_bytes(static_cast<double>(count)); };
  int number = 0;
  std::int64_t above = 0;
  for (const FoundPlan& one : plans) {
    const Prediction& p = one.predicted;
    std::vector<std::string> row = {std::to_string(++number), one.plan,
                                    std::to_string(one.microbatch), json_text(one.recompute)};
    if (columns.offload) row.push_back(json_text(one.offload));
    row.push_back(step_text(p.step_seconds));
    row.push_back(step_text(one.closed_form_seconds));
    row.push_back(fmt::format("{:.1f} %", 100 * p.mfu));
    row.push_back(bytes(p.fullest().memory.peak));
    if (columns.reported) {
      row.push_back((p.reported_above() ? "* " : "") + bytes(p.most_reported().reported()));
      above = std::max(above, p.reported_above() ? p.memory_limit : 0);
    }
    if (columns.host) row.push_back(bytes(p.host_needed));
    if (columns.room) row.emplace_back(name_of(p.room()));
    if (columns.measured) row.emplace_back(one.beyond_measured() ? "beyond" : "near");
    table.add(row);
  }
  const std::string mark =
      above > 0 ? fmt::format("\n  *: more than the device's {}\n", bytes(above)) : "";
  const char* even = columns.staged ? "\n  closed form assumes stages with equal numbers of "
                                      "layers; step and memory are those of the "
                                      "chosen layout\n"
                                    : "";
  return table.text("  ") + mark + even;
}

// Lists of values by key, in the order in which keys came first.
template <class Value>
class Grouped {
 public:
  std::vector<Value>& of(const std::string& key) {
    const auto known =
        std::find_if(all_.begin(), all_.end(), [&](const auto& one) { return one.first == key; });
    return (known == all_.end() ? all_.emplace_back(key, std::vector<Value>()) : *known).second;
  }
  const auto& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::vector<Value>>> all_;
};

// Notes under a table of plans: what the stack's software cannot run, which plans lie beyond what
// was measured, and what `plan` says of memory: all of it of the first plan, what is nearly too
// much of the others.
std::string notes_text(const std::vector<FoundPlan>& plans) {
  Grouped<int> notes;  // each note once, with the numbers of its plans
  int number = 0;
  const auto add = [&](const std::string& note) { notes.of(note).push_back(number); };
  for (const FoundPlan& one : plans) {
    ++number;
    if (!one.predicted.cannot_run.empty())
      add("its stack's software cannot run this: " + join(one.predicted.cannot_run, "; "));
    for (const std::string& work : one.predicted.undeclared) add(work);
    if (one.measured && one.beyond_measured())
      add("beyond what was measured under its stack; the nearest was " +
          measured_text(one.measured->step));
    std::istringstream lines((number == 1 ? reported_text(one.predicted) : "") +
                             room_text(one.predicted));
    for (std::string line; std::getline(lines, line);) add(line.substr(2));
  }
  std::string text;
  for (const auto& [note, of] : notes.all())
    text += fmt::format("  {}: {}\n", fmt::join(of, ", "), note);
  return text.empty() ? "" : "\n" + text;
}

// "the schedule gpipe (it has 1f1b)" and "the schedule zbv (it has 1f1b)" as one phrase.
std::string together(const std::vector<std::string>& phrases) {
  constexpr std::string_view what_it_has = " (it has ";
  // beginnings of phrases by their end; a phrase without such an end is a key itself
  Grouped<std::string> heads;
  for (const std::string& phrase : phrases) {
    const std::size_t at = phrase.rfind(what_it_has);
    if (at == std::string::npos) {
      heads.of(phrase) = {""};
    } else {
      heads.of(phrase.substr(at)).push_back(phrase.substr(0, at));
    }
  }
  std::vector<std::string> list;
  for (const auto& [tail, before] : heads.all()) list.push_back(join(before) + tail);
  return join(list, "; ");
}

// Says what the search left out as the stack's software cannot run it, or that it left out nothing.
std::string software_text(const SearchRequest& request, const SearchOutcome& found) {
  const std::string& name = request.machine->stack().name;
  if (request.unsupported)
    return fmt::format("  what the software of {} cannot run is proposed too (unsupported)\n\n",
                       name);
  if (found.left_out.empty()) return "";
  return fmt::format("  left out, as the software of {} lacks it: {}\n\n", name,
                     together(found.left_out));
}

std::string search_text(const SearchRequest& request, const SearchOutcome& found) {
  std::string text = fmt::format("search on {}, {} ranks of {}{}\n", request.machine->name(),
                                 request.ranks, format_bytes(static_cast<double>(request.memory)),
                                 found.interrupted ? ": interrupted" : "");
  text += fmt::format(
      "  {} candidates priced, {} refused; {} fit; {} a second of a core: {} for {} plans of "
      "few layers and orders of works, {} for the sums\n"
      "  {} planned whole in {}; all in {}\n\n",
      found.candidates, found.refused, found.fitting, std::llround(found.rate()),
      seconds_text(found.probing_seconds), found.probes, seconds_text(found.pricing_seconds),
      found.checked.size(), seconds_text(found.checking_seconds), seconds_text(found.seconds));
  text += software_text(request, found);
  if (request.machine->stack().measured.empty())
    text += fmt::format(
        "  no step was published under the stack {}: all of these are beyond what was "
        "measured\n\n",
        request.machine->stack().name);
  text += table_text(found.best) + notes_text(found.best);
  if (found.edge.size() > 1) text += "\n  less memory, more time\n\n" + table_text(found.edge);
  text += "\n";
  std::istringstream why(found.why);
  for (std::string line; std::getline(why, line);) text += "  " + line + "\n";
  return text;
}

// Adds to each listed plan how other software is told to run it. Returns the text of the first plan
// for the software `as`.
std::string add_elsewhere(const Json& table, const SearchRequest& request, const std::string& as,
                          Json& best) {
  const PlanRequest& plan = request.base->request;
  const Json searched = {{"model", table.value("model", Json::object())},
                         {"batch", plan.batch},
                         {"sequence", plan.sequence},
                         {"layers", request.base->graph->layers},
                         {"precision", name_of(plan.precision)}};
  const Json written = from_library("search_as", {{"best", best}, {"searched", searched}});
  for (std::size_t n = 0; n < best.size(); ++n) {
    for (const bool megatron : {true, false}) {
      const Json& one = written[n][megatron ? 0 : 1];
      best[n][megatron ? "megatron" : "torchtitan"] = {
          {"text", one[0]}, {"before", one[1]}, {"cannot", Json(one.begin() + 3, one.end())}};
    }
  }
  if (as.empty() || best.empty()) return "";
  const bool megatron = as == "megatron";
  return fmt::format("\nplan 1 as {}\n\n{}",
                     megatron ? "flags of Megatron-LM" : "TOML of torchtitan",
                     written[0][megatron ? 0 : 1][2].get<std::string>());
}

}  // namespace

Json run_search(const Json& table, const ReadContext& context, const std::string& as,
                Output& output) {
  ReadSearch read = read_search(table, context);
  if (!output.json() && !output.quiet())
    read.request.progress = [&output](const std::string& text) { output.note(text); };
  const OnStopSay words("stopping: the best of those so far follow; once more ends that too");
  const SearchOutcome found = search(read.request);
  Json result = {{"kind", "search"},
                 {"status", found.interrupted ? "interrupted" : "done"},
                 {"interrupted", found.interrupted},
                 {"priced_for", read.request.machine->name()},
                 {"ranks", read.request.ranks},
                 {"rank_memory_limit", read.request.memory},
                 {"candidates", found.candidates},
                 {"refused", found.refused},
                 {"fitting", found.fitting},
                 {"candidates_per_second", found.rate()},
                 {"probes", found.probes},
                 {"seconds", found.seconds},
                 {"probing_seconds", found.probing_seconds},
                 {"pricing_seconds", found.pricing_seconds},
                 {"checking_seconds", found.checking_seconds}};
  if (const std::int64_t host = read.request.machine->host().bytes; host > 0)
    result["host_memory_limit"] = host;
  result["unsupported"] = read.request.unsupported;
  result["left_out"] = found.left_out;
  result["best"] = all_json(found.best);
  result["edge"] = all_json(found.edge);
  result["checked"] = all_json(found.checked);
  result["why"] = found.why;
  const std::string elsewhere = add_elsewhere(table, read.request, as, result["best"]);
  result["text"] = search_text(read.request, found) + elsewhere;
  return result;
}

}  // namespace mw
