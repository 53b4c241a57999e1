// Names the scalars of a run's event file and takes them from the reports of its ranks.
#include "app/run_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "meshwright/error.h"
#include "predict/step_counts.h"

namespace mw {
namespace {

using Scalars = std::vector<std::pair<std::string, double>>;

std::string code_block(const std::string& language, const std::string& text) {
  return fmt::format("```{}\n{}\n```", language, text);
}

// The scalars of a step, named as the columns of /steps. A number that is not known has no point,
// but a loss or a norm that is NaN has one.
Scalars scalars_of(const StepRow& row) {
  Scalars scalars = {{"steps/loss", row.loss}, {"steps/grad_norm", row.grad_norm}};
  const Scalars known = {{"steps/lr", row.lr},
                         {"steps/seconds", row.seconds},
                         {"steps/tokens", static_cast<double>(row.tokens)},
                         {"steps/tokens_per_second", row.tokens_per_second},
                         {"steps/mfu", row.mfu},
                         {"steps/bubble", row.bubble},
                         {"steps/cpu_seconds", row.cpu_seconds},
                         {"steps/others_cores", row.others_cores},
                         {"steps/throttled_cores", row.throttled_cores},
                         {"steps/clock", row.clock}};
  std::copy_if(known.begin(), known.end(), std::back_inserter(scalars),
               [](const auto& scalar) { return !std::isnan(scalar.second); });
  return scalars;
}

// Adds the peaks of the rank that has most of a category, and the bytes of the rank that sends
// most.
void add_ranks(const std::vector<RankReport>& ranks, Scalars& scalars) {
  std::int64_t peak = 0;
  Traffic most;
  std::vector<std::int64_t> peaks(category_count, 0);
  for (const RankReport& rank : ranks) {
    peak = std::max(peak, rank.peak_bytes);
    for (int c = 0; c < category_count; ++c) peaks[c] = std::max(peaks[c], rank.memory[c].peak);
    take_most(most, rank.communication);
  }
  scalars.emplace_back("memory/peak_bytes", static_cast<double>(peak));
  for (int c = 0; c < category_count; ++c)
    scalars.emplace_back(fmt::format("memory/{}", name_of(static_cast<Category>(c))),
                         static_cast<double>(peaks[c]));
  for (const auto& [key, use] : most)
    scalars.emplace_back(fmt::format("communication/{} {}, {}", key.axis, key.op, key.phase),
                         static_cast<double>(use.bytes));
}

}  // namespace

RunEvents::RunEvents(const RunRequest& asked, const RunOutputs& outputs, const RunOrigin& origin,
                     const Checkpoints* resumed) {
  if (outputs.tensorboard.empty()) return;
  EventOwner owner{asked.hash};
  owner.overwrite = outputs.overwrite;
  if (resumed != nullptr && resumed->from() != nullptr) {
    owner.continues = resumed->from()->index().hash;
    owner.first_step = resumed->from()->index().step;
  }
  file_.emplace(outputs.tensorboard, owner);
  file_->add_text(owner.first_step, "script", code_block("lua", origin.script));
  file_->add_text(owner.first_step, "experiment", code_block("json", json_text(asked.resolved, 1)));
  file_->flush();
}

void RunEvents::write(const StepReport& report, const StepRow& row) {
  if (!file_) return;
  Scalars scalars = scalars_of(row);
  add_ranks(report.ranks, scalars);
  file_->add(row.step, scalars);
}

void RunEvents::add_series(std::int64_t step, const Scalars& metrics) {
  if (!file_) return;
  Scalars named;
  for (const auto& [name, value] : metrics) named.emplace_back("series/" + name, value);
  file_->add(step, named);
}

template <class Call>
void RunEvents::attempt(Call&& call) noexcept {
  try {
    if (file_) call();
  } catch (const Error& error) {
    lost_ = error.problems().front().message;
    file_.reset();
  }
}

void RunEvents::flush_if_due() {
  attempt([&] { file_->flush_if_due(); });
}

void RunEvents::flush() {
  attempt([&] { file_->flush(); });
}

void RunEvents::finish(bool done) {
  flush();
  if (file_ && done) file_->remove_earlier();
}

}  // namespace mw
