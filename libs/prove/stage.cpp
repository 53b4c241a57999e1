// Steps through a stage's timeline and keeps its tensors: who holds them, what transfers do with
// them, when they are let go.
#include "prove/stage.h"

#include <fmt/format.h>

#include <algorithm>

namespace mw::proving {

bool Microbatches::has(int microbatch) const {
  const auto word = static_cast<std::size_t>(microbatch) / 64;
  return word < words_.size() && (words_[word] >> (microbatch % 64) & 1) != 0;
}

bool Microbatches::add(int microbatch) {
  const auto word = static_cast<std::size_t>(microbatch) / 64;
  if (word >= words_.size()) words_.resize(word + 1, 0);
  const std::uint64_t bit = std::uint64_t{1} << (microbatch % 64);
  const bool fresh = (words_[word] & bit) == 0;
  words_[word] |= bit;
  return fresh;
}

bool Microbatches::add(const Microbatches& others) {
  bool fresh = true;
  if (words_.size() < others.words_.size()) words_.resize(others.words_.size(), 0);
  for (std::size_t word = 0; word < others.words_.size(); ++word) {
    fresh = fresh && (words_[word] & others.words_[word]) == 0;
    words_[word] |= others.words_[word];
  }
  return fresh;
}

bool Microbatches::all(int count) const {
  for (int m = 0; m < count; ++m) {
    if (!has(m)) return false;
  }
  return true;
}

StageProof::StageProof(const Program& program, Gradients& gradients, Mail& mail)
    : program_(program),
      graph_(*program.graph),
      gradients_(gradients),
      mail_(mail),
      tables_(program),
      checked_(program.graph->ops().size(), 0),
      seen_(program.segments.size(), false),
      bucket_of_(program.parameters.size(), -1),
      views_(program.slots.size()),
      released_(program.slots.size()),
      microbatches_(static_cast<std::size_t>(program.microbatches) + 1),
      noted_(program.graph->ops().size(), 0),
      numbers_(program.graph->ops().size(), -1) {
  where_.stage = program.stage;
}

void StageProof::refuse(std::string code, std::string message, int slot, const Where& by) const {
  Refusal made = refusal(std::move(code), std::move(message));
  made.slot = slot;
  if (by.known()) made.written = proving::text_of(program_, by);
  throw Refused{std::move(made)};
}

std::string StageProof::text_of(const Content& content) const {
  std::string text;
  switch (content.what) {
    case ContentKind::nothing:
      return "nothing";
    case ContentKind::value:
      text = graph_.value(content.id).name;
      break;
    case ContentKind::saved:
      text = "what " + graph_.ops()[content.id].name + " keeps";
      break;
    case ContentKind::gradient: {
      const std::vector<int>& terms = gradients_.sets.terms(content.terms);
      text = terms.empty() ? "an empty gradient" : gradients_.text(terms.front());
      if (terms.size() > 1) text += fmt::format(" and {} more", terms.size() - 1);
      break;
    }
    case ContentKind::direction:
      text = "the direction of " + graph_.value(content.id).name;
      break;
    case ContentKind::update:
      text = "the update of " + graph_.value(content.id).name;
      break;
    case ContentKind::sums:
      text = fmt::format("round {} of the sums of {}", content.output + 1,
                         program_.buckets[content.id].name);
      break;
    case ContentKind::gram:
      text = "the Gram matrices of " + graph_.value(content.id).name;
      break;
  }
  if (content.microbatch >= 0) text += fmt::format(" of microbatch {}", content.microbatch);
  const bool ring = content.what != ContentKind::direction && content.what != ContentKind::gram;
  if (content.steps > 0)
    text += ring ? fmt::format(", {} ring steps of it", content.steps)
                 : fmt::format(" after {} steps", content.steps);
  if (content.slices > 1)
    text += fmt::format(", slice {} of {}", content.slice + 1, content.slices);
  if (!content.parts.empty()) text += ", of some slices";
  if (content.shift > 0) text += fmt::format(", of the rank {} before", content.shift);
  return text;
}

// Describes a placement, as needed or as found.
static std::string in_words(const std::string& place, const std::string& axis, bool needed) {
  if (place == "R") return fmt::format("whole on each rank of {} (R)", axis);
  if (place[0] == 'S') return fmt::format("cut over {} ({})", axis, place);
  return needed ? fmt::format("a share of a sum over {} ({})", axis, place)
                : fmt::format("a sum over {} that was not reduced ({})", axis, place);
}

void StageProof::misplaced(int slot, const Operand& found, const Layout& needed,
                           const std::string& what) const {
  const Layout& place = found.content->place;
  Refusal made = refusal("prove.place", "");
  made.slot = slot;
  made.axes = differences(program_.mesh, needed, place);
  std::string is, wants;
  for (const AxisDifference& axis : made.axes) {
    is += (is.empty() ? "" : ", ") + in_words(axis.found, axis.axis, false);
    wants += (wants.empty() ? "" : ", ") + in_words(axis.needed, axis.axis, true);
  }
  const bool named = found.content->what == ContentKind::value;
  made.message =
      fmt::format("{} is {}; it must be {}", named ? text_of(*found.content) : what, is, wants);
  made.mend = mend_of(program_.mesh, needed, place);
  if (found.by.known()) made.written = proving::text_of(program_, found.by);
  throw Refused{std::move(made)};
}

MicrobatchState& StageProof::of(int microbatch) {
  MicrobatchState& m = microbatches_[microbatch + 1];
  if (m.slots.empty()) {
    m.slots.assign(program_.slots.size(), -1);
  }
  return m;
}

// The tensor that a slot of the microbatch holds.
int StageProof::held(int slot) {
  const int tensor = now().slots[slot];
  if (tensor >= 0) return tensor;
  const auto& [microbatch, gone] = released_[slot];
  if (gone.known() && microbatch == microbatch_) {
    refuse("prove.released",
           fmt::format("{} is read, and was let go of by {}", name(slot),
                       proving::text_of(program_, gone)),
           slot, gone);
  }
  refuse("prove.missing", fmt::format("{} is read, and nothing was written there", name(slot)),
         slot);
}

StageProof::Operand StageProof::read(int slot) {
  if (lasting(slot)) return parameter(slot);
  const int index = held(slot);
  const Tensor& t = tensor(index);
  if (t.writing)
    refuse("prove.underway", fmt::format("{} is read while a transfer writes it", name(slot)), slot,
           t.by);
  return {&t.content, &t.dims, t.dtype, t.memory, t.by, index};
}

// Gives a slot a new tensor.
void StageProof::make(int slot, Content content, const Dims& dims, Dtype dtype) {
  claim(slot, content, dims, dtype);
  int index;
  if (free_.empty()) {
    index = static_cast<int>(pool_.size());
    pool_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Tensor& t = tensor(index);
  t.content = std::move(content);
  t.dims = dims;
  t.dtype = dtype;
  t.memory = this->slot(slot).memory;
  t.holders = t.readers = 0;
  t.writing = false;
  t.by = where_;
  hold(slot, index);
}

void StageProof::hold(int slot, int index) {
  if (lasting(slot))
    refuse("prove.slot",
           fmt::format("{} lasts, and a result of a microbatch cannot be put there", name(slot)),
           slot);
  int& place = now().slots[slot];
  ++tensor(index).holders;
  if (place >= 0) {
    let_go(place);
  } else {
    ++now().held;
  }
  place = index;
}

void StageProof::let_go(int index) {
  Tensor& t = tensor(index);
  if (--t.holders > 0) return;
  t.content = {};
  free_.push_back(index);
}

// Refuses content that differs from what its slot declares (layout, slice, dtype): shapes on a rank
// follow from the declaration.
void StageProof::claim(int index, const Content& content, const Dims& dims, Dtype dtype) const {
  const Slot& s = slot(index);
  bool same = s.dims == dims && s.layout.size() == content.place.size();
  for (std::size_t a = 0; same && a < s.layout.size(); ++a) {
    if (!tables_.lives(static_cast<int>(a))) continue;
    const Placement &says = s.layout[a], &is = content.place[a];
    same = says.is_shard() == is.is_shard() && says.dim == is.dim;
  }
  if (!same) {
    refuse("prove.layout",
           fmt::format("{} gets {}, {}, but states the layout {}", s.name, text_of(content),
                       to_string(content.place, program_.mesh), to_string(s.layout, program_.mesh)),
           index);
  }
  if (s.slices != content.slices ||
      (s.slices > 1 && (s.slice != content.slice || s.slice_dim != content.slice_dim)))
    refuse("prove.slice",
           fmt::format("{} gets {}, and says that it is slice {} of {}", s.name, text_of(content),
                       s.slice + 1, s.slices),
           index);
  if (s.dtype != dtype) {
    refuse("prove.dtype",
           fmt::format("{} gets {} in {}, and says that it is {}", s.name, text_of(content),
                       name_of(dtype), name_of(s.dtype)),
           index);
  }
}

// A tensor that is about to be overwritten or added to.
Tensor& StageProof::overwrite(int slot) {
  Tensor& t = tensor(held(slot));
  if (t.writing || t.readers > 0) {
    refuse("prove.underway",
           fmt::format("{} is overwritten while a transfer {} it", name(slot),
                       t.writing ? "writes" : "reads"),
           slot, t.by);
  }
  return t;
}

void StageProof::release(int slot) {
  if (slot < 0 || slot >= static_cast<int>(program_.slots.size()))
    refuse("prove.operands", fmt::format("there is no slot {}", slot));
  if (!lasting(slot)) {
    int& place = now().slots[slot];
    if (place < 0)
      refuse("prove.released", fmt::format("{} is let go of, and is not there", name(slot)), slot);
    const Tensor& t = tensor(place);
    if (t.holders == 1 && (t.readers > 0 || t.writing))
      refuse("prove.underway", fmt::format("{} is let go of while a transfer needs it", name(slot)),
             slot, t.by);
    let_go(place);
    place = -1;
    released_[slot] = {microbatch_, where_};
    if (--now().held == 0) std::vector<int>().swap(now().slots);
    return;
  }
  const FlatView v = view(slot);
  if (v.part == FlatView::Part::none || v.part == FlatView::Part::parameter ||
      this->slot(slot).alias_of >= 0 || !this->slot(slot).transient) {
    refuse("prove.released",
           fmt::format("{} is let go of, and lasts from step to step", name(slot)), slot);
  }
  Flat& f = flat(v);
  if (!f.there)
    refuse("prove.released", fmt::format("{} is let go of, and is not there", name(slot)), slot,
           f.by);
  if (f.readers > 0 || f.writing)
    refuse("prove.underway", fmt::format("{} is let go of while a transfer needs it", name(slot)),
           slot, f.by);
  f.there = f.settled = false;
  f.regions.assign(f.regions.size(), {});
  released_[slot] = {-1, where_};
}

void StageProof::release(const Instruction& i) {
  for (const int slot : i.release) {
    // Where several waits stand for one transfer, an earlier one may have released the slot.
    const bool gone = i.awaits_transfer() && i.again && slot >= 0 && lasting(slot) &&
                      view(slot).flat >= 0 && !flat(view(slot)).there;
    if (!gone) release(slot);
  }
}

// The slot of a list that must have exactly one.
int StageProof::one(const Slots& slots, const char* which) const {
  if (slots.size() == 1 && slots[0] >= 0) return slots[0];
  refuse("prove.operands", fmt::format("it has {} {}s, and takes one", slots.size(), which));
}

void StageProof::check_slots(const Instruction& i) const {
  for (const auto* list : {&i.inputs, &i.outputs, &i.saved, &i.grad_outputs, &i.grad_inputs}) {
    for (const int slot : *list) {
      if (slot < -1 || slot >= static_cast<int>(program_.slots.size()))
        refuse("prove.operands", fmt::format("there is no slot {}", slot));
    }
  }
  for (const int atom : i.move.atoms) {
    if (atom < 0 || atom >= static_cast<int>(program_.mesh.atoms().size()))
      refuse("prove.operands", fmt::format("the mesh has no atom {}", atom));
    if (program_.parts_replicas(atom))
      refuse("prove.replicas",
             fmt::format("a transfer over {}, along which ranks have replicas that differ",
                         program_.mesh.atoms()[atom].name));
  }
  if (i.bucket >= static_cast<int>(program_.buckets.size()) ||
      i.parameter >= static_cast<int>(program_.parameters.size()))
    refuse("prove.operands", "there is no such bucket or parameter");
  const int stream = i.move.stream;
  if (stream < -1 || stream >= static_cast<int>(program_.streams.size()))
    refuse("prove.operands", fmt::format("there is no stream {}", stream));
  const bool between = i.move.kind == Move::Kind::send || i.move.kind == Move::Kind::recv;
  if (stream >= 0 && (between || !i.move.stages.empty())) {
    refuse("prove.stream",
           fmt::format("a transfer between stages is on the stream {}, and stages may reach it in "
                       "different orders",
                       program_.streams[static_cast<std::size_t>(stream)]));
  }
}

// A transfer or copy between flat tensors must name their bucket, which says whether the transfer
// may outlast a step.
void StageProof::check_bucket(const Instruction& i) const {
  if (i.code != Code::start && i.code != Code::wait && i.code != Code::copy) return;
  if (i.outputs.empty() || i.outputs[0] < 0 || view(i.outputs[0]).flat < 0) return;
  const int bucket = flats_[view(i.outputs[0]).flat].bucket;
  if (bucket >= 0 && i.bucket != bucket)
    refuse("prove.bucket",
           fmt::format("it brings what is of {}, and says that it is not",
                       program_.buckets[bucket].name),
           i.outputs[0]);
}

// False: the instruction waits for another stage, and nothing has changed.
bool StageProof::apply(const Instruction& i) {
  switch (i.code) {
    case Code::load:
      load(i);
      return true;
    case Code::compute:
      i.update == Update::none ? compute(i) : update(i);
      return true;
    case Code::move:
      local_move(i);
      return true;
    case Code::start:
      return start(i);
    case Code::wait:
      return wait(i);
    case Code::seed:
      seed(i);
      return true;
    case Code::alias:
      alias(i);
      return true;
    case Code::add:
      add(i);
      return true;
    case Code::copy:
      copy(i);
      return true;
    case Code::begin_sum:
      begin_sum(i);
      return true;
    case Code::settle:
      settle(i);
      return true;
    case Code::hook_start:
      hook_start(i);
      return true;
    case Code::hook_finish:
      return wait(i);
    case Code::totals:
      return totals(i);
  }
  return true;
}

StageProof::Step StageProof::step() {
  while (run_ < program_.timeline.size() &&
         next_ >= program_.segments[program_.timeline[run_].segment].code.size()) {
    ++run_;
    next_ = 0;
  }
  if (ended()) return Step::ended;
  const SegmentRun& run = program_.timeline[run_];
  const auto segment = static_cast<std::size_t>(run.segment);
  const Instruction& i = program_.segments[segment].code[next_];
  microbatch_ = microbatch_of(run, i.lane);
  where_ = {program_.stage, static_cast<int>(run_), static_cast<int>(next_), -1};
  at_ = &i;
  if (!seen_[segment]) {
    check_slots(i);
    check_bucket(i);
  }
  if (!apply(i)) return Step::blocked;
  waits_for_.clear();
  release(i);
  ++rules_;
  if (++next_ == program_.segments[segment].code.size()) seen_[segment] = true;
  return Step::moved;
}

// A run of a braid needs a microbatch for each lane, a run of any other segment just one.
void StageProof::check_lanes(const SegmentRun& run) const {
  const Segment& segment = program_.segments[run.segment];
  const auto lanes = static_cast<std::size_t>(lanes_of(run));
  if (lanes != std::max<std::size_t>(segment.lanes.size(), 1))
    refuse("prove.lanes", fmt::format("{} has {} lanes and runs for {} microbatches", segment.name,
                                      segment.lanes.size(), lanes));
}

void StageProof::check_program() {
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    const Slot& what = program_.slots[s];
    const int atom = program_.stage_atom;
    if (what.layout.size() != program_.mesh.atoms().size())
      refuse("prove.layout", what.name + " has no layout", static_cast<int>(s));
    if (atom >= 0 && program_.mesh.atoms()[atom].ways > 1 && what.layout[atom].is_shard())
      refuse("prove.layout",
             fmt::format("{} is cut over {}, whose ranks hold other layers", what.name,
                         program_.mesh.atoms()[atom].name),
             static_cast<int>(s));
  }
  if (program_.loss >= 0 && slot(program_.loss).dtype != Dtype::fp64)
    refuse("prove.dtype", name(program_.loss) + " is not summed in fp64", program_.loss);
  for (const Segment& segment : program_.segments) {
    for (const Instruction& i : segment.code) {
      if (i.lane < 0 || i.lane >= std::max(1, static_cast<int>(segment.lanes.size())))
        refuse("prove.lanes", fmt::format("{} of {} is of lane {} of {}", listed(program_, i),
                                          segment.name, i.lane, segment.lanes.size()));
    }
  }
  for (const SegmentRun& run : program_.timeline) {
    bool there = run.segment >= 0 && run.segment < static_cast<int>(program_.segments.size());
    for (int lane = 0; lane < lanes_of(run); ++lane) {
      const int microbatch = microbatch_of(run, lane);
      there = there && microbatch >= -1 && microbatch < program_.microbatches;
    }
    if (!there)
      refuse("prove.operands",
             "the timeline has a run of a segment or microbatch that is not there");
    check_lanes(run);
  }
  for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
    for (const int p : program_.buckets[b].parameters) {
      if (bucket_of_.at(p) >= 0)
        refuse("prove.bucket", program_.name_of_parameter(p) + " is in two buckets");
      bucket_of_[p] = static_cast<int>(b);
    }
  }
  for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
    const ProgramParameter& parameter = program_.parameters[p];
    const Value& value = graph_.value(parameter.value);
    if (bucket_of_[p] < 0)
      refuse("prove.bucket", value.name + " is in no bucket, so nothing reduces or updates it");
    Content content;
    content.what = ContentKind::value;
    content.id = parameter.value;
    content.place = parameter.stored;
    for (std::size_t a = 0; a < content.place.size(); ++a) {
      Placement& place = content.place[a];
      if (!tables_.lives(static_cast<int>(a))) place = {};
      if (place.is_partial() || (place.is_shard() && !contains(value.dims, place.dim)))
        refuse("prove.layout",
               value.name + " cannot be stored " + to_string(parameter.stored, program_.mesh),
               parameter.slot);
    }
    parameters_.push_back(content);
    claim(parameter.slot, content, value.dims, program_.dtype_of(Scalar::real, false));
    if (!value.frozen) claim(parameter.gradient_slot, content, value.dims, program_.gradient_dtype);
  }
  make_flats();
}

// At the end of a step nothing of a microbatch is left, and what lasts is as a next step needs it.
void StageProof::check_end() {
  at_ = nullptr;
  for (int m = -1; m < program_.microbatches; ++m) {
    MicrobatchState& all = microbatches_[m + 1];
    if (all.held == 0) continue;
    const auto left =
        std::find_if(all.slots.begin(), all.slots.end(), [](int t) { return t >= 0; });
    const int slot = static_cast<int>(left - all.slots.begin());
    refuse("prove.leak", fmt::format("{} of microbatch {} is never let go of", name(slot), m), slot,
           tensor(*left).by);
  }
  for (const auto& [key, under] : underway_) {
    const bool numbers = std::all_of(
        under.regions.begin(), under.regions.end(),
        [](const Region& r) { return r.kind == Region::Kind::parameter && r.version == 1; });
    if (!under.flat || under.round >= 0 || !numbers)
      refuse("prove.unawaited",
             "what was begun by " + proving::text_of(program_, under.by) + " is never awaited");
  }
  check_versions();
}

bool StageProof::turn() {
  bool more = !underway_.empty();
  for (Flat& f : flats_) {
    more = more || (f.there && slot(f.slot).transient);
    const Bucket* const bucket = f.bucket < 0 ? nullptr : &program_.buckets[f.bucket];
    const bool left = bucket != nullptr && bucket->update_overlaps_forward;
    more = more || left;
    for (Region& region : f.regions) {
      region.version = left ? region.version - 1 : 0;
      if (left && f.slot == bucket->flat.gradients_on_host) {
        region.stale = true;
      } else if (region.kind == Region::Kind::gradient || region.kind == Region::Kind::direction) {
        region = {};
        region.kind = Region::Kind::gradient;
        region.stale = true;
      }
    }
  }
  for (auto& [key, under] : underway_) {
    under.may_be_over = true;
    for (Region& region : under.regions) region.version = 0;
  }
  for (MicrobatchState& m : microbatches_) m = {};
  released_.assign(program_.slots.size(), {});
  run_ = next_ = 0;
  totalled_ = first_step_ = false;
  round_ = -1;
  counted_.clear();
  reported_.clear();
  return more;
}

}  // namespace mw::proving
