// The interface of weaves. The segments of actions that a schedule joins ("0F3+1B1") become the
// lanes of one braid. A weave says from which lane each next instruction of the braid comes.
//
// A weave can only merge. Each lane keeps its own order, so that its dataflow stays valid. If a
// lane must wait for another one, because both add to gradients whose reduction one of them begins,
// the planner runs that other lane first, as far as necessary. So a weave decides when instructions
// run, but cannot change results.
//
//   class Turns : public mw::Weave {                        // one instruction of each lane in turn
//     std::vector<int> order(const mw::WeaveRequest& request) const override;
//   };
//   MESHWRIGHT_PLUGIN("turns", "1.0.0", "takes turns", mw::weave<Turns>())
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/program.h"
#include "meshwright/registration.h"

namespace mw {

struct WeaveRequest {
  const Program& program;
  // The segments to interleave, in the order of their actions in the schedule. None of them needs
  // results of another one.
  std::vector<const Segment*> lanes;
  // Predicts the seconds of an instruction on the plan's device (PlanRequest::seconds); empty:
  // times are not known.
  std::function<double(const Instruction&)> seconds;
};

// Describes instructions of a program for scripts, whose conditions read these keys: code, piece,
// op, kind, layer, label, phase, move, axis, bucket, bytes (that the stage's first rank sends in a
// transfer), segment (kind_in_scripts), stream (name of a transfer's stream), reads and writes
// (names of slots). Keys that do not apply are left out. With "axis" comes "axes", all names and
// roles of axes with these ranks; with "bucket" comes "parameters", the names of its parameters.
// Keeps a reference to the program.
class InstructionFacts {
 public:
  explicit InstructionFacts(const Program& program);
  ~InstructionFacts();
  Json of(const Segment& segment, const Instruction& instruction) const;

 private:
  struct View;
  const std::unique_ptr<View> view_;
};

// The facts of the instruction that will begin a bucket's reduction, before that instruction
// exists.
Json facts_of(const Program& program, const Bucket& bucket);

// The kind of a segment as scripts name it: "forward", "backward", "dgrad", "wgrad", "gather",
// "reduce", …; "" for segments that scripts' passes cannot edit (those that send, receive or begin
// a step).
std::string kind_in_scripts(const Segment& segment);

class Weave : public Registered {
 public:
  // Returns the lane of each next instruction, as an index into `lanes`; each lane as often as it
  // has instructions. Called once for each braid of each stage, and again for each plan that is
  // made from the same strategies, so the result must depend only on the request and the weave's
  // options. Throws Error if it cannot order the lanes.
  virtual std::vector<int> order(const WeaveRequest& request) const = 0;
};

template <>
struct KindOf<Weave> {
  static constexpr Kind kind = Kind::weave;
  using Make = std::unique_ptr<Weave>(const Values& values);
};
template <class Class>
constexpr Registration weave(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Weave, Class>(name, doc);
}

}  // namespace mw
