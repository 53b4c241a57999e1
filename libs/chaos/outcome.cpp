// Reports faults: each as a line of JSON, and all of them as a table by kind.
#include <fmt/format.h>

#include <algorithm>

#include "chaos/chaos.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"

namespace mw::chaos {
namespace {

Json number_or_null(std::int64_t number) {
  return number < 0 ? Json() : Json(number);
}

// Counts of the faults of one kind.
struct Sums {
  std::int64_t met = 0, missed = 0, told = 0, must_be_told = 0, ended = 0, wrong = 0;
  double longest = 0;
};

Sums sums_of(const std::vector<Record>& records, const std::string& kind) {
  Sums sums;
  for (const Record& record : records) {
    if (record.kind != kind) continue;
    if (!record.met) {
      ++sums.missed;
      continue;
    }
    ++sums.met;
    sums.told += record.told ? 1 : 0;
    sums.must_be_told += record.must_be_told ? 1 : 0;
    sums.ended += record.ended ? 1 : 0;
    sums.wrong += record.wrong.empty() ? 0 : 1;
    sums.longest = std::max(sums.longest, record.seconds);
  }
  return sums;
}

}  // namespace

Json Record::to_json() const {
  return {{"kind", "fault"},
          {"number", number},
          {"fault", kind},
          {"where", where},
          {"step", number_or_null(step)},
          {"at_seconds", at},
          {"met", met},
          {"must_be_told", must_be_told},
          {"told", told},
          {"said", said},
          {"ended", ended},
          {"starts", starts},
          {"goes_on_from", number_or_null(from)},
          {"seconds", seconds},
          {"processes", processes},
          {"resident_bytes", processes.empty() ? Json() : Json(resident)},
          {"grown_bytes", grown ? Json(*grown) : Json()},
          {"wrong", wrong.empty() ? Json() : Json(wrong)}};
}

bool Outcome::good() const {
  return wrong.empty() && std::all_of(records.begin(), records.end(),
                                      [](const Record& one) { return one.wrong.empty(); });
}

std::string Outcome::why_untried() const {
  if (std::any_of(records.begin(), records.end(), [](const Record& one) { return one.met; }))
    return "";
  if (records.empty()) return "nothing was tried: no fault was made";
  return fmt::format("nothing was tried: {} found no place",
                     records.size() == 1 ? "the fault" : "each of the faults");
}

Json Outcome::to_json() const {
  Json json = {
      {"kind", "chaos"},  {"status", interrupted ? "interrupted" : good() ? "right" : "wrong"},
      {"ranks", ranks},   {"steps", steps},
      {"rounds", rounds}, {"grown_bytes", weighed > 0 ? Json(grown) : Json()},
      {"wrong", wrong},   {"faults", Json::array()}};
  for (const FaultKind& kind : fault_kinds()) {
    const Sums sums = sums_of(records, kind.name);
    if (sums.met + sums.missed == 0) continue;
    const bool unseen = kind.fate == Fate::unseen;
    json["faults"].push_back({{"fault", kind.name},
                              {"injected", sums.met},
                              {"missed", sums.missed},
                              {"must_be_told", sums.must_be_told},
                              {"told", sums.told},
                              {"ended", sums.ended},
                              {"right", unseen ? Json() : Json(sums.met - sums.wrong)},
                              {"longest_seconds", sums.longest}});
  }
  return json;
}

std::string Outcome::text() const {
  TextTable table({"fault", "injected", "told", "run ended", "resumed right", "longest", ""},
                  {1, 2, 3, 4, 5});
  for (const FaultKind& kind : fault_kinds()) {
    const Sums sums = sums_of(records, kind.name);
    if (sums.met + sums.missed == 0) continue;
    const bool unseen = kind.fate == Fate::unseen, silent = sums.must_be_told == 0;
    std::string note = kind.about;
    if (unseen) note += ": cannot be seen, trains on";
    if (sums.missed > 0) note += fmt::format(" ({} found no place)", sums.missed);
    table.add({kind.name, std::to_string(sums.met),
               silent && sums.told == 0 ? "-"
               : silent                 ? std::to_string(sums.told)
                                        : fmt::format("{} of {}", sums.told, sums.must_be_told),
               std::to_string(sums.ended),
               unseen ? "-" : fmt::format("{} of {}", sums.met - sums.wrong, sums.met),
               fmt::format("{:.1f} s", sums.longest), note});
  }
  std::string text = table.text("  ");
  const auto parted =
      std::count_if(records.begin(), records.end(), [](const Record& one) { return one.parted; });
  const std::string but =
      parted == 0 ? ""
                  : fmt::format(
                        "; {} more had other losses after a fault that no training can see, and {} "
                        "given up",
                        parted, parted == 1 ? "was" : "were");
  text += fmt::format(
      "\n  {} of {} on {} came to {} end with the losses of the one without faults{}; {}\n",
      plural(rounds, "training"), plural(steps, "step"), plural(ranks, "rank"),
      rounds == 1 ? "its" : "their", but,
      weighed > 0
          ? fmt::format("processes grew by {} at most", format_bytes(static_cast<double>(grown)))
          : "no process ran long enough to measure whether its memory grew");
  for (const Record& record : records)
    if (!record.wrong.empty())
      text += fmt::format("  wrong: fault {} ({}; {}): {}\n", record.number, record.kind,
                          record.where, record.wrong);
  for (const std::string& one : wrong) text += fmt::format("  wrong: {}\n", one);
  return text;
}

}  // namespace mw::chaos
