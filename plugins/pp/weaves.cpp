// The weave switch, the weave of a script's function, and what weaves share.
#include "weaves.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "make.h"
#include "meshwright/choice.h"
#include "meshwright/engine/text.h"

namespace pp {

using mw::Code;
using mw::Error;
using mw::Instruction;
using mw::Json;

mw::Options& add_axes(mw::Options& options) {
  return options.list("axes", "names of axes: only waits for their transfers count; left out: all")
      .optional();
}

std::vector<std::string> read_axes(const mw::Values& values) {
  std::vector<std::string> axes;
  if (!values.has("axes")) return axes;
  for (const Json& axis : values.at("axes")) {
    if (!axis.is_string())
      throw Error(mw::Stage::options, "option.value", "axes",
                  fmt::format("got {}", mw::describe(axis)),
                  "list names of axes: axes = { \"ep\" }");
    axes.push_back(axis.get<std::string>());
  }
  return axes;
}

void check_axes(const mw::Program& program, const std::vector<std::string>& axes) {
  std::vector<std::string> known;
  for (const mw::Axis& axis : program.mesh.axes()) known.push_back(axis.name);
  for (const std::string& axis : axes) {
    if (program.mesh.has(axis)) continue;
    throw Error(mw::Stage::plan, "weave.axis", "weave.axes",
                fmt::format("the plan has no axis {}", mw::lua_text(axis)),
                fmt::format("its axes are {}", fmt::join(known, ", ")));
  }
}

std::string axis_of(const mw::Program& program, const Instruction& start) {
  return program.name_of({start.move.atoms, start.move.stages, start.move.exchanges_rows()});
}

bool counts(const mw::Program& program, const Instruction& start,
            const std::vector<std::string>& axes) {
  return axes.empty() || std::find(axes.begin(), axes.end(), axis_of(program, start)) != axes.end();
}

mw::Options Switch::options() {
  mw::Options options;
  return add_axes(options);
}

Switch::Switch(const mw::Values& values) : axes_(read_axes(values)) {}

namespace {

// The state of one lane while the braid is made.
struct SwitchLane {
  const std::vector<Instruction>* code = nullptr;
  std::vector<bool> waits;  // of each instruction: whether it waits for a transfer that counts
  std::size_t next = 0, waits_left = 0;
  std::map<int, std::size_t> begun;  // by pending: length of the braid when it began
  bool done() const { return next == code->size(); }
};

// Makes a lane, and marks its waits for transfers that begin in the lane itself.
SwitchLane lane_of(const mw::Program& program, const mw::Segment& segment,
                   const std::vector<std::string>& axes) {
  SwitchLane lane;
  lane.code = &segment.code;
  std::set<int> begins;
  for (const Instruction& i : segment.code) {
    const bool starts = i.begins_transfer();
    const bool awaits = i.awaits_transfer();
    if (starts && counts(program, i, axes)) begins.insert(i.pending);
    lane.waits.push_back(awaits && begins.count(i.pending) > 0);
    lane.waits_left += lane.waits.back() ? 1 : 0;
  }
  return lane;
}

class Switching {
 public:
  explicit Switching(std::vector<SwitchLane> lanes)
      : lanes_(std::move(lanes)), last_(lanes_.size()) {}

  std::vector<int> run() {
    // idle: turns in a row that added nothing, as the lane would only have waited.
    std::size_t all = 0, idle = 0;
    for (const SwitchLane& lane : lanes_) all += lane.code->size();
    for (std::size_t now = next_of(lanes_.size() - 1); order_.size() < all; now = next_of(now)) {
      const std::size_t before = order_.size();
      if (lanes_[now].waits_left > 0) {
        until_wait(now);
      } else {
        part(now);
      }
      idle = order_.size() > before ? 0 : idle + 1;
      if (idle < lanes_.size()) continue;
      take(first_to_wait());  // no lane can compute beside the transfers under way
      idle = 0;
    }
    return std::move(order_);
  }

 private:
  // Whether the lane may wait: another lane has computed since the transfer that it waits for
  // began, or all other lanes are done.
  bool may_wait(std::size_t now) const {
    const SwitchLane& lane = lanes_[now];
    const std::size_t began = lane.begun.at((*lane.code)[lane.next].pending);
    bool others = false;
    for (std::size_t other = 0; other < lanes_.size(); ++other) {
      if (other == now) continue;
      if (last_[other] > began) return true;
      others = others || !lanes_[other].done();
    }
    return !others;
  }

  // The lane that stands at the wait whose transfer began first.
  std::size_t first_to_wait() const {
    std::size_t first = lanes_.size(), began = 0;
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      if (lanes_[k].done()) continue;
      const std::size_t own = lanes_[k].begun.at((*lanes_[k].code)[lanes_[k].next].pending);
      if (first < lanes_.size() && own >= began) continue;
      first = k;
      began = own;
    }
    return first;
  }

  void until_wait(std::size_t now) {
    SwitchLane& lane = lanes_[now];
    while (!lane.done()) {
      if (lane.waits[lane.next] && !may_wait(now)) return;
      take(now);
    }
  }

  void part(std::size_t now) {
    SwitchLane& lane = lanes_[now];
    std::size_t waits = 0;
    for (const SwitchLane& other : lanes_) waits += other.waits_left;
    const std::size_t left = lane.code->size() - lane.next;
    for (std::size_t count = (left + waits) / (waits + 1); count > 0; --count) take(now);
  }

  void take(std::size_t now) {
    SwitchLane& lane = lanes_[now];
    const Instruction& i = (*lane.code)[lane.next];
    lane.waits_left -= lane.waits[lane.next] ? 1 : 0;
    ++lane.next;
    order_.push_back(static_cast<int>(now));
    if (i.code == Code::compute) last_[now] = order_.size();
    if (i.begins_transfer()) lane.begun[i.pending] = order_.size();
  }

  std::size_t next_of(std::size_t now) const {
    for (std::size_t k = 1; k <= lanes_.size(); ++k) {
      const std::size_t other = (now + k) % lanes_.size();
      if (!lanes_[other].done()) return other;
    }
    return now;
  }

  std::vector<SwitchLane> lanes_;
  std::vector<std::size_t> last_;  // by lane: length of the braid after it computed last
  std::vector<int> order_;
};

}  // namespace

std::vector<int> Switch::order(const mw::WeaveRequest& request) const {
  check_axes(request.program, axes_);
  std::vector<SwitchLane> lanes;
  for (const mw::Segment* segment : request.lanes)
    lanes.push_back(lane_of(request.program, *segment, axes_));
  return Switching(std::move(lanes)).run();
}

std::vector<int> ScriptWeave::order(const mw::WeaveRequest& request) const {
  const mw::InstructionFacts facts(request.program);
  Json lanes = Json::array();
  for (const mw::Segment* segment : request.lanes) {
    Json code = Json::array();
    for (const Instruction& i : segment->code) {
      Json& said = code.emplace_back(facts.of(*segment, i));
      if (request.seconds) said["seconds"] = request.seconds(i);
    }
    lanes.push_back({{"name", segment->name},
                     {"kind", mw::name_of(segment->kind)},
                     {"vstage", segment->vstage},
                     {"code", std::move(code)}});
  }
  const Json said = call_({{{"lanes", std::move(lanes)},
                            {"axes", request.program.mesh.names_of_axes()},
                            {"stage", request.program.stage},
                            {"layers", request.program.graph->layers}}});
  std::vector<int> order;
  for (const Json& lane : said) {
    // anything but a lane's number becomes -1, which is refused
    const auto number = mw::whole_number(lane);
    order.push_back(number && *number >= 1 && *number <= 1 << 20 ? static_cast<int>(*number) - 1
                                                                 : -1);
  }
  return order;
}

std::shared_ptr<const mw::Weave> read_weave(const mw::Values& values) {
  const Json& given = values.at("weave");
  if (given.is_object() && given.value("kind", "") == "weave") {
    const mw::Values own = values.table("weave");
    return std::make_shared<ScriptWeave>(own.has("name") ? own.text("name") : "of the script",
                                         own.function("order"));
  }
  const auto choice = mw::named_choice(given);
  if (!choice) {
    throw Error(mw::Stage::options, "option.value", "weave",
                fmt::format("got {}", mw::describe(given)),
                "a name, or mw.weave { order = function(…) … end }; names: " +
                    mw::names_of(values.catalog(), mw::Kind::weave));
  }
  const mw::Registration& found = values.catalog().find(mw::Kind::weave, choice->name, "weave");
  const mw::Values own = read_options(found, values, "weave", choice->options);
  try {
    return mw::make<mw::Weave>(found, own);
  } catch (const Error& error) {
    std::vector<mw::Problem> said = error.problems();
    for (mw::Problem& problem : said) problem.key = "weave." + problem.key;
    throw Error(std::move(said));
  }
}

}  // namespace pp
