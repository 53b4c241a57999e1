// Proves the programs of outer steps: each bucket of the fragment sends the distance of its replica
// from the anchor once, sums it over all replicas alone, and brings anchor and parameters together.
#include <fmt/format.h>

#include <vector>

#include "meshwright/outer_steps.h"
#include "prove/stage.h"

namespace mw::proving {
namespace {

// What a bucket has come to, in the order of an outer step.
enum class Progress : std::uint8_t {
  apart,         // replicas have their own parameters
  own_gradient,  // the outer gradient is the rank's own
  under_way,     // and is being summed
  summed,
  updated,  // anchor and updated() are alike on all replicas
  stored,   // and so is what ops read, or the rank's shard of it
  gathering,
  whole,
};

const char* name_of(Progress progress) {
  constexpr std::array names{"apart",   "not summed", "under way", "summed",
                             "updated", "stored",     "gathering", "whole"};
  return names.at(static_cast<std::size_t>(progress));
}

class OuterProof {
 public:
  OuterProof(const Program& program, const OuterEvent& event)
      : program_(program), event_(event), at_(program.buckets.size(), first()) {}

  void run() {
    where_.stage = program_.stage;
    for (std::size_t r = 0; r < program_.timeline.size(); ++r) {
      const std::vector<Instruction>& code =
          program_.segments.at(program_.timeline[r].segment).code;
      for (std::size_t n = 0; n < code.size(); ++n) {
        where_.run = static_cast<int>(r);
        where_.instruction = static_cast<int>(n);
        follow(code[n]);
      }
    }
    where_.run = -1;
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      const Progress end = bucket.fragment != event_.fragment ? first()
                           : event_.ends                      ? last(bucket)
                                                              : begun();
      if (at_[b] != end)
        refuse(fmt::format("{} ends the outer step \"{}\", and not \"{}\"", bucket.name,
                           name_of(at_[b]), name_of(end)));
    }
  }

 private:
  // A plan of one replica has no sum of outer gradients.
  Progress begun() const {
    return program_.replicas() == 1 ? Progress::own_gradient : Progress::under_way;
  }
  Progress complete() const {
    return program_.replicas() == 1 ? Progress::own_gradient : Progress::summed;
  }
  Progress first() const { return event_.begins ? Progress::apart : begun(); }
  static Progress last(const Bucket& bucket) {
    return bucket.gathered_once_updated() ? Progress::whole : Progress::stored;
  }

  void follow(const Instruction& i) {
    for (const int slot : i.release)
      if (!program_.slots[slot].transient) refuse("it lets go of a tensor that lasts");
    if (!i.has_bucket() || program_.buckets[i.bucket].fragment != event_.fragment)
      refuse("it is of no bucket of the fragment");
    const Bucket& bucket = program_.buckets[i.bucket];
    const FlatSlots& flat = bucket.flat;
    Progress& at = at_[i.bucket];
    const Slots sum{flat.outer_gradient};
    const auto is = [&](Progress before, bool right, Progress after) {
      if (at != before || !right)
        refuse(fmt::format("{} is \"{}\", and this instruction is none that follows", bucket.name,
                           name_of(at)));
      at = after;
    };
    const Progress updated = flat.master >= 0 ? Progress::updated : Progress::stored;
    if (i.update == Update::outer_gradient) {
      is(Progress::apart, i.inputs == Slots{flat.anchor, flat.updated()} && i.outputs == sum,
         Progress::own_gradient);
    } else if (i.update == Update::outer_step) {
      is(complete(),
         i.inputs == sum && i.outputs == Slots{flat.anchor, flat.updated()} &&
             std::ranges::equal(i.saved, flat.outer_states),
         updated);
    } else if (i.code == Code::copy) {
      is(Progress::updated, i.inputs == Slots{flat.master} && i.outputs == Slots{flat.stored},
         Progress::stored);
    } else if (i.serves == Serves::outer_gradients) {
      const bool sums = i.move.kind == Move::Kind::all_reduce && i.move.stages.empty() &&
                        i.move.reduction == Reduction::sum && i.inputs == sum && i.outputs == sum &&
                        i.move.atoms == program_.replica_atoms();
      const bool starts = i.code == Code::start;
      is(starts ? Progress::own_gradient : Progress::under_way,
         sums && (starts || i.code == Code::wait), starts ? Progress::under_way : Progress::summed);
    } else if (i.serves == Serves::parameters) {
      const bool gathers = i.move.kind == Move::Kind::all_gather && i.move.stages.empty() &&
                           i.inputs == Slots{flat.stored} && i.outputs == Slots{flat.parameters} &&
                           i.move.atoms == bucket.shard_atoms;
      const bool starts = i.code == Code::start;
      is(starts ? Progress::stored : Progress::gathering,
         gathers && bucket.gathered_once_updated() && (starts || i.code == Code::wait),
         starts ? Progress::gathering : Progress::whole);
    } else {
      refuse("an outer step has no such instruction");
    }
  }

  [[noreturn]] void refuse(std::string message) const {
    Refusal made;
    made.code = "prove.outer-step";
    made.stage = program_.stage;
    made.where =
        fmt::format("stage {}, outer step of fragment {}", program_.stage, event_.fragment);
    made.message = std::move(message);
    if (where_.run >= 0) {
      const int segment = program_.timeline[where_.run].segment;
      made.listed = proving::listed(program_, program_.segments[segment].code[where_.instruction]);
    }
    throw Refused{std::move(made)};
  }

  const Program& program_;
  const OuterEvent event_;
  Where where_;
  std::vector<Progress> at_;  // the progress of each bucket
};

}  // namespace
}  // namespace mw::proving

namespace mw {

void prove_outer_steps(const std::vector<Program>& stages, const OuterEvent& event, Proof& proof) {
  try {
    for (const Program& program : stages) proving::OuterProof(program, event).run();
  } catch (proving::Refused& refused) {
    proof.refusals.push_back(std::move(refused.refusal));
  }
}

}  // namespace mw
