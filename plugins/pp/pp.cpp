// Pipeline parallelism: layers -> pp, and a schedule. Transfers between stages, and the sum of tied
// embeddings' gradients, follow from where the layers lie.
#include <fmt/format.h>

#include <fstream>
#include <numeric>
#include <sstream>

#include "meshwright/choice.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/json.h"
#include "meshwright/plugin.h"
#include "meshwright/run_file.h"
#include "meshwright/schedule.h"
#include "meshwright/stage_balance.h"
#include "meshwright/strategy.h"
#include "schedulers.h"
#include "weaves.h"

namespace {

using mw::Error;
using mw::Json;

// The names of this plugin's own schedulers.
std::string scheduler_names() {
  std::string names;
  for (const mw::Registration& one : pp::schedulers)
    names += std::string(names.empty() ? "" : ", ") + one.name;
  return names;
}

// Reads a file of compute actions, a CSV in PyTorch's form.
std::string read_file(const std::string& path, const std::string& names) {
  mw::check_regular(path, "schedule");
  std::ifstream file(path);
  if (!file) {
    throw Error(mw::Stage::options, "file.missing", "schedule",
                fmt::format("there is no file {}", path),
                "name a CSV of compute actions, or one of " + names);
  }
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Limits of a time; within them, sums of times stay exact enough.
constexpr double least_time = 1e-12, most_time = 1e12;

// Reads the option `times`: one { F, I, W }, or one for each virtual stage.
std::vector<mw::WorkTimes> read_times(const Json& given) {
  const auto one = [](const Json& t) -> mw::WorkTimes {
    const bool good =
        t.is_array() && t.size() == 3 && std::all_of(t.begin(), t.end(), [](const Json& x) {
          return x.is_number() && x.get<double>() >= least_time && x.get<double>() <= most_time;
        });
    if (!good) {
      throw Error(mw::Stage::options, "option.value", "times",
                  fmt::format("got {}", mw::lua_text(t)),
                  "give { F, I, W }, three numbers of 1e-12 to 1e12 (seconds, or any unit), or a "
                  "list of such triples, one for each virtual stage");
    }
    return {t[0].get<double>(), t[1].get<double>(), t[2].get<double>(), 0};
  };
  if (given.is_array() && !given.empty() && given[0].is_array()) {
    std::vector<mw::WorkTimes> times;
    for (const Json& t : given) times.push_back(one(t));
    return times;
  }
  return {one(given)};
}

std::vector<int> read_layout(const Json& given) {
  if (!given.is_array() || given.empty()) {
    throw Error(mw::Stage::options, "option.value", "layout",
                fmt::format("got {}", mw::lua_text(given)),
                "\"auto\", \"even\", or a list of the layers of each stage: layout = { 3, 5 }");
  }
  std::vector<int> layout;
  for (const Json& n : given) {
    const auto layers = mw::whole_number(n);
    if (!layers || *layers < 0 || *layers > (1 << 20)) {
      throw Error(mw::Stage::options, "option.value", "layout",
                  fmt::format("{} is no number of layers", mw::lua_text(n)),
                  "list the layers of each stage: layout = { 3, 5 }");
    }
    layout.push_back(static_cast<int>(*layers));
  }
  return layout;
}

class PipelineParallel : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "stages that the layers are split into")
        .range(1, 1 << 16)
        .positional("ways")
        .any(
            "schedule",
            fmt::format("{}, or a scheduler of another plugin; a CSV file of compute actions (2F0, "
                        "1I3, ...); or a function that returns a list of actions for each stage",
                        scheduler_names()))
        .fallback("1f1b")
        .names(mw::Kind::scheduler)
        .integer(
            "chunks",
            "virtual stages of each stage; by default what the schedule needs, else 1; interleaved "
            "and looped-bfs need this option")
        .range(1, 1024)
        .optional()
        .any("layout",
             "layers of each stage (of each virtual stage, in model order, if chunked): a list; "
             "\"auto\" balances the cost of stages, with the embedding and the head, by predicted "
             "times where a cluster is named, else by declared FLOPs and bytes; or \"even\"")
        .fallback("auto")
        .any("weave",
             "how the actions of a group (0F3+1B1) are interleaved: a weave's name, a "
             "table with its options; or mw.weave { … }")
        .fallback("switch")
        .names(mw::Kind::weave)
        .any("times",
             "times of F, I and W for one microbatch, one { F, I, W } for each virtual stage, or a "
             "run file with measured times; zero-bubble schedules place W by these times; by "
             "default predicted times")
        .optional()
        .bytes("memory", "limit of a rank's activations that the schedule must keep")
        .at_least(1)
        .optional()
        .unit("bytes");
  }

  explicit PipelineParallel(const mw::Values& values) : ways_(values.int32("ways")) {
    chunks_ = values.has("chunks") ? values.int32("chunks") : 0;
    if (values.has("memory")) memory_ = values.number("memory");
    balances_ = values.at("layout") == "auto";
    if (!balances_ && values.at("layout") != "even") layout_ = read_layout(values.at("layout"));
    choose_schedule(values);
    weave_ = pp::read_weave(values);
    if (!values.has("times")) return;
    const Json& times = values.at("times");
    if (written_) {
      throw Error(mw::Stage::options, "option.needs", "times",
                  fmt::format("pp({}): the schedule {} is written down, and times change nothing "
                              "in it",
                              ways_, mw::lua_text(values.at("schedule"))),
                  "leave times out, or name a scheduler that places W by them, as zbv does");
    }
    times_ = times.is_string()
                 ? mw::measured_times(values.find_file(times.get<std::string>()), placement())
                 : read_times(times);
  }

  std::vector<mw::AxisRequest> axes() const override { return {{"pp", ways_, mw::Role::layers}}; }

  void edit(mw::Draft& draft) const override {
    const int parts = ways_ * chunks_;
    mw::Pipeline pipeline;
    pipeline.axis = "pp";
    pipeline.layers = layers(draft, parts);
    pipeline.balances = balances_;
    pipeline.stage_of = stage_of_;
    pipeline.schedule = schedule_;
    pipeline.times = times_;
    pipeline.memory_limit = memory_;
    pipeline.adapts = adapts_;
    pipeline.splits = splits_;
    pipeline.weave = weave_;
    if (times_.size() > 1 && static_cast<int>(times_.size()) != parts) {
      draft.refuse(
          "pipeline.times", "times",
          fmt::format("pp.times has {} entries for {} virtual stages", times_.size(), parts),
          "give one triple, or one for each virtual stage");
      return;
    }
    if (!idle_times_of_.empty())
      draft.note(fmt::format("pp({}): the schedule {} does not use times with that many stages",
                             ways_, idle_times_of_));
    if (!idle_weave_of_.empty())
      draft.note(
          fmt::format("pp({}): the schedule {} joins no works, so weave changes nothing; "
                      "schedule = {{ kind = \"1f1b\", pair = true }} and dualpipev do",
                      ways_, idle_weave_of_));
    if (!plain_.empty()) draft.note(fmt::format("pp({}): {}", ways_, plain_));
    if (!pipeline.layers.empty()) draft.pipeline(std::move(pipeline));
  }

  std::vector<mw::Lighter> lighter() const override {
    std::vector<mw::Lighter> variants;
    if (!balances_) variants.push_back({"balanced stages", {{"layout", "auto"}}, false});
    for (const int times : {2, 4})
      variants.push_back({"more stages", {{"ways", times * ways_}}, true});
    return variants;
  }

 private:
  void choose_schedule(const mw::Values& values) {
    const Json& given = values.at("schedule");
    if (values.is_function("schedule")) return take_function(values, "schedule", "of the script");
    if (given.is_object() &&
        given.value("kind", "") == "schedule") {  // mw.schedule(name, function)
      const mw::Values own = values.table("schedule");
      return take_function(own, "order", own.has("name") ? own.text("name") : "of the script");
    }
    const auto choice = mw::named_choice(given);
    if (!choice) {
      throw Error(mw::Stage::options, "option.value", "schedule",
                  fmt::format("got {}", mw::lua_text(given)),
                  "a name, a CSV file, or a function; names: " +
                      mw::names_of(values.catalog(), mw::Kind::scheduler));
    }
    const std::string& name = choice->name;
    if (choice->options.empty() && name.ends_with(".csv")) {
      take_file(values.find_file(name), name, mw::names_of(values.catalog(), mw::Kind::scheduler));
      return;
    }
    const mw::Registration& found = values.catalog().find(mw::Kind::scheduler, name, "schedule");
    const std::shared_ptr<const mw::Scheduler> scheduler = mw::make<mw::Scheduler>(
        found, pp::read_options(found, values, "schedule", choice->options));
    const int fixed = scheduler->fixed_chunks();
    if (fixed > 0 && chunks_ > 0 && chunks_ != fixed) {
      throw Error(
          mw::Stage::plan, "schedule.chunks", "chunks",
          fmt::format("schedule {} takes chunks = {}, not {}", name, fixed, chunks_),
          fmt::format("write chunks = {}, or leave it out; interleaved and looped-bfs take any "
                      "number",
                      fixed));
    }
    if (const std::string plain = scheduler->of_one_chunk(); !plain.empty()) {
      if (chunks_ == 0) {
        throw Error(
            mw::Stage::plan, "schedule.chunks", "chunks",
            fmt::format("pp({}): schedule {} without chunks would be {}", ways_, name, plain),
            fmt::format("nearest: chunks = 2, or more, up to the layers of a stage; or "
                        "schedule = \"{}\"",
                        plain));
      }
      if (chunks_ == 1) plain_ = fmt::format("schedule {} of one chunk is {}", name, plain);
    }
    if (chunks_ == 0) chunks_ = fixed > 0 ? fixed : 1;
    stage_of_ = scheduler->placement(ways_, chunks_);
    adapts_ = true;
    splits_ = may_split(*scheduler);
    if (values.at("weave") != "switch" &&
        !may(*scheduler, [](const mw::Schedule& schedule) { return schedule.grouped(); }))
      idle_weave_of_ = name;
    if (values.has("times") && !heeds_times(*scheduler)) idle_times_of_ = name;
    schedule_ = [scheduler](const mw::ScheduleRequest& request) {
      return scheduler->make(request);
    };
  }

  // Whether the scheduler's orders may split B into I and W. The number of microbatches is not
  // known yet, and the scheduler may refuse some; where it makes none of these orders, true.
  bool may_split(const mw::Scheduler& scheduler) const {
    return may(scheduler, [](const mw::Schedule& schedule) { return schedule.splits(); });
  }

  template <class Does>
  bool may(const mw::Scheduler& scheduler, const Does& does) const {
    bool made = false;
    for (const int microbatches : {ways_, 2 * ways_, 4 * ways_, 1}) {
      mw::ScheduleRequest some;
      some.stages = ways_;
      some.chunks = chunks_;
      some.microbatches = microbatches;
      try {
        if (does(scheduler.make(some))) return true;
        made = true;
      } catch (const Error&) {
      }
    }
    return !made;
  }

  // Whether the scheduler's order depends on times, as far as a few orders tell.
  bool heeds_times(const mw::Scheduler& scheduler) const {
    static const mw::WorkTimes some[] = {{1, 1, 1, 0}, {1, 4, 0.25, 0}, {3, 1, 2, 0}};
    for (const int microbatches : {ways_, 2 * ways_, 4 * ways_}) {
      std::vector<std::vector<std::vector<mw::Action>>> orders;
      for (const mw::WorkTimes& times : some) {
        mw::ScheduleRequest request;
        request.stages = ways_;
        request.chunks = chunks_;
        request.microbatches = microbatches;
        request.times = {times};
        try {
          orders.push_back(scheduler.make(request).order);
        } catch (const Error&) {  // it refuses this number of microbatches
        }
      }
      if (std::any_of(orders.begin(), orders.end(),
                      [&](const auto& order) { return order != orders.front(); }))
        return true;
    }
    return false;
  }

  void take_function(const mw::Values& values, const std::string& key, const std::string& name) {
    schedule_ = [call = values.function(key), name](const mw::ScheduleRequest& request) {
      return pp::schedule_from_script(call({pp::describe_request(request)}), request, name);
    };
    if (chunks_ == 0) chunks_ = 1;
  }

  void take_file(const std::string& path, const std::string& name, const std::string& names) {
    mw::Schedule schedule = mw::schedule_from_csv(read_file(path, names), name);
    if (schedule.stages() != ways_) {
      throw Error(mw::Stage::plan, "schedule.stages", "schedule",
                  fmt::format("schedule {} has {} rows for pp({})", name, schedule.stages(), ways_),
                  fmt::format("a row is a stage: write pp {{ ways = {} }}", schedule.stages()));
    }
    const int chunks = schedule.vstages() / ways_;
    if (chunks_ > 0 && chunks_ != chunks) {
      throw Error(mw::Stage::plan, "schedule.chunks", "chunks",
                  fmt::format("schedule {} has {} chunks, not {}", name, chunks, chunks_),
                  "leave chunks out");
    }
    for (int s = 0; s < ways_; ++s) {
      const auto own = static_cast<int>(schedule.chunks(s).size());
      if (own == chunks) continue;
      throw Error(mw::Stage::plan, "schedule.stages", "schedule",
                  fmt::format("schedule {} has {} virtual stages, {} of them on stage {}", name,
                              schedule.vstages(), own, s),
                  fmt::format("give each of the {} stages as many", ways_));
    }
    chunks_ = chunks;
    written_ = true;
    stage_of_ = schedule.stage_of;
    splits_ = schedule.splits();
    schedule_ = [schedule = std::move(schedule)](const mw::ScheduleRequest& request) {
      if (schedule.microbatches != request.microbatches) {
        throw Error(mw::Stage::plan, "schedule.microbatches", "schedule",
                    fmt::format("schedule {} is made for {} microbatches, the plan has {}",
                                schedule.name, schedule.microbatches, request.microbatches),
                    "choose batch and microbatch so that they agree");
      }
      return schedule;
    };
  }

  std::vector<int> placement() const {
    return stage_of_.empty() ? mw::round_robin_placement(ways_, chunks_) : stage_of_;
  }

  // The layers of each virtual stage: as the user lists them, by the cost of layers and ends, or as
  // even as can be.
  std::vector<int> layers(mw::Draft& draft, int parts) const {
    const int layers = draft.graph().layers;
    if (layout_.empty()) {
      if (layers + std::min(parts, 2) < parts) {
        draft.refuse(
            "pipeline.layers", "ways",
            fmt::format("pp({}){} makes {} virtual stages of {} layers", ways_,
                        chunks_ > 1 ? fmt::format(" with {} chunks", chunks_) : "", parts, layers),
            layers + 2 >= chunks_
                ? fmt::format("nearest: pp({})", (layers + 2) / chunks_)
                : fmt::format("a stage has {} chunks, the model {} layers", chunks_, layers));
        return {};
      }
      if (!balances_) return mw::even_layers(layers, parts);
      return mw::balance_layers(mw::declared_costs(draft.graph()), placement());
    }
    const std::string hint = fmt::format("list {} numbers that add up to {}", parts, layers);
    const auto sum = std::accumulate(layout_.begin(), layout_.end(), std::int64_t{0});
    if (static_cast<int>(layout_.size()) != parts) {
      draft.refuse("pipeline.layers", "layout",
                   fmt::format("pp.layout = {{ {} }} lists {} parts; pp({}){} has {} {}stages",
                               fmt::join(layout_, ", "), layout_.size(), ways_,
                               chunks_ > 1 ? fmt::format(" with {} chunks", chunks_) : "", parts,
                               chunks_ > 1 ? "virtual " : ""),
                   hint);
      return {};
    }
    if (sum != layers) {
      draft.refuse("pipeline.layers", "layout",
                   fmt::format("pp.layout = {{ {} }} adds up to {} layers; the model has {}",
                               fmt::join(layout_, ", "), sum, layers),
                   hint);
      return {};
    }
    return layout_;
  }

  int ways_, chunks_ = 0;
  std::vector<int> layout_, stage_of_;
  std::vector<mw::WorkTimes> times_;
  double memory_ = 0;
  bool balances_ = false;      // layout = "auto": layers are balanced by their cost
  bool adapts_ = false;        // the schedule heeds a memory limit (Pipeline::adapts)
  bool written_ = false;       // the schedule is read from a file
  std::string plain_;          // note: what a schedule for several chunks is with one chunk
  std::string idle_times_of_;  // the scheduler that ignores the times given; or empty
  std::string idle_weave_of_;  // the scheduler that joins no works for the weave given; or empty
  // B may split into I and W; true for a function, which nobody knows
  bool splits_ = true;
  std::function<mw::Schedule(const mw::ScheduleRequest&)> schedule_;
  std::shared_ptr<const mw::Weave> weave_;
};

}  // namespace

MESHWRIGHT_PLUGIN("pp", "1.0.0", "pipeline parallelism: layers -> pp, with a schedule",
                  mw::strategy<PipelineParallel>(), pp::schedulers, pp::weaves)
