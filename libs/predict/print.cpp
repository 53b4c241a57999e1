// Prints a plan and its prediction as people read them.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "predict/imbalance.h"
#include "predict/prediction.h"
#include "predict/recompute_gain.h"

namespace mw {

std::string duration_text(double seconds) {
  if (seconds >= 999.5) return fmt::format("{:.0f} s", seconds);  // {:.3g} would print an exponent
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string memory_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

namespace {

std::string rules(const Plan& plan) {
  std::vector<std::string> lines;
  for (const Rule& rule : plan.rules) {
    if (!plan.holds(rule)) continue;
    std::string line = fmt::format("{} -> {} ({}{})", rule.dim.name(), rule.axis, rule.strategy,
                                   rule.named || rule.where ? ", some ops" : "");
    if (std::find(lines.begin(), lines.end(), line) == lines.end())
      lines.push_back(std::move(line));
  }
  return join(lines);
}

std::string batch(const Plan& plan) {
  std::string text = fmt::format("{} x {} tokens a step; ", plural(plan.request.batch, "sequence"),
                                 plan.request.sequence);
  const std::int64_t own = plan.request.batch / plan.batch_ways;
  text += plan.batch_ways == 1 ? "not split"
                               : fmt::format("{} to each of {} parts", own, plan.batch_ways);
  // Runs of equal sizes: "2 x 3 + 1".
  std::string sizes;
  for (std::size_t m = 0; m < plan.sizes.size();) {
    std::size_t end = m;
    while (end < plan.sizes.size() && plan.sizes[end] == plan.sizes[m]) ++end;
    sizes += sizes.empty() ? "" : " + ";
    if (end - m > 1 && end - m < plan.sizes.size()) sizes += fmt::format("{} x ", end - m);
    sizes += std::to_string(plan.sizes[m]);
    m = end;
  }
  return text + fmt::format(", in {} microbatch{} of {}", plan.microbatches,
                            plan.microbatches == 1 ? "" : "es", sizes);
}

std::string memory(const Prediction& prediction) {
  const bool offloads =
      std::any_of(prediction.stages.begin(), prediction.stages.end(),
                  [](const StageForecast& s) { return s.memory[Category::host] > 0; });
  std::vector<std::string> header{"memory a rank"};
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    if (category != Category::host) header.emplace_back(name_of(category));
  }
  header.emplace_back("peak");
  if (offloads) header.emplace_back(name_of(Category::host));
  const bool kinds = std::any_of(prediction.stages.begin(), prediction.stages.end(),
                                 [](const StageForecast& s) { return !s.device.name.empty(); });
  if (kinds) header.emplace_back("of");
  struct Row {
    int first = 0, last = 0;  // first and last of the stages that the row is for
    std::int64_t peak = 0;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows;
  for (const StageForecast& stage : prediction.stages) {
    std::vector<std::string> row;
    for (int c = 0; c < category_count; ++c) {
      const auto category = static_cast<Category>(c);
      if (category == Category::host) continue;
      row.push_back(memory_text(stage.memory[category]));
    }
    row.push_back(memory_text(stage.memory.peak));
    if (offloads) row.push_back(memory_text(stage.memory[Category::host]));
    if (kinds)
      row.push_back(fmt::format("{}, {}", memory_text(stage.device.bytes), stage.device.name));
    if (!rows.empty() && rows.back().cells == row) {
      rows.back().last = stage.stage;
    } else {
      rows.push_back({stage.stage, stage.stage, stage.memory.peak, std::move(row)});
    }
  }
  // Only the first, the last and the fullest of many rows are shown.
  constexpr std::size_t most_rows = 24, shown_ends = 8;
  const auto fullest = static_cast<std::size_t>(
      std::max_element(rows.begin(), rows.end(),
                       [](const Row& a, const Row& b) { return a.peak < b.peak; }) -
      rows.begin());
  TextTable table(header, {1, 2, 3, 4, 5, 6, 7, 8});
  std::size_t left_out = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const bool shown =
        rows.size() <= most_rows || r < shown_ends || r + shown_ends >= rows.size() || r == fullest;
    if (!shown) {
      left_out += static_cast<std::size_t>(rows[r].last - rows[r].first + 1);
      continue;
    }
    const std::string name = rows[r].first == rows[r].last
                                 ? fmt::format("stage {}", rows[r].first)
                                 : fmt::format("stages {} to {}", rows[r].first, rows[r].last);
    std::vector<std::string> cells{prediction.stages.size() == 1 ? "" : name};
    cells.insert(cells.end(), rows[r].cells.begin(), rows[r].cells.end());
    table.add(std::move(cells));
  }
  return table.text("  ") +
         (left_out > 0
              ? fmt::format("  … {} more stages, none with a higher peak (--json has all)\n",
                            left_out)
              : "");
}

// Shortens lists of many numbers in the braces of a mix, { 1, 2, 2, … }, to their first ones.
std::string abridged(const std::string& mix) {
  constexpr std::size_t most_numbers = 12, shown_numbers = 6;
  std::string text;
  for (std::size_t at = 0; at < mix.size();) {
    const std::size_t open = mix.find('{', at);
    if (open == std::string::npos) return text + mix.substr(at);
    const std::size_t end = mix.find_first_not_of("0123456789, ", open + 1);
    const bool list = end != std::string::npos && mix[end] == '}';
    const std::string inside = list ? mix.substr(open + 1, end - open - 1) : "";
    const auto numbers =
        static_cast<std::size_t>(std::count(inside.begin(), inside.end(), ',')) + 1;
    if (numbers <= most_numbers) {
      text += mix.substr(at, open + 1 - at);
      at = open + 1;
      continue;
    }
    std::size_t cut = 0;
    for (std::size_t n = 0; n < shown_numbers; ++n) cut = inside.find(',', cut) + 1;
    text += mix.substr(at, open + 1 - at) + inside.substr(0, cut) +
            fmt::format(" … {} more }}", numbers - shown_numbers);
    at = end + 1;
  }
  return text;
}

std::string communication(const Prediction& prediction) {
  if (prediction.communication.empty()) return "  no communication\n";
  std::vector<std::string> header{"axis", "op", "phase", "calls", "bytes a rank"};
  const bool stages = prediction.timed() && prediction.parts.size() > 1;
  if (prediction.timed()) header.insert(header.end(), {"time", "exposed"});
  if (stages) header.emplace_back("mean exposed");
  const bool basis = prediction.timed() && prediction.devices > 0;
  if (basis) header.emplace_back("basis");
  TextTable table(header, {3, 4, 5, 6, 7});
  for (const CommunicationForecast& c : prediction.communication) {
    std::vector<std::string> row{c.key.axis, c.key.op, c.key.phase, std::to_string(c.calls),
                                 memory_text(c.bytes)};
    if (prediction.timed())
      row.insert(row.end(), {duration_text(c.seconds), duration_text(c.exposed_seconds)});
    if (stages) row.push_back(duration_text(c.mean_exposed_seconds));
    if (basis) row.emplace_back(name_of(c.basis));
    table.add(std::move(row));
  }
  return table.text("  ") + (stages
                                 ? "  (time and exposed are those of the stage that spends most; "
                                   "mean exposed is the mean over all stages)\n"
                                 : "");
}

// The text behind a step's parts where these are means over several stages: the number of stages,
// and the parts of the stage that waits least.
std::string stages(const Prediction& p) {
  if (p.parts.size() < 2) return "";
  const std::size_t s = p.busiest();
  const StageParts& busiest = p.parts[s];
  return fmt::format(
      " ({}), on average of the {} stages\n"
      "          the busiest, stage {}: {} compute, {} exposed communication, {}{} bubble",
      duration_text(p.bubble_fraction * p.step_seconds), p.parts.size(), p.stages[s].stage,
      duration_text(busiest.compute), duration_text(busiest.exposed),
      p.host_copies.seconds > 0 ? duration_text(busiest.host_copies) + " exposed host copies, "
                                : "",
      duration_text(busiest.bubble));
}

// The text on a step: how long it takes, and on what; or why no time is told.
std::string step(const Prediction& p) {
  const std::string work =
      fmt::format("{} FLOP a step ({} FLOP on the hardware)", count_text(p.flops_per_step),
                  count_text(p.hardware_flops_per_step));
  if (!p.timed()) {
    return fmt::format(
        "  step    bubble {:.1f} %, {}; no time is predicted: {} (name a cluster: --cluster NAME, "
        "or "
        "cluster = mw.cluster(\"NAME\"))\n",
        100 * p.bubble_fraction, work, p.untimed);
  }
  const std::string copies =
      p.host_copies.seconds > 0
          ? fmt::format("{} exposed host copies, ", duration_text(p.host_copies.exposed))
          : "";
  return fmt::format(
             "  step    {}{} predicted: {} compute, {} exposed communication, {}bubble {:.1f} %{}\n"
             "  speed   {} tokens/s, {}, MFU {:.1f} %, HFU {:.1f} %, 6N {:.1f} %\n"
             "  on      {}{}\n",
             duration_text(p.step_seconds),
             p.step_error > 0 ? fmt::format(" ± {:.0f} %", std::max(1.0, 100 * p.step_error)) : "",
             duration_text(p.compute_seconds), duration_text(p.exposed_seconds), copies,
             100 * p.bubble_fraction, stages(p), count_text(p.tokens_per_second), work, 100 * p.mfu,
             100 * p.hfu, 100 * p.mfu_6n, p.priced_for,
             p.idle_devices() > 0
                 ? fmt::format("; {} of its {} devices are idle", p.idle_devices(), p.devices)
                 : "") +
         (p.devices > 0
              ? fmt::format("  basis   step {}, compute {}, memory {}\n", name_of(p.step_basis()),
                            name_of(p.compute_basis), p.memory_basis())
              : "");
}

// What outer steps send and take, in a line; or nothing.
std::string outer_steps(const Prediction& p) {
  if (!p.outer) return "";
  const OuterForecast& outer = *p.outer;
  const std::string each =
      outer.fragments > 1 ? fmt::format("{} fragments, each", outer.fragments) : "once";
  std::string text =
      fmt::format("  outer   {} every {}: a rank sends {} to other replicas in all", each,
                  plural(outer.every, "step"), format_bytes(static_cast<double>(outer.bytes)));
  if (p.timed()) {
    const double seconds = outer.seconds / static_cast<double>(outer.every);
    text +=
        fmt::format("; {} predicted, {} a step, {:.2g} % of the time", duration_text(outer.seconds),
                    duration_text(seconds), 100 * seconds / (seconds + p.step_seconds));
  }
  return text + "\n";
}

}  // namespace

std::string reported_text(const Prediction& prediction) {
  const StageForecast& most = prediction.most_reported();
  if (most.beside.empty()) return "";
  std::vector<std::string> parts;
  for (const NamedBytes& each : most.beside)
    parts.push_back(fmt::format("{} {}", each.name, memory_text(each.bytes)));
  std::string text = fmt::format("  a driver would report {}: {} of the program, {} ({})\n",
                                 memory_text(most.reported()), memory_text(most.memory.peak),
                                 join(parts), name_of(prediction.beside_basis));
  if (most.in_use() > most.device.bytes && prediction.reported_above()) {
    text += fmt::format(
        "  that software would run out of the device's {}: {} are in use even after its allocator "
        "has given back all memory that it does not use\n",
        memory_text(most.device.bytes), memory_text(most.in_use()));
  } else if (prediction.reported_above()) {
    text += fmt::format(
        "  that is above the device's {}: the allocator gives back memory that it does not use, "
        "and "
        "steps can be slower than predicted\n",
        memory_text(most.device.bytes));
  }
  return text;
}

namespace {

// The text on stages that do not fit, on devices of several kinds; each by its fullest rank.
std::string no_room_text(const Prediction& p) {
  constexpr std::size_t most_shown = 4;
  std::string text;
  std::size_t found = 0;
  for (const StageForecast& stage : p.stages) {
    const std::int64_t room = p.bound_of(stage.device.bytes);
    if (stage.memory.peak <= room || ++found > most_shown) continue;
    text += fmt::format("  does not fit: {} a rank{} against {} of memory on {}\n",
                        memory_text(stage.memory.peak),
                        p.stages.size() > 1 ? fmt::format(" of stage {}", stage.stage) : "",
                        memory_text(room), stage.device.name);
  }
  if (found > most_shown)
    text += fmt::format("  nor do {} more stages fit (--json has all)\n", found - most_shown);
  return text;
}

// What documents make of a step.
std::string documents(const Prediction& p) {
  if (!p.documents || !p.timed()) return "";
  const DocumentForecast& d = *p.documents;
  std::string fullest;
  for (const auto& [what, imbalance] : {std::pair("rank", d.ranks),
                                        {"microbatch", d.microbatches},
                                        {"rank of a sequence", d.context}})
    if (imbalance > 1.005)
      fullest +=
          fmt::format("{}the fullest {} {:.2f}", fullest.empty() ? "; " : ", ", what, imbalance);
  return fmt::format(
      "  documents  attention has {:.0f} % of the work of whole rows{}{}; "
      "steps take {} on average, 95 % of them up to {} ({} drawn)\n",
      100 * d.work, fullest, fullest.empty() ? "" : " of the mean", duration_text(d.mean),
      duration_text(d.p95), d.steps);
}

}  // namespace

std::string count_text(double value) {
  static const char* const units[] = {"", " k", " M", " G", " T", " P", " E"};
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(units)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", value, units[unit]);
}

std::string room_text(const Prediction& p) {
  std::string text;
  if (!p.fullest().device.name.empty()) {
    text += no_room_text(p);
  } else if (p.bound() > 0 && p.memory_needed > p.bound()) {
    const std::int64_t peak = p.fullest().memory.peak;
    // Where each rank would fit by itself, all ranks share one memory.
    text +=
        peak > p.bound()
            ? fmt::format("  does not fit: {} a rank against {} of memory\n", memory_text(peak),
                          memory_text(p.bound()))
            : fmt::format(
                  "  does not fit: {} ranks of up to {}, {} together, against {} of memory\n",
                  p.ranks, memory_text(peak), memory_text(p.memory_needed), memory_text(p.bound()));
  }
  if (p.host_needed > 0) {
    const std::string needed =
        fmt::format("{} in the host memory of a node, for its {}", memory_text(p.host_needed),
                    plural(p.host_ranks, "rank"));
    text += p.host_limit == 0
                ? fmt::format("  {}; the cluster does not say how much there is (host.capacity)\n",
                              needed)
            : p.host_fits() ? fmt::format("  {}, of {}\n", needed, memory_text(p.host_limit))
                            : fmt::format("  does not fit: {}, against {} (host.capacity)\n",
                                          needed, memory_text(p.host_limit));
    if (p.timed() && p.host_copies.seconds > 0) {
      text +=
          fmt::format("  copies to and from it take {}, {} of it exposed\n",
                      duration_text(p.host_copies.seconds), duration_text(p.host_copies.exposed));
    }
    if (p.timed() && p.host_updates.seconds > 0) {
      text +=
          fmt::format("  updates there take {}, {} of it exposed\n",
                      duration_text(p.host_updates.seconds), duration_text(p.host_updates.exposed));
    }
  }
  const bool in_line = p.host_needed == 0 &&
                       std::any_of(p.stages.begin(), p.stages.end(), [](const StageForecast& s) {
                         return s.memory[Category::host] > 0;
                       });
  if (in_line && p.timed()) {
    text +=
        "  copies to host memory and back are in line with computing here, and counted as compute; "
        "devices of their own make them beside it (--cluster NAME)\n";
  }
  if (p.nearly_full()) {
    text += fmt::format(
        "  nearly full: {} of {}; the allocator may have to free blocks and ask again, which can "
        "slow "
        "steps by 15 to 30 % and is not predicted\n",
        memory_text(p.memory_needed), memory_text(p.bound()));
  }
  return text;
}

std::string estimated_text(const Prediction& p) {
  constexpr double share_that_counts = 0.01;
  std::int64_t estimated = 0;
  for (const StageForecast& stage : p.stages) {
    const auto counts = share_that_counts * static_cast<double>(stage.memory.peak);
    if (static_cast<double>(stage.memory.estimated) > counts)
      estimated = std::max(estimated, stage.memory.estimated);
  }
  if (estimated == 0) return "";
  return fmt::format(
      "  (of scratch and peak, {} are an estimate: what a kernel allocates while it runs is not "
      "measured here for such large ops)\n",
      memory_text(estimated));
}

std::string print(const Plan& plan, const Prediction& p) {
  std::string text =
      fmt::format("plan {}  {}, {}\n", plan.hash(), abridged(plan.mix()), plan.mesh.describe());
  text +=
      fmt::format("  model   {}, {} parameters, {}\n", plan.request.model->name(),
                  count_text(static_cast<double>(p.parameters)), name_of(plan.request.precision));
  text += fmt::format("  batch   {}\n", batch(plan));
  if (const std::string all = rules(plan); !all.empty()) text += fmt::format("  rules   {}\n", all);
  if (plan.programs.front().stage_atom >= 0) {
    const int stages = plan.stages(), chunks = plan.schedule.vstages() / stages;
    text += fmt::format("  stages  {}{}, schedule {}\n", stages,
                        chunks > 1 ? fmt::format(" of {} chunks", chunks) : "", plan.schedule.name);
  }
  for (const std::string& note : plan.notes) {
    const bool of_stages = note == plan.request.recompute.note;
    text += fmt::format("  note    {}{}\n", note, of_stages ? recompute_alike_text(p) : "");
  }
  for (const std::string& note : {recompute_note(plan, p), slices_note(plan, p)}) {
    if (!note.empty()) text += fmt::format("  note    {}\n", note);
  }
  text += "\n" + memory(p);
  text += estimated_text(p);
  text += reported_text(p);
  text += "\n" + communication(p) + "\n";
  text += step(p);
  text += outer_steps(p);
  text += documents(p);
  if (!p.cannot_run.empty())
    text += fmt::format("  stack   its software cannot run this: {}\n", join(p.cannot_run, "; "));
  for (const std::string& work : p.undeclared) text += fmt::format("  work    {}\n", work);
  if (const std::string supposed = supposed_rows(plan); !supposed.empty())
    text += fmt::format("  supposes {}\n", supposed);
  for (const std::string& pitfall : p.pitfalls) text += fmt::format("  pitfall  {}\n", pitfall);
  return text + room_text(p);
}

}  // namespace mw
