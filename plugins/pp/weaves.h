// The weaves of this plugin: switch, which needs no times; hide, which goes by predicted times; and
// that of a script's function.
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
// the next lane that has instructions left. A lane without further waits runs in parts, as many as
// the others have waits left. Needs no times, so that a plan is the same for every device.
class Switch final : public mw::Weave {
 public:
  static mw::Options options();
  explicit Switch(const mw::Values& values);
  explicit Switch(std::vector<std::string> axes) : axes_(std::move(axes)) {}
  std::vector<int> order(const mw::WeaveRequest& request) const override;

 private:
  std::vector<std::string> axes_;  // axes whose transfers count; empty: all
};

// Goes by predicted seconds, for plans that name a device: where a lane would wait for a transfer
// that is still under way, the next lane that is ready runs. Tries several rules for the choice
// among ready lanes, and the order of switch, and takes the order that is over first.
class Hide final : public mw::Weave {
 public:
  static mw::Options options();
  explicit Hide(const mw::Values& values);
  std::vector<int> order(const mw::WeaveRequest& request) const override;

 private:
  std::vector<std::string> axes_;  // axes whose transfers count; empty: all
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

// The option `axes` of weaves that go by transfers. read_axes() reads it.
mw::Options& add_axes(mw::Options& options);
std::vector<std::string> read_axes(const mw::Values& values);
// Throws Error if the plan lacks one of the axes.
void check_axes(const mw::Program& program, const std::vector<std::string>& axes);
// The name of the axis that a transfer is over, as listings have it.
std::string axis_of(const mw::Program& program, const mw::Instruction& start);
// Whether a transfer counts: it is over one of the axes, or `axes` is empty.
bool counts(const mw::Program& program, const mw::Instruction& start,
            const std::vector<std::string>& axes);

// The weave that the option `weave` says: a name, a table with a kind and its options, or a
// script's function.
std::shared_ptr<const mw::Weave> read_weave(const mw::Values& values);

inline constexpr std::array<mw::Registration, 2> weaves = {
    mw::weave<Switch>("switch",
                      "a lane runs until it would wait for a transfer, then the next one"),
    mw::weave<Hide>("hide",
                    "by predicted seconds: at a wait that is not over, the lane that is ready; for "
                    "plans with a cluster")};

}  // namespace pp
