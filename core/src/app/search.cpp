// The verb mw.search: reads the table, searches, and writes what was found.
#include "app/search.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "base/json_text.h"
#include "base/text.h"
#include "predict/search.h"
#include "script/read_search.h"

namespace mw {
namespace {

Json found_json(const FoundPlan& found) {
  return {{"plan", found.plan},
          {"entries", found.entries},
          {"microbatch", found.microbatch},
          {"recompute", found.recompute},
          {"offload", found.offload},
          {"fits", found.fits},
          {"closed_form_seconds", found.closed_form_seconds},
          {"closed_form_bytes", found.closed_form_bytes},
          {"predicted", found.predicted.to_json()}};
}

Json all_json(const std::vector<FoundPlan>& plans) {
  Json all = Json::array();
  for (const FoundPlan& one : plans) all.push_back(found_json(one));
  return all;
}

std::string table_text(const std::vector<FoundPlan>& plans, bool with_offload) {
  std::vector<std::string> header = {"plan", "microbatch", "recompute"};
  if (with_offload) header.emplace_back("offload");
  const std::size_t first = header.size();
  for (const char* name : {"step", "closed form", "MFU", "memory"}) header.emplace_back(name);
  TextTable table(header, {1, first, first + 1, first + 2, first + 3});
  for (const FoundPlan& one : plans) {
    std::vector<std::string> row = {one.plan, std::to_string(one.microbatch),
                                    json_text(one.recompute)};
    if (with_offload) row.push_back(json_text(one.offload));
    row.push_back(fmt::format("{:.4g} s", one.predicted.step_seconds));
    row.push_back(fmt::format("{:.4g} s", one.closed_form_seconds));
    row.push_back(fmt::format("{:.1f} %", 100 * one.predicted.mfu));
    row.push_back(format_bytes(static_cast<double>(one.predicted.fullest().memory.peak)));
    table.add(row);
  }
  return table.text("  ");
}

std::string search_text(const SearchRequest& request, const SearchOutcome& found) {
  std::string text = fmt::format("search on {}, {} ranks of {}{}\n", request.machine->name(),
                                 request.ranks, format_bytes(static_cast<double>(request.memory)),
                                 found.interrupted ? ": interrupted" : "");
  text += fmt::format(
      "  {} candidates priced, {} refused; {} fit; {} a second of a core: {:.2g} s for {} plans of "
      "few layers and orders of works, {:.2g} s for the sums\n"
      "  {} planned whole in {:.2g} s; all in {:.2g} s\n\n",
      found.candidates, found.refused, found.fitting, std::llround(found.rate()),
      found.probing_seconds, found.probes, found.pricing_seconds, found.checked.size(),
      found.checking_seconds, found.seconds);
  bool offload = false;
  for (const FoundPlan& one : found.best) offload = offload || one.offload != "none";
  for (const FoundPlan& one : found.edge) offload = offload || one.offload != "none";
  text += table_text(found.best, offload);
  if (found.edge.size() > 1)
    text += "\n  less memory, more time\n\n" + table_text(found.edge, offload);
  text += "\n";
  std::istringstream why(found.why);
  for (std::string line; std::getline(why, line);) text += "  " + line + "\n";
  return text;
}

}  // namespace

Json run_search(const Json& table, const ReadContext& context, Output& output) {
  ReadSearch read = read_search(table, context);
  if (!output.json() && !output.quiet())
    read.request.progress = [&output](const std::string& text) { output.note(text); };
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
  result["best"] = all_json(found.best);
  result["edge"] = all_json(found.edge);
  result["checked"] = all_json(found.checked);
  result["why"] = found.why;
  result["text"] = search_text(read.request, found);
  return result;
}

}  // namespace mw
