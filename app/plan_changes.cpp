// Compares the plans before and after a pass, and the plans of an experiment's first strategies,
// one more at a time.
#include "app/plan_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "app/verbs.h"
#include "draw/listing.h"
#include "meshwright/engine/text.h"
#include "predict/machine.h"
#include "predict/prediction.h"
#include "prove/proved.h"
#include "script/priced_for.h"

namespace mw {
namespace {

// What --diff and --by-strategy say of one plan.
struct Figures {
  std::shared_ptr<const Plan> plan;
  Prediction prediction;
  std::int64_t bytes = 0, calls = 0;

  std::int64_t peak() const { return prediction.fullest().memory.peak; }
};

Figures plan_figures(std::shared_ptr<const Plan> plan, const Machine& machine, int threads) {
  Figures figures;
  figures.prediction = predict(*plan, machine, threads);
  for (const CommunicationForecast& row : figures.prediction.communication) {
    figures.bytes += row.bytes;
    figures.calls += row.calls;
  }
  figures.plan = std::move(plan);
  return figures;
}

Json to_json(const Figures& figures) {
  Json json = {{"plan", figures.plan->mix()},    {"plan_hash", figures.plan->hash()},
               {"ranks", figures.plan->ranks()}, {"sent_bytes", figures.bytes},
               {"transfers", figures.calls},     {"peak_bytes", figures.peak()}};
  if (figures.prediction.timed()) {
    json["step_seconds"] = figures.prediction.step_seconds;
    json["exposed_seconds"] = figures.prediction.exposed_seconds;
  }
  json["communication"] = Json::array();
  for (const CommunicationForecast& row : figures.prediction.communication) {
    json["communication"].push_back({{"axis", row.key.axis},
                                     {"op", row.key.op},
                                     {"phase", row.key.phase},
                                     {"calls", row.calls},
                                     {"bytes", row.bytes}});
  }
  return json;
}

// The request's plan, or an Error with all that is wrong with it.
std::shared_ptr<const Plan> must_make(const PlanRequest& request) {
  Problems problems;
  auto plan = make_plan(request, problems);
  problems.throw_if_any();
  return plan;
}

// A line of text: what two plans have of one thing, and by what share the second has more of it.
std::string change_of(const char* name, double before, double after,
                      const std::function<std::string(double)>& shown) {
  const double change = after - before;
  const std::string share =
      before > 0 && change != 0 ? fmt::format(", {:+.2f} %", 100 * change / before) : "";
  return fmt::format("  {:10} {} -> {}{}\n", name, shown(before), shown(after),
                     change == 0 ? " (as before)" : share);
}

std::string proof_text(const Proof& proof) {
  return proof.proved() ? "proved" : "refused: " + proof.refusals.front().message;
}

// The place of the pass of that name among the plan's passes; throws Error if there is none.
int number_of(const Plan& plan, const std::string& pass) {
  std::vector<std::string> names;
  for (std::size_t n = 0; n < plan.passes.size(); ++n) {
    if (plan.passes[n].name == pass) return static_cast<int>(n);
    names.push_back(plan.passes[n].name);
  }
  const std::string near = did_you_mean(pass, names);
  throw Error(Stage::plan, "plan.pass", "plan",
              fmt::format("--diff: the plan {} has no pass \"{}\"", plan.mix(), pass),
              names.empty()  ? "it has no passes: they come from strategies, mw.pass and "
                               "mw.directives"
              : near.empty() ? "its passes: " + join(names)
                             : near);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// A line of a diff: ' ' of both texts, '-' of the first alone, '+' of the second alone.
struct DiffLine {
  char side = ' ';
  std::string text;
};

// Compares two texts line by line: by a longest common subsequence of what lies between their
// common beginning and their common end.
std::vector<DiffLine> compared(const std::vector<std::string>& a,
                               const std::vector<std::string>& b) {
  std::size_t begin = 0, end_a = a.size(), end_b = b.size();
  while (begin < end_a && begin < end_b && a[begin] == b[begin]) ++begin;
  while (end_a > begin && end_b > begin && a[end_a - 1] == b[end_b - 1]) --end_a, --end_b;
  const std::size_t n = end_a - begin, m = end_b - begin;
  // Where there are too many lines, all of one text stand before all of the other.
  const bool looks = n < 1 << 15 && m < 1 << 15 && n * m < std::size_t{1} << 27;
  std::vector<std::uint16_t> table(looks ? (n + 1) * (m + 1) : 0, 0);
  const auto longest = [&](std::size_t i, std::size_t j) -> std::uint16_t {
    return looks ? table[i * (m + 1) + j] : 0;
  };
  for (std::size_t i = n; looks && i-- > 0;) {
    for (std::size_t j = m; j-- > 0;) {
      table[i * (m + 1) + j] = a[begin + i] == b[begin + j]
                                   ? static_cast<std::uint16_t>(longest(i + 1, j + 1) + 1)
                                   : std::max(longest(i + 1, j), longest(i, j + 1));
    }
  }
  std::vector<DiffLine> lines;
  for (std::size_t k = 0; k < begin; ++k) lines.push_back({' ', a[k]});
  std::size_t i = 0, j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && a[begin + i] == b[begin + j]) {
      lines.push_back({' ', a[begin + i]});
      ++i, ++j;
    } else if (j == m || (i < n && longest(i + 1, j) >= longest(i, j + 1))) {
      lines.push_back({'-', a[begin + i++]});
    } else {
      lines.push_back({'+', b[begin + j++]});
    }
  }
  for (std::size_t k = end_a; k < a.size(); ++k) lines.push_back({' ', a[k]});
  return lines;
}

constexpr std::size_t lines_beside = 2;

// The diff of two texts: lines of only one text after "-" or "+", `lines_beside` common lines
// around them after " ", and "@@ SECTION" where others are left out. A section begins with a line
// that is not indented.
std::string line_diff(const std::string& before, const std::string& after) {
  const std::vector<DiffLine> lines = compared(lines_of(before), lines_of(after));
  std::vector<bool> shown(lines.size(), false);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    if (lines[n].side == ' ') continue;
    for (std::size_t k = n > lines_beside ? n - lines_beside : 0;
         k <= n + lines_beside && k < lines.size(); ++k)
      shown[k] = true;
  }
  std::string text, section;
  for (std::size_t n = 0; n < lines.size(); ++n) {
    if (!lines[n].text.empty() && lines[n].text[0] != ' ') section = lines[n].text;
    if (!shown[n]) continue;
    if (n > 0 && !shown[n - 1] && lines[n].text != section) text += fmt::format("@@ {}\n", section);
    text += fmt::format("{}{}\n", lines[n].side, lines[n].text);
  }
  return text;
}

// Splits a listing into its segments, so that the compared texts stay short.
std::vector<std::pair<std::string, std::string>> sections_of(const std::string& listing) {
  std::vector<std::pair<std::string, std::string>> sections;
  for (const std::string& line : lines_of(listing)) {
    const bool begins = !line.empty() && line[0] != ' ';
    if (begins || sections.empty())
      sections.emplace_back(line.substr(0, line.find_first_of("(:")), "");
    sections.back().second += line + "\n";
  }
  return sections;
}

// A diff of a stage's listings, segment by segment.
std::string program_diff(const Program& before, const Program& after) {
  auto was = sections_of(listing(before));
  std::string text;
  for (const auto& [name, code] : sections_of(listing(after))) {
    const auto same = std::find_if(was.begin(), was.end(), [&, &name = name](const auto& section) {
      return section.first == name;
    });
    text += line_diff(same == was.end() ? "" : same->second, code);
    if (same != was.end()) was.erase(same);
  }
  for (const auto& [name, code] : was) text += line_diff(code, "");
  return text;
}

}  // namespace

Json pass_diff(const RunRequest& asked, const RunSetup& setup, const std::string& pass) {
  const PricedFor machine(asked, setup);
  const int number = number_of(*setup.plan, pass);
  PlanRequest request = setup.plan->request;
  request.first_passes = number;
  const Figures before = plan_figures(must_make(request), *machine, setup.threads);
  request.first_passes = number + 1;
  const Figures after = plan_figures(must_make(request), *machine, setup.threads);
  std::string diff, last;
  for (std::size_t s = 0; s < after.plan->programs.size(); ++s) {
    const Program &was = before.plan->programs[s], &now = after.plan->programs[s];
    const std::string stage = program_diff(was, now);
    if (stage.empty()) continue;
    const bool several = after.plan->stages() > 1;
    if (several && stage == last) {
      diff += fmt::format("stage {}: the same\n", s);
      continue;
    }
    diff += (several ? fmt::format("stage {}\n", s) : "") + stage;
    last = stage;
  }
  const Proof was = prove_plan(*before.plan), now = prove_plan(*after.plan);
  const PassRun& run = setup.plan->passes[static_cast<std::size_t>(number)];
  std::string text =
      fmt::format("the pass \"{}\"{}\n", pass,
                  run.strategy.empty() ? "" : fmt::format(" of {} ({})", run.strategy, run.place));
  const auto bytes = [](double value) { return format_bytes(value); };
  text +=
      change_of("sent", static_cast<double>(before.bytes), static_cast<double>(after.bytes), bytes);
  text += change_of("peak", static_cast<double>(before.peak()), static_cast<double>(after.peak()),
                    bytes);
  const bool timed = before.prediction.timed() && after.prediction.timed();
  if (timed) {
    text += change_of("step", before.prediction.step_seconds, after.prediction.step_seconds,
                      duration_text);
    text += change_of("exposed", before.prediction.exposed_seconds,
                      after.prediction.exposed_seconds, duration_text);
  }
  text += fmt::format("  before     {}\n  after      {}\n", proof_text(was), proof_text(now));
  text += diff.empty() ? "  the programs are the same\n" : "\n" + diff;
  return {{"pass", pass},
          {"strategy", run.strategy},
          {"before", to_json(before)},
          {"after", to_json(after)},
          {"proved_before", was.proved()},
          {"proved", now.proved()},
          {"diff", diff},
          {"text", text}};
}

namespace {

using SentByKind =
    std::map<std::pair<std::string, std::string>, std::pair<std::int64_t, std::int64_t>>;

// Calls and bytes by axis and kind of collective.
SentByKind sent_by_kind(const Figures& figures) {
  SentByKind sent;
  for (const CommunicationForecast& row : figures.prediction.communication) {
    auto& [calls, bytes] = sent[{row.key.axis, row.key.op}];
    calls += row.calls;
    bytes += row.bytes;
  }
  return sent;
}

// Lines for the kinds of collectives of which the plan `after` sends more, or less, than `before`.
std::string sent_change(const SentByKind& before, const SentByKind& after) {
  std::string text;
  const auto row = [&](const auto& key, std::int64_t calls, std::int64_t bytes) {
    text += fmt::format("      {:+} {} on {}, {}{}\n", calls, key.second, key.first,
                        bytes < 0 ? "-" : "+", format_bytes(std::abs(static_cast<double>(bytes))));
  };
  for (const auto& [key, now] : after) {
    const auto found = before.find(key);
    const std::pair<std::int64_t, std::int64_t> was =
        found == before.end() ? std::pair<std::int64_t, std::int64_t>{0, 0} : found->second;
    if (was != now) row(key, now.first - was.first, now.second - was.second);
  }
  for (const auto& [key, was] : before) {
    if (after.count(key) == 0) row(key, -was.first, -was.second);
  }
  return text;
}

}  // namespace

Json plan_by_strategy(const RunRequest& asked, const RunSetup& setup) {
  const PricedFor machine(asked, setup);
  const PlanRequest& whole = setup.plan->request;
  Json rows = Json::array();
  std::string text = "strategies, one after the other\n";
  SentByKind before;
  for (std::size_t count = 0; count <= whole.strategies.size(); ++count) {
    PlanRequest request = whole;
    request.strategies.resize(count);
    request.stage_layers.clear();
    request.schedule.reset();
    request.smaller_batches = true;
    const std::string added = count == 0 ? "one rank" : whole.strategies[count - 1].name;
    Problems problems;
    auto plan = make_plan(request, problems);
    if (plan == nullptr || !problems.empty()) {
      const std::string why =
          problems.empty() ? "it cannot be planned" : problems.list().front().message;
      rows.push_back({{"added", added}, {"refused", why}});
      text += fmt::format("  + {}: not a plan by itself: {}\n", added, why);
      continue;
    }
    const Figures figures = plan_figures(std::move(plan), *machine, setup.threads);
    Json row = to_json(figures);
    row["added"] = added;
    text += fmt::format(
        "  {}{}: {}, sends {}, peak {}{}\n", count == 0 ? "" : "+ ", added,
        plural(figures.plan->ranks(), "rank"), format_bytes(static_cast<double>(figures.bytes)),
        format_bytes(static_cast<double>(figures.peak())),
        figures.prediction.timed() ? ", step " + duration_text(figures.prediction.step_seconds)
                                   : "");
    const SentByKind sent = sent_by_kind(figures);
    text += sent_change(before, sent);
    before = sent;
    rows.push_back(std::move(row));
  }
  return {{"rows", rows}, {"text", text}};
}

}  // namespace mw
