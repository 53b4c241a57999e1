// Sums up the instructions of a rank's step by what their seconds were spent on.
#include "app/account_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "meshwright/engine/program_facts.h"

namespace mw {
namespace {

// The least bytes that one rank reads and writes when thread ranks carry out the transfer: each
// input is read once, and each output is written once.
double copied_bytes(const Transfer& transfer) {
  const auto payload = static_cast<double>(transfer.payload * transfer.times);
  switch (transfer.op) {
    case Collective::all_reduce:
    case Collective::all_gather:
    case Collective::all_to_all:
    case Collective::broadcast:
    case Collective::send:
      return 2 * payload;
    case Collective::reduce_scatter:
      return payload * (1 + 1.0 / transfer.ways);
    case Collective::recv:  // counted for the sender, which copies
    case Collective::barrier:
      return 0;
  }
  return 0;
}

// For each instruction, the share of its time in which the rank's thread had a core; 1: unknown. It
// is measured over stretches of instructions. `away`: adds the seconds without a core.
std::vector<double> core_shares(const std::vector<InstructionTime>& times, double& away) {
  std::vector<double> shares(times.size(), 1);
  std::size_t first = 0;
  double began = 0;
  for (std::size_t n = 0; n < times.size(); ++n) {
    const InstructionParts& parts = times[n].parts;
    // The time between two instructions counts for the first one.
    const double until = n + 1 < times.size() ? times[n + 1].start : times[n].end;
    const double wall = until - began;
    if (parts.away > 0 && wall > 0) {
      const double missed = std::min(parts.away, wall);
      away += missed;
      std::fill(shares.begin() + static_cast<std::ptrdiff_t>(first),
                shares.begin() + static_cast<std::ptrdiff_t>(n) + 1, 1 - missed / wall);
    }
    if (parts.away < 0 && parts.sent == 0) continue;
    first = n + 1;
    began = parts.away < 0 ? times[n].end : until;
  }
  return shares;
}

}  // namespace

AccountRows::AccountRows(const Plan& plan, const RankReport& report, const AloneTimes& alone,
                         bool copies_known)
    : program_(plan.program_of(report.rank)),
      report_(report),
      alone_(alone),
      copies_known_(copies_known),
      views_(program_, program_.mesh.coordinates(report.rank)) {}

const Instruction& AccountRows::at(const InstructionTime& time) {
  const Instruction& i = program_.segments.at(static_cast<std::size_t>(time.segment))
                             .code.at(static_cast<std::size_t>(time.index));
  if (time.inner < 0) return i;
  const auto [known, missing] = rings_.try_emplace(&i);
  if (missing) known->second = ring_steps(program_, i);
  return known->second.at(static_cast<std::size_t>(time.inner));
}

AccountRow& AccountRows::add(const Key& key, double seconds) {
  const auto [found, missing] = rows_.try_emplace(key);
  AccountRow& row = found->second;
  if (missing) {
    row.limit_seconds = 0;
    row.rank = report_.rank;
    row.stage = program_.stage;
    std::tie(row.part, row.name, row.shape) = key;
  }
  ++row.calls;
  row.kernels += std::exchange(kernels_, 0);
  row.seconds += seconds;
  return row;
}

void AccountRows::add_memory(const std::string& name, double seconds, double bytes) {
  AccountRow& row = add({"memory", name, ""}, seconds);
  row.bytes += bytes;
  if (bytes > 0) row.limit_seconds += alone_.copy_seconds(bytes);
}

void AccountRows::take_product(const Instruction& i, const RankView& view, double seconds) {
  const ProductName product = product_of(view, i);
  const Cost& cost = view.cost(i.op, i.piece, i.part());
  AccountRow& row = add({"products", product.name, product.shape}, seconds);
  // Experts may work on more or fewer rows than the program assumes.
  const Op& op = program_.graph->ops()[static_cast<std::size_t>(i.op)];
  const bool sparse = program_.graph->sparse.has(op.inputs[0].dims) && report_.rows_share > 0;
  const double share = sparse ? report_.rows_share : 1;
  row.flops += share * cost.executed;
  row.bytes += cost.bytes + static_cast<double>(view.added_to(i, begun_));
  row.limit_seconds += share * alone_.product_seconds(product);
}

void AccountRows::take_sent(const Instruction& i, const RankView& view,
                            const InstructionParts& parts) {
  footprint(view, i, FootprintParts::work, footprint_);
  double bytes = 0;
  for (const Transfer& transfer : footprint_.transfers) bytes += copied_bytes(transfer);
  std::string name = "transfers";
  if (!footprint_.transfers.empty()) {
    const CommunicationKey key = key_of(footprint_.transfers.front(), program_);
    name = fmt::format("{} {}, {}", key.axis, key.op, i.phase);
    if (footprint_.begins >= 0) names_[footprint_.begins] = name;
  } else if (const auto begun = names_.find(i.pending); begun != names_.end()) {
    name = begun->second;
  }
  if (copies_known_ && (parts.copied > 0 || bytes > 0)) {
    AccountRow& row = add({"copies", name, ""}, parts.copied);
    if (bytes == 0) --row.calls;
    row.bytes += bytes;
    if (bytes > 0) row.limit_seconds += alone_.copy_seconds(bytes);
  }
  if (parts.sent > 0) add({"waits", name, ""}, parts.sent - parts.copied);
}

// Accounts for time outside of op kernels: copies of operands, or the engine's own work.
void AccountRows::take_rest(const Instruction& i, const RankView& view, double seconds) {
  if (i.runs_op()) {
    double bytes = 2 * static_cast<double>(view.copied_operands(i));
    bool widened = false;
    for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
      const int slot = i.grad_inputs[k];
      if (slot < 0 || !program_.slots[static_cast<std::size_t>(slot)].persistent ||
          program_.gradient_dtype == program_.dtype || !view.contributes(i.contributing[k]))
        continue;
      widened = true;
      bytes += 2.5 * static_cast<double>(view.bytes_of_slice(i, slot));
    }
    if (bytes > 0) add_memory(widened ? "gradients widened" : "slices' operands", seconds, bytes);
    return;
  }
  footprint(view, i, FootprintParts::work, footprint_);
  double bytes = 0;
  bool product = false;
  for (const LocalWork& work : footprint_.work) {
    bytes += work.bytes + work.host + work.one_memory;
    product = product || work.gemms > 0;
  }
  if (product) {
    AccountRow& row = add({"products", fmt::format("update of {}", i.label), ""}, seconds);
    row.flops += footprint_.executed();
    row.limit_seconds = not_known;
  } else if (bytes > 0) {
    add_memory(work_name(i), seconds, bytes);
  }
}

void AccountRows::take(const InstructionTime& time, double share) {
  const Instruction& i = at(time);
  const RankView& view = views_.of(time.microbatch);
  const InstructionParts& parts = time.parts;
  // An op whose loop calls nothing of libtorch counts as one kernel.
  kernels_ = std::max<std::int64_t>(parts.kernels, parts.kernel > 0 ? 1 : 0);
  if (parts.sent > 0 || i.begins_transfer()) take_sent(i, view, parts);
  if (parts.kernel > 0) {
    if (is_product(program_, i)) {
      take_product(i, view, parts.kernel * share);
    } else {
      const Op& op = program_.graph->ops()[static_cast<std::size_t>(i.op)];
      add_memory(
          fmt::format("{} {}", op.kind(), name_of(i.piece)), parts.kernel * share,
          view.cost(i.op, i.piece, i.part()).bytes + static_cast<double>(view.added_to(i, begun_)));
    }
  }
  const double rest = time.end - time.start - parts.kernel - parts.sent - parts.watched;
  if (rest > 0) take_rest(i, view, rest * share);
  engine_kernels_ += std::exchange(kernels_, 0);
}

void AccountRows::take_beside() {
  const StepAccount& account = report_.account;
  double beside = account.seconds - account.step - account.gathered;
  for (const StepAccount::Observed& observed : account.observed) {
    add({observed.apart ? "beside" : "observers", observed.name, ""}, observed.seconds);
    if (!observed.apart) beside -= observed.seconds;
  }
  add({"report", "books of the step", ""}, beside);
  if (account.gathered > 0) add({"waits", "the step's end on other ranks", ""}, account.gathered);
  if (account.watched > 0) add({"check", "check", ""}, account.watched);
  if (account.tracing > 0) add({"report", "the account itself", ""}, account.tracing);
}

std::vector<AccountRow> AccountRows::rows(std::int64_t step) {
  const std::vector<InstructionTime>& times = report_.instructions;
  double away = 0;
  const std::vector<double> shares = core_shares(times, away);
  for (std::size_t n = 0; n < times.size(); ++n) take(times[n], shares[n]);
  if (away > 0) add({"no core", "other ranks or programs had it", ""}, away);
  // The rest of the step's seconds passed between kernels and transfers.
  double engine = report_.account.step;
  for (const auto& [key, row] : rows_) engine -= row.seconds;
  engine -= report_.account.watched + report_.account.tracing;
  kernels_ = engine_kernels_;
  add({"engine", "between kernels and transfers", ""}, engine).calls =
      static_cast<std::int64_t>(times.size());
  take_beside();
  std::vector<AccountRow> made;
  for (auto& [key, row] : rows_) {
    row.step = step;
    made.push_back(std::move(row));
  }
  return made;
}

}  // namespace mw
