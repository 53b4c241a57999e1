// The keys of an experiment's table: types, ranges, defaults and what each means.
#include "meshwright/engine/text.h"
#include "meshwright/registration.h"
#include "script/read_experiment.h"

#include <fmt/format.h>
#include <algorithm>
#include <set>

namespace mw {

namespace {

// The keys that say what is computed.
void add_computed(Options& options) {
  options.table("model", "what is trained: mw.llama { … }, mw.gpt { … }")
      .beside_plan()
      .searched()
      .table("data", "tokens: mw.text { \"file\", sequence = 128 }, mw.synthetic { … }")
      .beside_plan()
      .searched()
      .integer("sequence", "tokens of one sample; may stand in data instead")
      .at_least(1)
      .optional()
      .unit("tokens")
      .beside_plan()
      .searched()
      .any("plan", "strategies, in mesh order: the ranks of the last one are adjacent")
      .fallback(Json::array())
      .may_change_on_resume()
      .integer("ranks",
               "how many the plan is to have; a plan of another number is refused. Left out: "
               "whatever the product of its ways is")
      .at_least(1)
      .optional()
      .beside_plan()
      .of_run()
      .integer("batch", "sequences of one step, over all ranks")
      .at_least(1)
      .unit("sequences")
      .searched()
      .any("microbatch",
           "sequences that a rank computes at a time (all that it has if left out), a list of "
           "each microbatch's, mw.microbatch.fit { … }, mw.microbatch.ramp { … }, or a function "
           "of the step that returns one of these, or { batch = …, microbatch = … }")
      .optional()
      .may_change_on_resume();
}

// The keys for precisions, and for recomputed and offloaded activations.
void add_numbers(Options& options) {
  options
      .choice("precision", {"fp64", "fp32", "bf16", "fp16"},
              "of parameters and computation; with bf16 and fp16 the optimizer keeps fp32 "
              "masters")
      .fallback("fp32")
      .searched()
      .any("loss_scale",
           "factor of the loss in backward; a step that overflows is left out: \"dynamic\" (so "
           "in fp16), a number, { init = 65536, growth = 2, backoff = 0.5, interval = 2000 }, "
           "or a function(step, scale, overflowed)")
      .optional()
      .searched()
      .choice("reductions", {"compute", "fp32"},
              "what reals are summed in over ranks: the precision of computation, or fp32 where "
              "that is less")
      .fallback("compute")
      .may_change_on_resume()
      .searched()
      .choice("main_gradients", {"compute", "fp32"},
              "what gradients are added up and reduced in: the precision of computation, or fp32 "
              "where that is less")
      .fallback("compute")
      .may_change_on_resume()
      .searched()
      .any("recompute",
           "activations that backward recomputes: \"none\", \"selective\" (attention), "
           "\"full\", "
           "{ every = n }, { ops = { … } }, { fit = \"8GiB\" } or \"fit\" (what the memory asks "
           "for, stage by stage), a plugin's policy, or a function of an op")
      .fallback("none")
      .may_change_on_resume()
      .any("offload",
           "activations that lie in host memory until backward reads them: \"none\", \"full\", "
           "{ layers = n }, { ops = { … } }, or a function of an op")
      .fallback("none")
      .may_change_on_resume();
}

// The keys for the device, the optimizer, steps and weights, and for what a run writes.
void add_trained(Options& options) {
  options
      .text("device",
            "where ranks compute: \"cpu\", this machine's cores, or each on a device of a platform "
            "that a plugin brings, as \"cuda\" is; where there are more ranks than devices, some "
            "share one")
      .fallback("cpu")
      .may_change_on_resume()
      .table("optimizer", "mw.adamw { lr = 3e-4 }, mw.sgd { … }")
      .searched()
      .any("schedule",
           "of the learning rate: mw.cosine { … }, mw.constant(), or a function of the step")
      .optional()
      .integer("steps", "how many optimizer steps")
      .at_least(1)
      .unit("steps")
      .beside_plan()
      .may_change_on_resume()
      .integer("seed", "of the initial weights and of the order of the data")
      .fallback(0)
      .range(0, INT64_MAX)
      .beside_plan()
      .text("weights", "initial weights: a safetensors file or folder with Hugging Face's names")
      .optional()
      .beside_plan()
      .any("export",
           "where the weights go after the last step, as a folder that transformers loads: a "
           "path, or { path = …, dtype = \"bf16\", shard = \"5GB\" }")
      .optional()
      .of_run()
      .text("name", "what the run is called; left out: the plan's mix")
      .optional()
      .beside_plan()
      .of_run()
      .text("log",
            "the run file (HDF5), or with a \"/\" at its end a folder for it and for what "
            "belongs to it; {name}, {seed} and {hash} stand for the run's")
      .optional()
      .beside_plan()
      .of_run()
      .text("tensorboard",
            "a folder for event files of TensorBoard: the columns of /steps, what observe returns, "
            "memory and bytes; {name}, {seed} and {hash} stand for the run's")
      .optional()
      .beside_plan()
      .of_run()
      .boolean("overwrite",
               "a log, or events, that are another experiment's may be replaced; a run of the same "
               "one replaces its own without it")
      .fallback(false)
      .beside_plan()
      .of_run()
      .table("checkpoint",
             "all that a run goes on from, now and then: { path = \"checkpoints/{name}\", every "
             "= 100, keep = 3 }; one more at its end")
      .optional()
      .of_run()
      .any("resume",
           "true: the run goes on from the newest checkpoint of checkpoint.path, whatever mix "
           "wrote it, or begins anew where there is none; { from = \"…\", changed = true }")
      .fallback(false)
      .of_run();
}

// The keys for evaluation, and for what a plan is priced for.
void add_priced(Options& options) {
  options
      .table("evaluate",
             "a held-out loss: { data = mw.text { … }, every = 100, batches = 8 }, forward alone "
             "by the run's own plan, after so many steps and after the last")
      .optional()
      .beside_plan()
      .may_change_on_resume()
      .table("cluster",
             "what a plan is priced for: mw.cluster(\"selene\", { nodes = 8 }), or a table of "
             "one's own; this machine if left out, but for a search, which needs one. A run takes "
             "from it how many layers its stages have, where they are not given, and nothing else")
      .optional()
      .beside_run()
      .searched()
      .table("stack",
             "the software that a plan on a cluster is priced for: mw.stack(\"meshwright\"), "
             "mw.stack(\"megatron-core\"); left out it is plain, without flash attention")
      .optional()
      .beside_run()
      .searched()
      .any("tokens",
           "that the whole training is to see, as 1.4e12 or \"1.4T\": a plan on a cluster says how "
           "long that takes")
      .optional()
      .beside_plan()
      .beside_run()
      .number("price", "of a device hour, in any currency: a plan with tokens says what they cost")
      .at_least(0)
      .optional()
      .beside_plan()
      .beside_run()
      .integer("threads", "threads of one rank; 0: the cores over the ranks")
      .fallback(0)
      .range(0, 4096)
      .may_change_on_resume();
}

// The keys for limits, checks, traces and observers.
void add_limits(Options& options) {
  options
      .bytes("memory",
             "what a rank may hold; a plan predicted above it is refused, an allocation over it "
             "ends the run")
      .at_least(1)
      .optional()
      .may_change_on_resume()
      .searched()
      .boolean("force",
               "start although the ranks are predicted to need more memory than this machine has")
      .fallback(false)
      .of_run()
      .any("check",
           "true: test during training that replicas have equal bits, tensors have the planned "
           "placement, and nothing is NaN or Inf; names parameters without a gradient. "
           "\"replicas\", or { \"replicas\", every = 10 }: test only that replicas which last from "
           "step to step have equal bits, after every tenth step and the last")
      .fallback(false)
      .beside_plan()
      .may_change_on_resume()
      .number("timeout",
              "how long a rank waits for the others in a collective, and a function of the "
              "script or a plugin's observer may take, before the run ends")
      .fallback(300)
      .range(0.001, 1e9)
      .unit("seconds")
      .beside_plan()
      .of_run()
      .choice("on_nan", {"stop", "continue"},
              "what a loss or a gradient norm that is NaN or Inf does: end the run before the "
              "optimizer's step, naming where it comes up first; or nothing. Steps that a loss "
              "scale leaves out are neither")
      .fallback("stop")
      .may_change_on_resume()
      .searched()
      .list("trace",
            "steps of which the run file has every op and transfer, for meshwright trace: "
            "{ 3, 100 }; {}: none. If left out, the third and the last")
      .optional()
      .beside_plan()
      .of_run()
      .boolean("account",
               "of the steps of `trace` the run file says where their seconds went, beside what "
               "the same products take alone and the bytes at the rate of copies, measured before "
               "the first step: meshwright runs show FILE --where")
      .fallback(false)
      .beside_plan()
      .of_run()
      .function(
          "observe",
          "called after each step with its index and { loss =, grad_norm =, lr =, tokens =, "
          "seconds = }; returns { name = number } for the run file; stop = true in it ends the "
          "run")
      .optional()
      .beside_plan()
      .may_change_on_resume()
      .list("observers",
            "who else looks on, in this order: observers of plugins, such as profilers and "
            "trackers, and functions as `observe` is one")
      .optional()
      .beside_plan()
      .of_run();
}

}  // namespace

const Options& experiment_options() {
  static const Options options = [] {
    Options all;
    add_computed(all);
    add_numbers(all);
    add_trained(all);
    add_priced(all);
    add_limits(all);
    return all;
  }();
  return options;
}

std::vector<std::string> keys_of_run() {
  std::vector<std::string> keys;
  for (const Option& option : experiment_options().list())
    if (option.of_run) keys.push_back(option.name);
  return keys;
}

const Options& export_options() {
  static const Options options =
      Options()
          .text("path", "the folder")
          .positional("path")
          .choice("dtype", {"fp64", "fp32", "bf16", "fp16"},
                  "of the tensors; left out: the experiment's precision")
          .optional()
          .bytes("shard", "of a file at most, unless one tensor has more")
          .at_least(1)
          .fallback("5GB");
  return options;
}

const Options& evaluate_options() {
  static const Options options =
      Options()
          .table("data", "held-out tokens, as the experiment's data")
          .integer("every", "steps from one evaluation to the next")
          .at_least(1)
          .unit("steps")
          .integer("batches", "of the experiment's size, the same ones each time")
          .at_least(1)
          .fallback(8)
          .choice("by", {"parameters", "average", "anchor"},
                  "what the model computes with: its parameters, the average of them that the "
                  "optimizer keeps (mw.ema, mw.update), or the anchor of replicas that differ")
          .fallback("parameters");
  return options;
}

void read_check(const Json& given, RunChecks& checks, Problems& problems) {
  static const Options options = Options()
                                     .choice("what", {"replicas"}, "what is compared")
                                     .positional("what")
                                     .integer("every", "steps from one comparison to the next")
                                     .at_least(1)
                                     .fallback(10)
                                     .unit("steps");
  if (given.is_boolean()) {
    checks.check = given.get<bool>();
    return;
  }
  if (given.is_number() || is_function(given)) {
    problems.add(Stage::options, "option.type", "check",
                 fmt::format("check must be true, false or \"replicas\"; got {}", describe(given)),
                 "to compare replicas more often: check = { \"replicas\", every = 2 }");
    return;
  }
  Problems found;
  const Values values = options.read(given, "check", found);
  problems.add(found);
  if (found.empty()) checks.check_every = values.integer("every");
}

const Options& checkpoint_options() {
  static const Options options =
      Options()
          .text("path",
                "the folder that they lie in, one folder each; {name}, {seed} and {hash} stand for "
                "the run's")
          .integer("every",
                   "steps from one to the next; one more at the end, which is the only one "
                   "if this is left out")
          .optional()
          .at_least(1)
          .unit("steps")
          .integer("keep", "how many of the newest stay; all if left out")
          .optional()
          .at_least(1);
  return options;
}

const Options& resume_options() {
  static const Options options =
      Options()
          .text("from", "a checkpoint, or a folder of them; left out: checkpoint.path")
          .optional()
          .boolean("changed",
                   "although something of the experiment is no longer the same: its learning rate, "
                   "data, batch, seed or precision")
          .fallback(false);
  return options;
}

std::vector<std::int64_t> read_trace(const Json& given, std::int64_t steps, Problems& problems) {
  const std::int64_t last = steps - 1;
  if (given.is_null()) {
    const std::set<std::int64_t> usual = {std::min<std::int64_t>(2, last), last};
    return {usual.begin(), usual.end()};
  }
  std::set<std::int64_t> traced;
  for (const Json& one : given) {
    const auto step = whole_number(one);
    if (step && *step >= 0) {
      traced.insert(*step);
      continue;
    }
    problems.add(Stage::options, "option.value", "trace",
                 fmt::format("trace: {} is no step", describe(one)),
                 "steps count from 0: trace = { 3, 100 }");
  }
  return {traced.begin(), traced.end()};
}

Checkpointing read_checkpointing(const Json& checkpoint, const Json& resume, Problems& problems) {
  Checkpointing read;
  if (!checkpoint.is_null()) {
    Problems found;
    const Values values = checkpoint_options().read(checkpoint, "checkpoint", found);
    problems.add(found);
    if (values.has("path")) read.path = values.text("path");
    if (found.empty() && values.has("every")) read.every = values.integer("every");
    if (found.empty() && values.has("keep")) read.keep = values.integer("keep");
    if (found.empty() && read.path.empty())
      problems.add(Stage::options, "option.value", "checkpoint.path",
                   "checkpoint.path: got an empty text",
                   "name a folder: path = \"checkpoints/{name}-{seed}\"");
  }
  if (resume.is_null() || resume == false) return read;
  read.resume = true;
  if (resume != true) {
    if (!resume.is_object() && !(resume.is_array() && resume.empty())) {
      problems.add(Stage::options, "option.value", "resume",
                   fmt::format("resume: got {}", describe(resume)),
                   "true, or { from = \"checkpoints/run/step-00000100\", changed = true }");
      return read;
    }
    Problems found;
    const Values values =
        resume_options().read(resume.is_object() ? resume : Json::object(), "resume", found);
    problems.add(found);
    if (!found.empty()) return read;
    if (values.has("from")) read.from = values.text("from");
    if (values.has("from") && read.from.empty())
      problems.add(Stage::options, "option.value", "resume.from", "resume.from: got an empty text",
                   "name a checkpoint or a folder of them, or leave it out: checkpoint.path");
    read.changed = values.flag("changed");
  }
  if (read.from.empty() && checkpoint.is_null()) {
    problems.add(Stage::options, "option.missing", "checkpoint",
                 "resume needs to know where checkpoints lie, and there is no checkpoint",
                 "write checkpoint = { path = \"checkpoints/{name}-{seed}\", every = 100 }");
  }
  return read;
}

}  // namespace mw
