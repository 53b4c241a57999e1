// Computes a plan's hash: over what its stages compute, send, keep and update.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <vector>

#include "meshwright/engine/mix.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/text.h"
#include "meshwright/outer_steps.h"
#include "meshwright/reduction_hook.h"

namespace mw {
namespace {

// A 64-bit digest that is the same on every machine: no pointer and no dim's id goes into it.
class Digest {
 public:
  void add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9E3779B97F4A7C15ull;
    state_ ^= state_ >> 32;
  }
  template <class Number>
  requires std::is_integral_v<Number> || std::is_enum_v<Number>
  void add(Number value) { add(static_cast<std::uint64_t>(static_cast<std::int64_t>(value))); }
  void add(std::string_view text) {
    add(text.size());
    std::uint64_t word = 0;  // never reset: the last word may hold bytes of the word before
    std::size_t i = 0;
    if constexpr (std::endian::native == std::endian::little) {
      for (; i + 8 <= text.size(); i += 8) {
        std::memcpy(&word, text.data() + i, 8);
        add(word = __builtin_bswap64(word));
      }
    }
    for (; i < text.size(); ++i) {
      word = word << 8 | static_cast<unsigned char>(text[i]);
      if (i % 8 == 7) add(word);
    }
    if (text.size() % 8 != 0) add(word);
  }
  void add(const std::string& text) { add(std::string_view(text)); }
  void add(const char* text) { add(std::string_view(text)); }
  void add(Dim dim) {
    if (dim.id() >= dims_.size()) dims_.resize(dim.id() + 1, 0);
    std::uint64_t& known = dims_[dim.id()];
    if (known == 0) {
      Digest name;
      name.add(dim.name());
      known = name.state_ | 1;
    }
    add(known);
  }
  void add(const Placement& p) {
    add(p.kind);
    add(p.reduction);
    add(p.dim);
  }
  void add(const Range& range) {
    add(range.offset);
    add(range.size);
  }
  void add(const SegmentRun& run) {
    add(run.segment);
    add(run.microbatch);
    if (!run.others.empty()) add(run.others);  // plans without braids keep their hashes
  }
  template <class Element>
  void add(const std::vector<Element>& list) {
    add(list.size());
    for (const auto& element : list) add(static_cast<const Element&>(element));
  }
  template <class Element, unsigned N>
  void add(const Few<Element, N>& list) {
    add(list.size());
    for (const Element& element : list) add(element);
  }

  void add(const Slot& slot);
  void add(const Move& move);
  void add(const Rotating& r);
  void add(const Instruction& i);
  void add(const Segment& segment);
  void add(const ProgramParameter& parameter);
  void add(const Bucket& bucket);
  void add(const Program& program);
  void add(const Graph& graph);

  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  std::uint64_t state_ = 14695981039346656037ull;
  std::vector<std::uint64_t> dims_;  // digests of dims' names, by Dim::id
};

void Digest::add(const Slot& slot) {
  add(slot.name);
  add(slot.dims);
  add(slot.layout);
  add(slot.dtype);
  add(slot.memory);
  add(slot.extra);
  add(slot.persistent);
  add(slot.transient);
  add(slot.bucket);
  add(slot.category);
  add(slot.value);
  add(slot.alias_of);
  add(slot.ring);
  add(slot.ring_step);
  if (slot.slices == 1) return;
  add(slot.slices);
  add(slot.slice);
  add(slot.slice_dim);
}

void Digest::add(const Move& move) {
  add(move.kind);
  add(move.atoms);
  add(move.from);
  add(move.to);
  add(move.reduction);
  add(move.lands);
  if (move.brings_counts) add(true);  // plans without experts keep their hashes
  add(move.stages);
  add(move.peer);
  add(move.tag);
  if (move.stream >= 0) add(move.stream);  // plans without streams keep their hashes
}

void Digest::add(const Rotating& r) {
  add(r.input);
  add(r.shards);
  add(r.pending);
  add(r.shares);
  add(r.sums);
  add(r.sum_pending);
}

void Digest::add(const Instruction& i) {
  add(i.code);
  add(i.update);
  add(i.piece);
  add(i.op);
  for (const auto* slots :
       {&i.inputs, &i.outputs, &i.saved, &i.grad_outputs, &i.grad_inputs, &i.release})
    add(*slots);
  add(i.accumulate);
  add(i.in_place);
  const bool moves = !i.move.atoms.empty() || !i.move.stages.empty();
  add(moves);
  if (moves) add(i.move);
  add(i.pending);
  add(i.again);
  add(i.bucket);
  add(i.parameter);
  add(i.contributing);
  add(i.part());
  add(i.parts());
  if (i.ring) add(*i.ring);
  add(i.phase);
  if (i.lane > 0) add(i.lane);
  if (i.owner >= 0) add(i.owner);
  if (i.round > 0) add(fmt::format("round {}", i.round));
}

void Digest::add(const Segment& segment) {
  add(segment.name);
  add(segment.kind);
  add(segment.vstage);
  add(segment.gradient);
  add(segment.copy_of);
  add(segment.code);
}

void Digest::add(const ProgramParameter& p) {
  add(p.value);
  add(p.slot);
  add(p.gradient_slot);
  add(p.stored);
  add(p.accumulated);
  add(p.stacked);
  add(p.rows);
}

void Digest::add(const Bucket& bucket) {
  for (const auto* numbers : {&bucket.parameters, &bucket.reduce_atoms, &bucket.parameter_atoms,
                              &bucket.stages, &bucket.shard_atoms})
    add(*numbers);
  add(bucket.name);
  add(bucket.counts);
  add(bucket.matrix);
  if (bucket.frozen) add(std::string("frozen"));
  add(bucket.overlap);
  add(bucket.reduce_per_microbatch);
  if (bucket.gather_overlaps_forward) add(std::string("gather overlaps forward"));
  add(identity_of(bucket.hook));
  if (bucket.gather_hook) add("gathered by " + identity_of(bucket.gather_hook));
  add(bucket.sharded_state);
  add(bucket.offload);
  if (bucket.update_on_device) add(std::string("updated on device"));
  if (bucket.update_overlaps_forward) add(std::string("update overlaps forward"));
  if (bucket.fragment >= 0) add(bucket.fragment);
}

void Digest::add(const Program& p) {
  add(p.stage);
  add(p.stages);
  add(p.stage_atom);
  add(p.stage_of);
  add(p.vstage_of);
  add(p.microbatches);
  add(p.batches);
  add(p.dtype);
  add(p.gradient_dtype);
  add(p.optimizer_dtype);
  add(p.reduce_dtype);
  add(p.slots);
  add(p.parameters);
  add(p.buckets);
  add(p.segments);
  add(p.timeline);
  if (!p.streams.empty()) add(p.streams);
  add(p.cut);
  add(p.follow);
  for (const auto& [op, rotation] : p.rotations) {
    add(op);
    add(rotation.dim);
    add(rotation.atoms);
  }
  std::vector<std::pair<std::string, std::vector<Range>>> orders;
  for (const auto& [dim, order] : p.token_permutation) orders.emplace_back(dim.name(), order);
  std::sort(orders.begin(), orders.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [dim, order] : orders) {
    add(dim);
    add(order);
  }
  if (p.document_parts > 1) add(p.document_parts);
  if (!p.outer) return;
  add(p.outer->atoms);  // the strategy's options, in the description, say which optimizer it is
  for (const std::int64_t number :
       {p.outer->every, std::int64_t{p.outer->fragments}, p.outer->delay})
    add(number);
}

// Names and kinds of ops, which a pass may have changed: the description has the model's numbers.
void Digest::add(const Graph& graph) {
  for (const Op& op : graph.ops()) {
    add(op.name);
    add(op.kind());
  }
}

}  // namespace

HashMemo& HashMemo::operator=(const HashMemo&) {
  text_.clear();
  return *this;
}

const std::string& HashMemo::of(const std::function<std::string()>& make) const {
  const std::lock_guard lock(mutex_);
  if (text_.empty()) text_ = make();
  return text_;
}

Json without_numbers(Json value) {
  if (is_function(value)) value.erase(function_key);
  if (value.is_structured()) {
    for (auto& [key, item] : value.items()) item = without_numbers(std::move(item));
  }
  return value;
}

static std::string hash_of(const Plan& plan) {
  Digest digest;
  Json said = plan.description();
  // The mix is hashed by names and ways alone: options may name files and functions, which decide
  // nothing. All names of mixes once had this form; it stays so that plans keep their hashes.
  std::string mix;
  for (const StrategyChoice& choice : plan.request.strategies)
    mix += fmt::format("{}{}({})", mix.empty() ? "" : " x ", choice.name, ways_of(choice));
  said["mix"] = mix.empty() ? "one rank" : mix;
  for (const Json& part : {std::move(said), plan.request.step_settings})
    digest.add(without_numbers(part).dump(-1, ' ', false, Json::error_handler_t::replace));
  for (const Atom& atom : plan.mesh.atoms()) digest.add(atom.ways);
  const Graph* last = nullptr;
  for (const Program& program : plan.programs) {
    if (program.graph.get() != last) digest.add(*program.graph);
    last = program.graph.get();
    digest.add(program);
  }
  return digest.text();
}

std::string Plan::hash() const {
  return hashed.of([&] { return hash_of(*this); });
}

}  // namespace mw
