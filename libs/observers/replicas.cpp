// Hashes the bits of tensors, compares the hashes among ranks, and checks between steps the tensors
// that ranks must keep alike.
#include "observers/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "meshwright/engine/hash.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/error.h"
#include "meshwright/outer_steps.h"

namespace mw {
namespace {

constexpr std::int64_t words_of_a_sum = 1 << 13;  // words of 8 bytes

// The weights of words in a sum: odd numbers without a pattern.
at::Tensor weights_on(at::Device device) {
  static const at::Tensor weights = [] {
    at::Tensor list = at::empty({words_of_a_sum}, at::kLong);
    auto* element = list.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < words_of_a_sum; ++i) {
      const auto place = static_cast<std::uint64_t>(i) + 1;
      element[i] = static_cast<std::int64_t>(finalise64(place * 0x9e3779b97f4a7c15u) | 1);
    }
    return list;
  }();
  return weights.to(device);
}

// One weighted sum for each `words_of_a_sum` words of the tensor, in which no change of one word is
// lost. The sums stay on the device: reading each would make the host wait.
at::Tensor sums_of_words(const at::Tensor& tensor) {
  at::Tensor bytes = tensor.contiguous().view(-1).view(at::kByte);
  if (bytes.storage_offset() % 8 != 0) bytes = bytes.clone();
  const at::Tensor words = bytes.narrow(0, 0, bytes.numel() / 8 * 8).view(at::kLong);
  const at::Tensor weights = weights_on(tensor.device());
  const std::int64_t rows = words.numel() / words_of_a_sum;
  const std::int64_t at_a_time =
      tensor.is_cpu() ? 8 : 512;  // rows that fit into a cache, or fill a device
  std::vector<at::Tensor> sums;
  const auto add = [&](const at::Tensor& some) {  // (rows, words)
    sums.push_back(some.mul(weights.narrow(0, 0, some.size(1))).sum(1, false, at::kLong));
  };
  const at::Tensor whole = words.narrow(0, 0, rows * words_of_a_sum).view({rows, words_of_a_sum});
  for (std::int64_t row = 0; row < rows; row += at_a_time)
    add(whole.narrow(0, row, std::min(at_a_time, rows - row)));
  add(words.narrow(0, whole.numel(), words.numel() - whole.numel()).unsqueeze(0));
  add(bytes.narrow(0, words.numel() * 8, bytes.numel() - words.numel() * 8)
          .to(at::kLong)
          .unsqueeze(0));
  return at::cat(sums);
}

// The ranks that keep the same tensor of a bucket as this rank: the whole one, or the same shard.
// `differs`: its numbers differ between replicas (OuterSteps).
RankSet keepers_of(const Program& program, const Bucket& bucket, bool shard, bool differs) {
  const auto among = [](const std::vector<int>& atoms, int a) {
    return std::find(atoms.begin(), atoms.end(), a) != atoms.end();
  };
  RankSet set;
  for (int a = 0; a < static_cast<int>(program.mesh.atoms().size()); ++a) {
    const bool other = a == program.stage_atom ? bucket.stages.empty()
                                               : among(bucket.parameter_atoms, a) ||
                                                     (shard && among(bucket.shard_atoms, a)) ||
                                                     (differs && program.parts_replicas(a));
    if (!other && program.mesh.atoms()[a].ways > 1) set.atoms.push_back(a);
  }
  if (!bucket.stages.empty()) set.stages = bucket.stages;
  if (set.atoms.size() == 1 && set.stages.size() == 1) return {};
  return set;
}

// The weight of a rank's number in a sum over the ranks of a set. The weights of a set add up to
// zero modulo 2^64, and so do the products where all ranks have the same number. Where one has
// another number the sum is zero only once in 2^60 or so, as the weights have no pattern.
std::uint64_t weight_among(const std::vector<int>& ranks, int rank) {
  std::uint64_t key = ranks.size();
  for (const int each : ranks) key = mix64(key ^ static_cast<std::uint64_t>(each));
  const auto weight = [&](int of) { return mix64(key + static_cast<std::uint64_t>(of)) | 1; };
  if (rank != ranks.back()) return weight(rank);
  std::uint64_t others = 0;
  for (const int each : ranks) others += each == rank ? 0 : weight(each);
  return 0 - others;
}

// Whether the ranks of each set have the same number, by one all-reduce over all ranks. The sum is
// modulo 2^64; its halves are summed separately, so that neither overflows.
bool alike_everywhere(RankRun& rank, const std::map<RankSet, std::uint64_t>& numbers) {
  const Program& program = rank.program();
  std::uint64_t own = 0;
  for (const auto& [set, number] : numbers)
    own += weight_among(program.ranks_of(set, rank.rank()), rank.rank()) * number;
  at::Tensor halves = at::empty({2}, at::kLong);
  auto* half = halves.mutable_data_ptr<std::int64_t>();
  half[0] = static_cast<std::int64_t>(own & 0xffffffffu);
  half[1] = static_cast<std::int64_t>(own >> 32);
  halves = halves.to(rank.device());
  static const std::string label = "what ranks keep alike";
  rank.group({world_atoms(program.mesh), {}})
      .all_reduce(halves, Reduction::sum, {"check", &label})
      .wait();
  halves = halves.cpu();
  const auto* sum = halves.const_data_ptr<std::int64_t>();
  return static_cast<std::uint64_t>(sum[0]) + (static_cast<std::uint64_t>(sum[1]) << 32) == 0;
}

// Throws if no rank has found a difference. Ranks that have found one have thrown by now, so that
// the barrier fails on the others.
void refuse_if_none_found(RankRun& rank, std::int64_t step) {
  static const std::string label = "replicas";
  rank.group({world_atoms(rank.program().mesh), {}}).barrier({"check", &label}).wait();
  throw Error(
      Stage::run, "check.replicas", "",
      fmt::format("check: the ranks' sum over what they keep alike says that it differs, and "
                  "no tensor does when they are compared one by one (step {})",
                  step),
      "a bit has changed in the sum, or in a tensor between the two comparisons: look at "
      "the machine's memory and network; the run may go on from a checkpoint");
}

// "the parameter layers.0.mlp.up.weight", "state 0 of the optimizer of layers.0.mlp.up.weight".
std::string words_of(const KeptTensor& kept, const std::string& parameter) {
  const FlatSlots& flat = kept.bucket.flat;
  if (kept.slot == flat.parameters || kept.slot == flat.stored)
    return fmt::format("the parameter {}", parameter);
  return fmt::format("{} of {}", kept.slot == flat.master ? "the master" : kept.what, parameter);
}

// The hashes of what the rank keeps, parameter by parameter, and then of each whole tensor, as
// parts of a tensor may belong to no parameter.
std::map<RankSet, std::vector<BitsSeen>> kept_in_detail(RankRun& rank) {
  const Program& program = rank.program();
  const RankView view(program, rank.coordinates());
  std::map<RankSet, std::vector<BitsSeen>> lists;
  each_kept(rank, [&](const KeptTensor& kept) {
    if (kept.ranks.atoms.empty()) return;
    std::vector<BitsSeen>& list = lists[kept.ranks];
    const auto& matrix = kept.bucket.flat.of_matrix;
    const bool of_matrix = std::find(matrix.begin(), matrix.end(), kept.slot) != matrix.end();
    const Range part = of_matrix ? view.all_of_matrix(kept.slot) : view.part(kept.slot);
    for (const int p : kept.bucket.parameters) {
      const Range all = of_matrix ? view.of_matrix(kept.slot, p) : view.place(p);
      const std::int64_t begin = std::max(part.offset, all.offset);
      const std::int64_t end = std::min(part.offset + part.size, all.offset + all.size);
      if (begin >= end) continue;
      list.push_back(
          {words_of(kept, program.name_of_parameter(p)),
           hash_of_bits(kept.tensor.view(-1).narrow(0, begin - part.offset, end - begin))});
    }
    list.push_back(
        {fmt::format("{} of {}", kept.what, kept.bucket.name), hash_of_bits(kept.tensor)});
  });
  return lists;
}

}  // namespace

std::int64_t sum_of_bits(const at::Tensor& tensor) {
  std::uint64_t sum = 0x2545f4914f6cdd1dull + static_cast<std::uint64_t>(tensor.numel());
  const at::Tensor sums = sums_of_words(tensor).cpu();
  const auto* each = sums.const_data_ptr<std::int64_t>();
  for (std::int64_t k = 0; k < sums.numel(); ++k)
    sum = (sum ^ static_cast<std::uint64_t>(each[k])) * 0x9e3779b97f4a7c15ull;
  return static_cast<std::int64_t>(sum >> 1);
}

std::int64_t hash_of_bits(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return sum_of_bits(tensor);
  const at::Tensor whole = tensor.contiguous();
  return static_cast<std::int64_t>(XXH3_64bits(whole.const_data_ptr(), whole.nbytes()) >> 1);
}

void compare_bits(RankRun& rank, const RankSet& set, const std::vector<BitsSeen>& list,
                  std::int64_t step) {
  if (list.empty()) return;
  static const std::string label = "replicas";
  Communicator& ranks = rank.group(set);
  const auto count = static_cast<std::int64_t>(list.size());
  at::Tensor sums = at::empty({2, count}, at::kLong);
  auto* sum = sums.mutable_data_ptr<std::int64_t>();
  for (std::int64_t k = 0; k < count; ++k) {
    sum[k] = list[static_cast<std::size_t>(k)].bits;
    sum[count + k] = -sum[k];
  }
  sums = sums.to(rank.device());
  ranks.all_reduce(sums, Reduction::max, {"check", &label}).wait();
  const at::Tensor differ = sums[0].add(sums[1]).ne(0).cpu();
  if (!differ.any().item<bool>()) return;
  const BitsSeen& first = list[static_cast<std::size_t>(differ.nonzero()[0].item<std::int64_t>())];
  const at::Tensor mine = at::full({1}, first.bits, at::kLong).to(rank.device());
  const at::Tensor all = at::empty({ranks.ways()}, mine.options());
  ranks.all_gather(all, mine, {"check", &label}).wait();
  std::vector<int> others;  // ranks whose bits differ from those of the first rank
  const at::Tensor bits = all.cpu();
  for (int r = 0; r < ranks.ways(); ++r) {
    if (!bits[r].equal(bits[0])) others.push_back(ranks.group()[r]);
  }
  throw Error(
      Stage::run, "check.replicas", "",
      fmt::format("check: {} is Replicate over {}, but its bits on rank{} {} differ from "
                  "those on rank {} (step {}{})",
                  first.what, rank.program().name_of(set), others.size() == 1 ? "" : "s",
                  fmt::join(others, ", "), ranks.group()[0], step,
                  first.microbatch < 0 ? "" : fmt::format(", microbatch {}", first.microbatch)),
      "a reduction or a gather before it is missing, doubled or stale; mw.verify names the op "
      "that parts first");
}

void each_kept(RankRun& rank, const std::function<void(const KeptTensor&)>& call) {
  rank.await_updates();
  const Program& program = rank.program();
  for (const Bucket& bucket : program.buckets) {
    const FlatSlots& flat = bucket.flat;
    const bool apart = bucket.fragment >= 0;
    const auto show = [&](const std::string& what, int slot, bool shard, bool differs) {
      if (slot < 0) return;
      const at::Tensor& tensor = rank.kept(slot);
      if (tensor.defined())
        call({bucket, what, slot, tensor, keepers_of(program, bucket, shard, differs)});
    };
    const bool whole = rank.kept(flat.parameters).defined();
    show("the parameters", whole ? flat.parameters : flat.stored, !whole, apart);
    show("the masters", flat.master, true, apart);
    for (std::size_t k = 0; k < flat.states.size(); ++k)
      show(fmt::format("state {} of the optimizer", k), flat.states[k], true, apart);
    for (std::size_t k = 0; k < flat.of_matrix.size(); ++k)
      show(fmt::format("matrix state {} of the optimizer", k), flat.of_matrix[k], true, apart);
    for (const auto& [state, slot] : states_of_outer_steps(program, bucket))
      show("the " + state, slot, true, false);
  }
}

ReplicaCheck::OfRank& ReplicaCheck::of(const RankRun& rank) {
  const std::lock_guard lock(mutex_);
  return ranks_[rank.rank()];  // entries of a map are never moved
}

void ReplicaCheck::begin(RankRun& rank) {
  of(rank).report.every = every_;
}

void ReplicaCheck::step(RankRun& rank, StepEnd& end) {
  OfRank& own = of(rank);
  own.ended = end.step;
  ++own.report.steps;
  if (end.last || (end.step + 1) % every_ == 0) compare(rank, own);
}

void ReplicaCheck::finish(RankRun& rank) {
  OfRank& own = of(rank);
  if (own.compared < own.ended) compare(rank, own);
}

void ReplicaCheck::compare(RankRun& rank, OfRank& own) {
  const CheckStopwatch watch(own.report.seconds);
  const Ledger::Pause pause(rank.ledger());
  own.compared = own.ended;
  ++own.report.compared;
  std::map<RankSet, std::uint64_t> numbers;
  each_kept(rank, [&](const KeptTensor& kept) {
    ++own.report.tensors;
    if (kept.ranks.atoms.empty()) return;
    ++own.report.replicas;
    std::uint64_t& number = numbers[kept.ranks];
    number = mix64(number ^ static_cast<std::uint64_t>(hash_of_bits(kept.tensor)));
  });
  if (rank.program().mesh.size() == 1 || alike_everywhere(rank, numbers)) return;
  for (const auto& [set, list] : kept_in_detail(rank)) compare_bits(rank, set, list, own.ended);
  refuse_if_none_found(rank, own.ended);
}

CheckReport ReplicaCheck::report() const {
  CheckReport longest;
  for (const auto& [rank, own] : ranks_) {
    if (longest.steps == 0 || own.report.seconds > longest.seconds) longest = own.report;
  }
  return longest;
}

}  // namespace mw
