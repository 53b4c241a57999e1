// The weaves of this plugin: the default, which needs no times, and that of a script's function.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/weave.h"

namespace pp {

// Runs a lane until it would wait for a transfer beside which no other lane has computed yet; then
// the next lane that has anything left. A lane that waits for nothing more has no such places: it
// runs in as many parts as the others have waits left. It needs no times, so a plan is the same
// whatever device it is for.
class Switch final : public mw::Weave {
 public:
  static mw::Options options();
  explicit Switch(const mw::Values& values);
  explicit Switch(std::vector<std::string> axes) : axes_(std::move(axes)) {}
  std::vector<int> order(const mw::WeaveRequest& request) const override;

 private:
  std::vector<std::string> axes_;  // whose transfers count; empty: all
};

// By predicted seconds, for plans that name a device: at a wait for what is still on its way then,
// the next lane whose next instruction is ready. Of several rules for which of those that are ready
// is next, and of the order that needs no times, the one with which the braid is over first.
class Hide final : public mw::Weave {
 public:
  static mw::Options options();
  explicit Hide(const mw::Values& values);
  std::vector<int> order(const mw::WeaveRequest& request) const override;

 private:
  std::vector<std::string> axes_;  // whose transfers count; empty: all
};

// mw.weave { name, order = function(lanes…) … end }, as Lua wraps it: the function is given the
// lanes with their instructions, and returns the lane of each next instruction, from 1.
class ScriptWeave final : public mw::Weave {
 public:
  using Call = std::function<mw::Json(const std::vector<mw::Json>&)>;
  ScriptWeave(std::string name, Call call) : call_(std::move(call)) { set_name(std::move(name)); }
  std::vector<int> order(const mw::WeaveRequest& request) const override;

 private:
  Call call_;
};

// The option `axes` of weaves that go by transfers.
mw::Options& add_axes(mw::Options& options);
std::vector<std::string> read_axes(const mw::Values& values);
// Throws Error if the plan lacks one of the axes.
void check_axes(const mw::Program& program, const std::vector<std::string>& axes);
// The name of the axis that a transfer is over, as listings have it.
std::string axis_of(const mw::Program& program, const mw::Instruction& start);
// Whether a transfer is over one of the axes, or there is no list of them.
bool counts(const mw::Program& program, const mw::Instruction& start,
            const std::vector<std::string>& axes);

// The weave that `weave` of these values says: a name, a table with a kind and its options, or a
// script's function.
std::shared_ptr<const mw::Weave> read_weave(const mw::Values& values);

inline constexpr std::array<mw::Registration, 2> weaves = {
    mw::weave<Switch>("switch",
                      "a lane runs until it would wait for a transfer, then the next one"),
    mw::weave<Hide>("hide",
                    "by predicted seconds: at a wait that is not over, the lane that is ready; for "
                    "plans with a cluster")};

}  // namespace pp
