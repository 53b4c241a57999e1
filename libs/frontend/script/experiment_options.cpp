// The keys of an experiment's table: types, ranges, defaults and what each means.
#include "meshwright/registration.h"
#include "script/read_experiment.h"

namespace mw {

const Options& experiment_options() {
  static const Options options =
      Options()
          .table("model", "what is trained: mw.llama { … }, mw.gpt { … }")
          .table("data", "tokens: mw.text { \"file\", sequence = 128 }, mw.synthetic { … }")
          .integer("sequence", "tokens of one sample; may stand in data instead")
          .at_least(1)
          .optional()
          .unit("tokens")
          .any("plan", "strategies, in mesh order: the ranks of the last one are adjacent")
          .fallback(Json::array())
          .integer("ranks",
                   "how many the plan is to have; a plan of another number is refused. Left out: "
                   "whatever the product of its ways is")
          .at_least(1)
          .optional()
          .integer("batch", "sequences of one step, over all ranks")
          .at_least(1)
          .unit("sequences")
          .any(
              "microbatch",
              "sequences that a rank computes at a time (all that it has if left out), a list of "
              "each microbatch's, mw.microbatch.fit { … }, mw.microbatch.ramp { … }, or a function "
              "of the step that returns one of these, or { batch = …, microbatch = … }")
          .optional()
          .choice("precision", {"fp64", "fp32", "bf16", "fp16"},
                  "of parameters and computation; with bf16 and fp16 the optimizer keeps fp32 "
                  "masters")
          .fallback("fp32")
          .any("loss_scale",
               "factor of the loss in backward; a step that overflows is left out: \"dynamic\" (so "
               "in fp16), a number, { init = 65536, growth = 2, backoff = 0.5, interval = 2000 }, "
               "or a function(step, scale, overflowed)")
          .optional()
          .choice(
              "reductions", {"compute", "fp32"},
              "what reals are summed in over ranks: the precision of computation, or fp32 where "
              "that is less")
          .fallback("compute")
          .choice(
              "main_gradients", {"compute", "fp32"},
              "what gradients are added up and reduced in: the precision of computation, or fp32 "
              "where that is less")
          .fallback("compute")
          .any("recompute",
               "activations that backward makes again: \"none\", \"selective\" (attention), "
               "\"full\", "
               "{ every = n }, { ops = { … } }, { fit = \"8GiB\" }, a plugin's policy, or a "
               "function of an op")
          .fallback("none")
          .any("offload",
               "activations that lie in host memory until backward reads them: \"none\", \"full\", "
               "{ layers = n }, { ops = { … } }, or a function of an op")
          .fallback("none")
          .choice("device", {"cpu", "cuda"},
                  "where ranks compute: on this machine's CPUs, or each on one of its GPUs; where "
                  "there are more ranks than GPUs, some share one")
          .fallback("cpu")
          .table("optimizer", "mw.adamw { lr = 3e-4 }, mw.sgd { … }")
          .any("schedule",
               "of the learning rate: mw.cosine { … }, mw.constant(), or a function of the step")
          .optional()
          .integer("steps", "how many optimizer steps")
          .at_least(1)
          .unit("steps")
          .integer("seed", "of the initial weights and of the order of the data")
          .fallback(0)
          .range(0, INT64_MAX)
          .text("weights",
                "initial weights: a safetensors file or folder with Hugging Face's names")
          .optional()
          .any("export",
               "where the weights go after the last step, as a folder that transformers loads: a "
               "path, or { path = …, dtype = \"bf16\", shard = \"5GB\" }")
          .optional()
          .text("name", "what the run is called; left out: the plan's mix")
          .optional()
          .text("log",
                "the run file (HDF5), or with a \"/\" at its end a folder for it and for what "
                "belongs to it; {name}, {seed} and {hash} stand for the run's")
          .optional()
          .boolean("overwrite",
                   "a log that is another experiment's may be replaced; a run of the same one "
                   "replaces its own without it")
          .fallback(false)
          .table(
              "checkpoint",
              "all that a run goes on from, now and then: { path = \"checkpoints/{name}\", every "
              "= 100, keep = 3 }; one more at its end")
          .optional()
          .any("resume",
               "true: the run goes on from the newest checkpoint of checkpoint.path, whatever mix "
               "wrote it, or begins anew where there is none; { from = \"…\", changed = true }")
          .fallback(false)
          .table(
              "evaluate",
              "a held-out loss: { data = mw.text { … }, every = 100, batches = 8 }, forward alone "
              "by the run's own plan, after so many steps and after the last")
          .optional()
          .table("cluster",
                 "what a plan is priced for: mw.cluster(\"selene\", { nodes = 8 }), or a table of "
                 "one's own; this machine if left out. A run does not look at it")
          .optional()
          .table("stack",
                 "the software that a plan on a cluster is priced for: mw.stack(\"meshwright\"), "
                 "mw.stack(\"megatron-core\"); left out it is plain, without flash attention")
          .optional()
          .integer("threads", "threads of one rank; 0: the cores over the ranks")
          .fallback(0)
          .range(0, 4096)
          .bytes(
              "memory",
              "what a rank may hold; a plan predicted above it is refused, an allocation over it "
              "ends the run")
          .at_least(1)
          .optional()
          .boolean(
              "force",
              "start although the ranks are predicted to need more memory than this machine has")
          .fallback(false)
          .boolean(
              "check",
              "assert while training that replicas have equal bits, tensors lie as the plan says, "
              "and nothing is NaN or Inf; names parameters without a gradient")
          .fallback(false)
          .number("timeout",
                  "how long a rank waits for the others in a collective, and a function of the "
                  "script may "
                  "take, before the run ends")
          .fallback(300)
          .range(0.001, 1e9)
          .unit("seconds")
          .choice("on_nan", {"stop", "continue"},
                  "what a loss or a gradient norm that is NaN or Inf does: end the run before the "
                  "optimizer's step, naming where it comes up first; or nothing. Steps that a loss "
                  "scale leaves out are neither")
          .fallback("stop")
          .list("trace",
                "steps of which the run file has every op and transfer, for meshwright trace: "
                "{ 3, 100 }; {}: none. If left out, the third and the last")
          .optional()
          .function(
              "observe",
              "called after each step with its index and { loss =, grad_norm =, lr =, tokens =, "
              "seconds = }; returns { name = number } for the run file; stop = true in it ends the "
              "run")
          .optional();
  return options;
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

void read_device(const Values& values, Catalog& catalog, Experiment& experiment) {
  if (values.text("device") != "cuda") return;
  experiment.device = at::kCUDA;
  // The one module that links libtorch's CUDA side: nothing else loads it.
  experiment.load_device = [&catalog] { catalog.find(Kind::communicator, "nccl"); };
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
          .fallback(8);
  return options;
}

}  // namespace mw
