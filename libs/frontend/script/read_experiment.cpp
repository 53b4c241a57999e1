// Reads a script's table key by key into an experiment, and collects every problem on the way.
#include "script/read_experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <stdexcept>

#include "meshwright/engine/host.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "predict/memory_limit.h"
#include "predict/price.h"
#include "predict/stage_layout.h"
#include "script/guarded.h"
#include "script/identity.h"
#include "script/in_run.h"
#include "script/plan_memo.h"
#include "script/priced_for.h"
#include "script/read_activations.h"
#include "script/read_data.h"
#include "script/read_loss_scale.h"
#include "script/read_microbatch.h"
#include "script/read_observers.h"
#include "script/read_weights.h"
#include "script/strategy_choice.h"

namespace mw {
namespace {

// A plan with more entries is a script's mistake: each strategy stands in a plan once.
constexpr std::size_t most_strategies = 64;

// Appends a value to a memo's key, without its place in the script; false if a function is in it.
bool add_key(const Json& value, std::string& key) {
  if (is_function(value)) return false;
  if (!value.is_structured()) {
    key += json_text(value) + ' ';
    return true;
  }
  key += value.is_array() ? '[' : '{';
  for (const auto& [name, item] : value.items()) {
    if (name == place_key) continue;
    if (value.is_object()) key += Json(name).dump() + ':';
    if (!add_key(item, key)) return false;
  }
  key += value.is_array() ? ']' : '}';
  return true;
}

class Reader {
 public:
  Reader(const Json& table, const ReadContext& context)
      : table_(table),
        context_(context),
        reach_(std::make_shared<ScriptReach>(
            ScriptReach{context.call, context.roots, context.catalog})) {}

  Experiment run() {
    values_ = experiment_options().read(table_, "", problems_);
    values_.set_reach(reach_);
    read_model();
    read_plan();
    read_optimizer();
    read_schedule();
    DataReader data(table_, values_, context_.roots, reach_, problems_);
    const std::int64_t sequence = data.sequence();
    data.open(request_.model.get(), experiment_, experiment_);
    read_scalars();
    if (Json evaluation = data.evaluation(experiment_, experiment_.evaluation);
        !evaluation.is_null())
      chosen_["evaluate"] = std::move(evaluation);
    for (const auto& source : {experiment_.data, experiment_.held_out_data}) {
      request_.masked_labels = request_.masked_labels || (source && source->masks_labels());
      request_.documents = request_.documents || (source && source->has_documents());
    }
    if (experiment_.data && experiment_.data->has_documents())
      request_.priced_data = experiment_.data;
    make(sequence);
    check_outer_steps();
    if (experiment_.held_out_data && experiment_.plan) make_evaluation();
    for (std::string& note : data.notes(experiment_, experiment_.evaluation))
      experiment_.notes.push_back(std::move(note));
    read_weights(values_, experiment_, experiment_.notes, problems_);
    read_priced_for(values_, experiment_.plan.get(), experiment_, problems_);
    problems_.throw_if_any();
    if (!experiment_.plan || !experiment_.data || !experiment_.optimizer)
      throw std::logic_error("an experiment without a plan, data or an optimizer, and no reason");
    experiment_.table = without_hidden(table_);
    identify();
    experiment_.exporter = read_export(values_, *experiment_.plan, experiment_.hash);
    experiment_.strategies.make = [catalog = context_.catalog, reach = reach_](const Json& entry) {
      Problems found;
      const auto made = make_choice(entry, "plan", *catalog, reach, found, /*anywhere=*/true);
      found.throw_if_any();
      return *made;
    };
    experiment_.strategies.names = [catalog = context_.catalog] {
      std::vector<std::string> names;
      for (const Registration* one : catalog->all(Kind::strategy)) names.emplace_back(one->name);
      return names;
    };
    check_groups();
    if (!context_.unchecked) check_plans();
    return std::move(experiment_);
  }

 private:
  // Sets the run's name, hashes and resolved table; then its log, whose path may contain these.
  void identify() {
    const Json given = has("name") ? values_.at("name") : Json();
    experiment_.name = given.is_string() ? given.get<std::string>() : experiment_.plan->mix();
    for (const Option& option : experiment_options().list())
      if (has(option.name.c_str()) && !option.beside_run)
        resolved_[option.name] = resolved_value(values_.at(option.name));
    const Json deciding = make_observers(
        observers_, context_,
        {experiment_.name, experiment_.steps, experiment_.plan->ranks(), experiment_.data->files()},
        experiment_.timeout, experiment_.observers, problems_);
    for (const auto& [place, said] : deciding.items())
      (place == "observe" ? resolved_["observe"]["hash"] : resolved_["observe"]["more"][place]) =
          said;
    resolved_["name"] = experiment_.name;
    resolved_["sequence"] = request_.sequence;
    resolved_["data"] = experiment_.data_settings;
    resolved_["model"] = resolved_value(request_.model_options.json());
    resolved_["model"]["kind"] = request_.model->name();
    resolved_["plan"] = Json::array();
    for (const StrategyChoice& choice : request_.strategies) {
      resolved_["plan"].push_back(resolved_value(choice.options));
      resolved_["plan"].back()["plugin"] = choice.name;
    }
    for (const auto& [key, value] : chosen_.items()) resolved_[key] = value;
    experiment_.resolved = std::move(resolved_);
    ExperimentHashes hashes = hashes_of(experiment_.resolved, experiment_);
    experiment_.hash = std::move(hashes.whole);
    experiment_.hash_without_seed = std::move(hashes.without_seed);
    std::string& path = experiment_.checkpoint.path;
    path = filled_in("checkpoint.path", path);
    if (has("checkpoint")) experiment_.resolved["checkpoint"]["path"] = path;
    if (has("log")) experiment_.log = filled_in("log", values_.text("log"));
    if (has("tensorboard")) {
      experiment_.tensorboard = filled_in("tensorboard", values_.text("tensorboard"));
      experiment_.resolved["tensorboard"] = experiment_.tensorboard;
    }
    problems_.throw_if_any();
    if (!has("log")) return;
    experiment_.resolved["log"] = experiment_.log;
    if (experiment_.log.ends_with('/')) {
      experiment_.folder = experiment_.log;
      experiment_.log += "run.h5";
    }
  }

  std::string filled_in(const char* key, const std::string& path) {
    return fill_in_path(key, path, experiment_, experiment_.seed, problems_);
  }

  bool has(const char* key) const { return values_.has(key) && !values_.at(key).is_null(); }

  void read_model() {
    if (!has("model")) return;
    const auto chosen = choose(Kind::model, values_.at("model"), "model", reach_, "", problems_);
    if (!chosen) return;
    const auto make = [&] { return make_chosen<Model>(*chosen, problems_); };
    const Json made_of = {chosen->registration->name, chosen->values.json()};
    if (context_.memo != nullptr && add_key(made_of, model_key_)) {
      request_.model = context_.memo->model(model_key_, make);
    } else {
      model_key_.clear();
      request_.model = make();
    }
    request_.model_options = chosen->values;
  }

  void read_plan() {
    if (!has("plan")) return;
    const Json& list = values_.at("plan");
    if (list.is_object() && list.empty()) return;  // Lua's {} may be a list or a table
    if (list.is_array() && list.size() > most_strategies) {
      problems_.add(Stage::plan, "plan.entries", "plan",
                    fmt::format("plan: it has {} entries; a plan has {} at most", list.size(),
                                most_strategies),
                    "name each strategy once; its ways are a number");
      plan_broken_ = true;
      return;
    }
    refuse_namesakes(list, problems_);
    std::int64_t position = 0;
    for (const Json& entry : list.is_array() ? list : Json::array({list})) {
      read_strategy(entry, fmt::format("plan[{}]", ++position));
    }
  }

  void read_strategy(const Json& entry, const std::string& path) {
    if (!entry.is_object() || !entry.contains("plugin") || !entry["plugin"].is_string()) {
      problems_.add(Stage::options, "option.value", path,
                    fmt::format("{}: got {}", path, describe(entry)),
                    "each entry is a strategy, from mw.plugins(\"name\") or mw.strategy { … }, "
                    "called with its options");
      return;
    }
    try {
      Problems found;
      if (auto made = make_choice(entry, path, *context_.catalog, reach_, found)) {
        request_.strategies.push_back(std::move(*made));
      } else {
        plan_broken_ = true;
      }
      problems_.add(found);
    } catch (const Error& error) {
      for (Problem p : error.problems()) {
        p.key = key_in(path, p.key);
        problems_.add(std::move(p));
      }
      plan_broken_ = true;
    }
  }

  // Puts a key into what the plan's hash is made of (PlanRequest::step_settings).
  void decides(const char* key, const Json& given) {
    request_.step_settings[key] =
        is_function(given) ? Json(given.value(code_key, "")) : without_hidden(given);
  }
  // `usual`: the value that an option has where it is left out.
  void decides(const char* key, const Chosen& chosen, const Json& usual = Json::object()) {
    Json settings = chosen.values.json();
    for (const auto& [option, value] : usual.items())
      if (settings.value(option, Json()) == value) settings.erase(option);
    settings["kind"] = chosen.registration->name;
    chosen_[key] = resolved_value(settings);
    decides(key, settings);
  }

  void read_optimizer() {
    if (!has("optimizer")) return;
    const auto chosen =
        choose(Kind::optimizer, values_.at("optimizer"), "optimizer", reach_, "", problems_);
    if (!chosen) return;
    try {
      experiment_.optimizer = guarded(make_chosen<Optimizer>(*chosen, problems_), chosen->speaker);
    } catch (const Error& error) {
      problems_.add(error);
    }
    decides("optimizer", *chosen);
  }

  void read_schedule() {
    if (!experiment_.optimizer) return;
    const LrContext context{experiment_.optimizer->lr(),
                            values_.has("steps") ? values_.integer("steps") : 1};
    const Json given = has("schedule") ? values_.at("schedule") : Json{{"kind", "constant"}};
    if (is_function(given)) {
      decides("schedule", given);
      experiment_.schedule =
          checked_lr_schedule([call = call_in_run(context_, given)](std::int64_t step) {
            return rate_of(call({Json(step)}), step);
          });
      try_out([this] { experiment_.schedule(0); });
      return;
    }
    const auto chosen = choose(Kind::lr_schedule, given, "schedule", reach_, "", problems_);
    if (!chosen) return;
    if (auto made = make_chosen<LearningRate>(*chosen, problems_, context))
      experiment_.schedule = rates_in_run(std::move(made), chosen->speaker);
    decides("schedule", *chosen, {{"total", context.steps}});
    const auto warmup = whole_number(given.is_object() ? given.value("warmup", Json()) : Json());
    if (warmup && *warmup >= context.steps && *warmup > 1)
      experiment_.notes.push_back(
          fmt::format("schedule: the run ends in its warm-up, after {} of {}", context.steps,
                      plural(*warmup, "step")));
  }

  void read_scalars() {
    // Where `steps` is missing, keys that depend on it are read all the same, for their own
    // problems.
    experiment_.steps = values_.has("steps") ? values_.integer("steps") : 1;
    experiment_.seed = values_.integer("seed");
    request_.threads = experiment_.threads = values_.int32("threads");
    if (experiment_.threads > thread_limit()) {
      problems_.add(Stage::options, "option.value", "threads",
                    fmt::format("threads: got {}; OMP_THREAD_LIMIT lets a rank have {}",
                                experiment_.threads, thread_limit()),
                    fmt::format("write threads = {}, or unset it", thread_limit()));
    }
    const auto platform =
        choose(Kind::device, {{"kind", values_.text("device")}}, "device", reach_, "", problems_);
    if (platform)
      if (auto made = make_chosen<Platform>(*platform, problems_)) experiment_.platform = made;
    if (has("memory")) experiment_.memory = values_.integer("memory");
    experiment_.timeout = values_.number("timeout");
    experiment_.stops_on_nan = values_.text("on_nan") == "stop";
    experiment_.force = values_.flag("force");
    read_check(values_.at("check"), experiment_, problems_);
    if (experiment_.check_every > 0)
      chosen_["check"] = {{"what", "replicas"}, {"every", experiment_.check_every}};
    if (values_.has("overwrite")) experiment_.overwrite = values_.flag("overwrite");
    for (const auto& [key, hint] :
         {std::pair{"name", "write what the run is called, or leave it out: the plan's mix"},
          std::pair{"log", "name the run file, or leave it out: no run file is written"},
          std::pair{"tensorboard", "name a folder, or leave it out: no events are written"},
          std::pair{"weights", "name a safetensors file or a folder of them, or leave it out"}}) {
      if (has(key) && values_.text(key).find_first_not_of(" \t\n") == std::string::npos)
        problems_.add(Stage::options, "option.value", key,
                      fmt::format("{}: got an empty text", key), hint);
    }
    const auto given = [&](const char* key) { return has(key) ? values_.at(key) : Json(); };
    experiment_.trace = read_trace(given("trace"), experiment_.steps, problems_);
    experiment_.account = values_.flag("account");
    // A `trace` whose entries are wrong has its own problem.
    if (experiment_.account && experiment_.trace.empty() && given("trace").empty()) {
      problems_.add(Stage::options, "option.value", "account",
                    "account: it is taken of the steps of `trace`, which names none",
                    "leave trace out for the third and the last step, or name others");
    }
    experiment_.checkpoint = read_checkpointing(given("checkpoint"), given("resume"), problems_);
    observers_ = read_observers(values_, reach_, problems_);
    const std::string precision = values_.text("precision");
    request_.precision = precision_of(precision);
    if (has("loss_scale") || request_.precision == Precision::fp16) read_loss_scaling();
    request_.may_leave_out = experiment_.loss_scale || experiment_.stops_on_nan;
    request_.fp32_sums = values_.text("reductions") == "fp32";
    request_.recompute = read_recompute(
        values_.at("recompute"), reach_,
        [this] { return memory_limit(values_, experiment_.memory); }, problems_);
    request_.offload = read_offload(values_.at("offload"), reach_, problems_);
    request_.fp32_gradients = values_.text("main_gradients") == "fp32";
    note_idle(precision);
  }

  // Adds notes on keys that change nothing beside the other keys.
  void note_idle(const std::string& precision) {
    if (has("loss_scale") && request_.precision != Precision::fp16)
      experiment_.notes.push_back(
          fmt::format("loss_scale: gradients in {} need none, so that it only decides which steps "
                      "are skipped; leave it out, or write precision = \"fp16\"",
                      precision));
    for (const char* key : {"reductions", "main_gradients"}) {
      if (values_.text(key) == "fp32" && (precision == "fp32" || precision == "fp64"))
        experiment_.notes.push_back(
            fmt::format("{}: \"fp32\" changes nothing beside precision = \"{}\"; leave it out, or "
                        "write precision = \"bf16\"",
                        key, precision));
    }
    const bool writes = has("log") || has("tensorboard") || has("checkpoint") || has("export");
    if (experiment_.overwrite && !writes)
      experiment_.notes.push_back(
          "overwrite: it changes nothing, as no log, events, checkpoints or weights are written");
  }

  void read_loss_scaling() {
    Json given = has("loss_scale") ? values_.at("loss_scale") : Json("dynamic");
    Call call;
    if (is_function(given)) call = call_in_run(context_, given);
    experiment_.loss_scale = read_loss_scale(given, std::move(call), problems_);
    decides("loss_scale", given);
    if (is_function(given)) try_out([this] { experiment_.loss_scale->first(); });
  }

  // Calls a script's function for the first step, to report its errors before any rank starts. The
  // result is kept, so that the run does not call it again.
  void try_out(const std::function<void()>& first_step) {
    try {
      first_step();
    } catch (const Stopped&) {
      throw;
    } catch (const Error& error) {
      for (Problem p : error.problems()) {
        p.stage = Stage::script;
        problems_.add(std::move(p));
      }
    }
  }

  void make(std::int64_t sequence) {
    if (request_.model == nullptr || sequence < 1 || plan_broken_ || !values_.has("batch")) {
      check_microbatch();
      return;
    }
    request_.batch = values_.integer("batch");
    request_.sequence = sequence;
    request_.optimizer = experiment_.optimizer;
    if (for_cluster()) make_for_cluster(values_, request_);
    Problems found;
    Json microbatch = has("microbatch") ? values_.at("microbatch") : Json();
    const MicrobatchPolicy policy =
        read_microbatch(microbatch, {request_.batch, sequence, experiment_.memory}, reach_, found);
    if (microbatch.is_object()) decides("microbatch", microbatch);
    experiment_.shapes_steps = policy.by_step;
    if (found.empty()) {
      const auto make_plans = [&]() -> std::shared_ptr<const Plan> {
        if (const std::shared_ptr<const Machine> cluster = cluster_of(values_)) {
          request_.seconds = seconds_on(cluster, request_.threads);
          return make_balanced_step_plans(request_, policy, experiment_.steps, *cluster,
                                          experiment_.memory, experiment_.step_plans, found);
        }
        if (!policy.shape && !policy.search &&
            request_.recompute.kind != RecomputePolicy::Kind::fit) {
          PlanRequest made = request_;
          made.microbatch = policy.size;
          return make_plan_within(made, experiment_.memory, found);
        }
        return make_step_plans(request_, policy, experiment_.steps, experiment_.step_plans, found);
      };
      const std::string key = policy.shape ? "" : plan_key();
      experiment_.plan = key.empty() ? make_plans() : context_.memo->plan(key, make_plans);
    }
    problems_.add(found);
    if (has("ranks") && experiment_.plan)
      check_ranks(values_.integer("ranks"), *experiment_.plan, problems_);
  }

  // Where no plan is made, the microbatch is read for its own problems. A batch that is not known
  // is taken as large enough for it.
  void check_microbatch() {
    if (!has("microbatch")) return;
    Json given = values_.at("microbatch");
    read_microbatch(given,
                    {values_.has("batch") ? values_.integer("batch") : INT32_MAX, INT32_MAX,
                     experiment_.memory},
                    reach_, problems_);
  }

  // Runs the process' checks of plans on each plan that a step has.
  void check_plans() const {
    Problems found;
    if (!experiment_.step_plans) check_plan(*experiment_.plan, found);
    if (experiment_.step_plans) {
      for (const std::shared_ptr<const Plan>& plan : experiment_.step_plans->plans)
        check_plan(*plan, found);
    }
    found.throw_if_any();
  }

  void make_evaluation() {
    const bool chooses = chosen_.contains("evaluate") && chosen_["evaluate"].contains("by");
    const bool average = chooses && chosen_["evaluate"]["by"] == "average";
    const EvaluatedBy by = !chooses  ? EvaluatedBy::parameters
                           : average ? EvaluatedBy::average
                                     : EvaluatedBy::anchor;
    experiment_.held_out_plan = forward_only(*experiment_.plan, by);
    if (experiment_.held_out_plan != nullptr) return;
    if (average) {
      problems_.add(Stage::options, "option.conflict", "evaluate.by",
                    "evaluate.by is \"average\", and the optimizer keeps no average",
                    "optimizer = mw.ema { mw.adamw { … }, decay = 0.999 }");
    } else {
      problems_.add(Stage::options, "option.conflict", "evaluate.by",
                    "evaluate.by is \"anchor\", and the plan has no replicas that differ",
                    "plan = { diloco { 4, every = 50 }, … }");
    }
  }

  // Refuses steps of which the last ones train replicas that no outer step brings together.
  void check_outer_steps() {
    if (!experiment_.plan || !values_.has("steps")) return;
    const auto& outer = experiment_.plan->programs.front().outer;
    const std::int64_t steps = experiment_.steps;
    if (outer == nullptr || steps % outer->every == 0) return;
    const std::int64_t before = steps / outer->every * outer->every;
    problems_.add(Stage::options, "replicas.steps", "steps",
                  fmt::format("steps: the {} do not end with an outer step, which brings replicas "
                              "together after every {}",
                              steps, outer->every),
                  before == 0 ? fmt::format("nearest: {}", outer->every)
                              : fmt::format("nearest: {} or {}", before, before + outer->every));
  }

  // Refuses batches that are not whole groups of the sequences over which a loss has means.
  void check_groups() const {
    Problems found;
    std::set<std::pair<std::int64_t, std::int64_t>> said;
    for (const Plan* plan : experiment_.plans()) {
      for (const Op& op : plan->graph->ops()) {
        std::int64_t group = 0;
        if (const auto masked = op.type->masked_form()) group = masked->divisor.sequences;
        for (const Use& use : op.inputs) {
          if (const auto divisor = LossDivisor::of(plan->graph->value(use.value).name))
            group = divisor->sequences;
        }
        const std::int64_t batch = plan->request.batch;
        if (group == 0 || batch % group == 0 || !said.insert({batch, group}).second) continue;
        found.add(Stage::plan, "batch.groups", "batch",
                  fmt::format("batch: the {} sequences of a step are no groups of {}, of which {} "
                              "takes means",
                              batch, group, op.name),
                  batch < group ? fmt::format("nearest: {}", group)
                                : fmt::format("nearest: {} or {}", batch / group * group,
                                              (batch / group + 1) * group));
      }
    }
    found.throw_if_any();
  }

  // Whether memory is counted as on the cluster that is named: nothing is run here, or it is run on
  // GPUs, whose kernels' scratch is the cluster's and not that of this machine's CPU.
  bool for_cluster() const {
    return context_.for_cluster || experiment_.platform->type() != at::kCPU;
  }

  // A memo's key for the plan: all keys that the plan may depend on, with their values. Empty:
  // plans are not kept, or a function of the script has a part.
  std::string plan_key() const {
    if (context_.memo == nullptr || model_key_.empty()) return "";
    std::string key =
        fmt::format("{} {} {} {} {}", model_key_, request_.sequence, for_cluster() ? 1 : 0,
                    request_.masked_labels ? 1 : 0, request_.documents ? 1 : 0);
    if (request_.priced_data) {
      key += fmt::format(" {} {} {}", json_text(experiment_.data_settings), experiment_.seed,
                         experiment_.data->content());
    }
    for (const Option& option : experiment_options().list()) {
      const std::string& name = option.name;
      if (!values_.has(name) || option.beside_plan) continue;
      key += '\n' + name;
      if (!add_key(values_.at(name), key)) return "";
    }
    return key;
  }

  const Json& table_;
  const ReadContext& context_;
  const std::shared_ptr<const ScriptReach> reach_;
  Problems problems_;
  Values values_;
  Json resolved_ = Json::object(), chosen_ = Json::object();  // chosen_: of what is made by name
  std::vector<ListedObserver> observers_;
  PlanRequest request_;
  std::string model_key_;  // the model's key in the memo; empty: none
  bool plan_broken_ = false;
  Experiment experiment_;
};

}  // namespace

Experiment read_experiment(const Json& table, const ReadContext& context) {
  return Reader(table, context).run();
}

}  // namespace mw
