// What each verb's result has: names, types and units, in one place.
#include "app/result_fields.h"

#include <map>

namespace mw {
namespace {

using Fields = std::vector<ResultField>;

const Fields identity_fields = {
    {"name", "string", "the experiment's: given, or the plan's mix"},
    {"hash", "string", "of all that decides its numbers, 16 hex digits"},
    {"seed", "integer", ""},
    {"experiment", "table", "every key with its default, --set applied"},
    {"changed", "string[]?",
     "keys to which --set, --cluster and --stack gave other values than the script"},
};

const Fields prediction_fields = {
    {"ranks", "integer", ""},
    {"parameters", "integer", "of the model, each once"},
    {"flops_per_step", "number", "of the model"},
    {"hardware_flops_per_step", "number", "with what is computed again"},
    {"memory", "table[]", "bytes by category and peak, of each stage's fullest rank"},
    {"peak_bytes", "integer", "of the rank with the most, as a training's"},
    {"communication", "table[]",
     "axis, op, phase, calls, bytes, seconds, exposed_seconds of a rank and step; with stages "
     "seconds and exposed_seconds of the stage that spends most, and mean_exposed_seconds of all"},
    {"priced_for", "string?", "the machine of the times; without one there are no times"},
    {"idle_devices", "integer?", "of the cluster: those that the plan has no rank for"},
    {"step_seconds", "number", ""},
    {"step_error", "number?",
     "by how much steps of the calibration's own mixes were mispredicted on average, as a share"},
    {"cpu_seconds", "number?", "of all ranks' threads in a step, where they share cores"},
    {"compute_seconds", "number",
     "the stages' mean, as are exposed_seconds and exposed_host_copy_seconds: with bubble_fraction "
     "of the step they add up to it"},
    {"exposed_seconds", "number", "of communication that nothing hides"},
    {"stages", "table[]?",
     "stage, compute_seconds, exposed_seconds, exposed_host_copy_seconds, bubble_seconds of each, "
     "which add up to the step"},
    {"host_copy_seconds", "number?",
     "of a rank's copies to and from host memory beside what its device computes, on a cluster"},
    {"exposed_host_copy_seconds", "number?", "of those, what nothing hides"},
    {"bubble_fraction", "number", "of a step, in which a stage waits"},
    {"tokens_per_second", "number", ""},
    {"tokens_per_second_per_device", "number", ""},
    {"peak_flops", "number", "of all devices: what MFU is a fraction of"},
    {"mfu", "number", "attention included"},
    {"mfu_6n", "number", "6 x parameters x tokens"},
    {"hfu", "number", ""},
    {"reported_bytes", "integer?",
     "that a driver would report of the fullest rank's device, where a stack or cluster says so"},
    {"beside_program", "table<string, integer>?",
     "what of those are no bytes of the program: gradients, loss, reserve, communicators, context"},
    {"recompute_frees_bytes", "integer?",
     "where anything is recomputed: bytes that the fullest rank would hold more without"},
    {"recompute_costs_seconds", "number?",
     "where anything is recomputed: by how much a step takes longer for it"},
    {"memory_needed", "integer", "bytes of all ranks that share a memory"},
    {"memory_limit", "integer?", "bytes that devices have, where that is known"},
    {"host_needed", "integer?", "bytes in host memory of the node that needs most, on a cluster"},
    {"host_limit", "integer?", "bytes of host memory that a node has, where the cluster says so"},
    {"fits", "boolean?", "in both; nil where it is not known what there is"},
    {"nearly_full", "boolean?", "fits, and fills more than 95 % of that, or of rank_memory_limit"},
    {"held_out_seconds", "number?", "of one evaluation"},
};

const Fields train_fields = {
    {"kind", "\"train\"", ""},
    {"status", "\"done\"|\"failed\"|\"interrupted\"", ""},
    {"reason", "string?", "why it failed, or ended before its last step"},
    {"plan", "string", "as the command plan prints it"},
    {"plan_hash", "string", "of the programs, 16 hex digits"},
    {"ranks", "integer", ""},
    {"steps", "integer", "finished"},
    {"losses", "number[]", "of every step"},
    {"grad_norms", "number[]", "of every step, before clipping"},
    {"batches", "integer[]?", "sequences of every step, where they differ"},
    {"step_seconds", "number", "median after the warm-up"},
    {"tokens_per_second", "number", "of the median step"},
    {"cpu_seconds_per_step", "number", "of the whole process"},
    {"mfu", "number", ""},
    {"bubble_fraction", "number", "of all ranks' time: waiting for another stage"},
    {"startup_seconds", "number", "from the process's start to the first step"},
    {"peak_bytes", "integer", "of the rank with the most; beside it predicted.peak_bytes"},
    {"memory", "table<string, integer>", "peak bytes by category, of the rank with the most"},
    {"communication", "table[]", "axis, op, phase, calls, bytes, seconds of a rank and step"},
    {"held_out", "table[]?", "step, loss, tokens, seconds of each evaluation"},
    {"held_out_loss", "number?", "of the last evaluation"},
    {"loss_scale", "number?", "of the last step"},
    {"skipped_steps", "integer[]?", "left out, as gradients overflowed"},
    {"checkpoints", "table?",
     "path; how many were written; the last one's step and bytes; waited_seconds, write_seconds of "
     "all; failed"},
    {"resumed", "table?", "step, from, mix: the checkpoint that the run went on from"},
    {"experts", "table?",
     "layers: choices and rows of each expert; imbalance: the fullest expert's choices over the "
     "mean; dropped; rank_imbalance: of the fullest rank in any step, what imbalance = predicts "
     "for; note: that in words, where predictions suppose otherwise"},
    {"check", "table?", "what check = true looked at"},
    {"predicted", "meshwright.Predicted", "the same run's prediction"},
    {"restarts", "integer?", "how many starts of the script have failed before this one"},
    {"last_collectives", "table[]?", "of a run that failed: where each rank was"},
    {"log", "string?", "the run file"},
    {"folder", "string?", "the run folder"},
    {"export", "string?", "the folder with the weights after the last step"},
};

const Fields loaded_fields = {
    {"created", "string", "\"2026-11-22T13:00:00Z\""},
    {"host", "string", ""},
    {"versions", "table<string, string>", ""},
    {"per_step", "table<string, any[]>", "the columns of /steps, a list each"},
    {"series", "table<string, number[]>", "what observe returned, along series.step"},
    {"plan_description", "table", "mesh, microbatches and schedule, as /plan has them"},
    {"sweep", "string?", "the name of the sweep that it is a cell of"},
    {"values", "table<string, string>?", "what the sweep set"},
};

const Fields plan_fields = {
    {"kind", "\"plan\"", ""},
    {"plan", "string", "the mix"},
    {"plan_hash", "string", "of the programs, 16 hex digits"},
    {"rank_memory_limit", "integer?", "bytes, where the experiment has a limit"},
    {"hint", "string?", "what to do where that is too little"},
    {"placements", "table?", "under --placements"},
    {"program", "string?", "under --program"},
};

const Fields verify_fields = {
    {"kind", "\"verify\"", ""},
    {"status", "\"done\"|\"interrupted\"", ""},
    {"verdict", "\"equal\"|\"different\"|nil", "nil where it was interrupted"},
    {"plan", "string", "the mix"},
    {"plan_hash", "string", ""},
    {"precision", "\"fp64\"?", ""},
    {"max_relative_error", "table<string, number>?", "loss, gradients, parameters"},
    {"worst", "string?", "the parameter with the largest error"},
    {"first_divergence", "string?", "op"},
    {"divergence", "string?", "the same in a sentence"},
    {"note", "string?", ""},
    {"steps", "integer?", ""},
    {"plans", "integer?", "of steps that differ, each verified"},
};

const Fields prove_fields = {
    {"kind", "\"prove\"", ""},
    {"status", "\"done\"", ""},
    {"verdict", "\"proved\"|\"refused\"", ""},
    {"plan", "string", "the mix"},
    {"plan_hash", "string", ""},
    {"ranks", "integer", ""},
    {"stages", "integer", "of the pipeline"},
    {"parameters", "integer", "of all stages"},
    {"microbatches", "integer", ""},
    {"instructions", "integer", "of all segments of all stages"},
    {"runs", "integer", "of segments, of all stages"},
    {"rules", "integer", "applied: instructions of all runs"},
    {"seconds", "number", ""},
    {"strict", "boolean", "under --strict: collectives block until all have come"},
    {"lemmas", "integer", "kinds of ops that the proof takes for right"},
    {"lemmas_tried", "integer", "of those, at small sizes; optimizers' among them"},
    {"lemma_seconds", "number", ""},
    {"lemma_kinds", "table[]", "kind, op, piece, cut, follow, carried, ring of each"},
    {"notes", "string[]", "bounds of the claim: hooks that lose bits, lemmas that were not tried"},
    {"refusals", "table[]",
     "code, key, stage, segment, run, microbatch, instruction, ring_step, slot, where, listed, "
     "message, axes (axis, needed, found), written, by, missing, twice, mend"},
    {"plans", "integer?", "of steps that differ, each proved"},
};

const Fields compare_fields = {
    {"kind", "\"compare\"", ""},
    {"status", "string", ""},
    {"verdict", "\"equal\"|\"different\"|nil", "nil where it was interrupted"},
    {"a", "string?", "the first's mix"},
    {"b", "string?", "the second's mix"},
    {"plan_hashes", "string[]?", ""},
    {"same_bits", "boolean?", ""},
    {"precision", "string[]?", "of both"},
    {"steps", "integer?", ""},
    {"max_relative_error", "table<string, number>?", "loss, gradients, parameters"},
    {"bound_ratio", "number?", "largest error over what rounding explains"},
    {"nearest", "table?", "what comes nearest to its bound"},
    {"worst", "string?", "parameter"},
    {"first_difference", "table?", "of bits"},
    {"first_divergence", "string?", "op"},
    {"first_beyond", "table?", "beyond what rounding explains"},
    {"divergence", "string?", "the same in a sentence"},
    {"parameter", "string?", "the first whose gradient parts"},
    {"suspect", "string?", ""},
    {"note", "string?", ""},
    {"reported", "table?", "errors and bounds of loss and norm"},
    {"moved_choices", "integer?", "tokens that went to other experts"},
    {"both_off", "boolean?", ""},
};

const Fields logits_fields = {
    {"kind", "\"logits\"", ""},
    {"plan", "string", "the mix"},
    {"plan_hash", "string", ""},
    {"loss", "number", "of the batch"},
    {"file", "string", "tokens, labels and logits"},
    {"shape", "integer[]", "of the logits: sequences, tokens, vocabulary"},
};

const Fields search_fields = {
    {"kind", "\"search\"", ""},
    {"status", "\"done\"|\"interrupted\"", ""},
    {"interrupted", "boolean", "stopped by the user: what is there are the best so far"},
    {"priced_for", "string", "the cluster and the stack"},
    {"ranks", "integer", "of each plan"},
    {"rank_memory_limit", "integer", "bytes"},
    {"host_memory_limit", "integer?", "bytes of host memory that a node has, if it is known"},
    {"candidates", "integer", "that were priced"},
    {"refused", "integer", "that the strategies or the model do not allow"},
    {"fitting", "integer", "of the candidates, by the closed form"},
    {"candidates_per_second", "number",
     "that a core prices, plans of few layers and orders of works included"},
    {"probes", "integer", "plans of few layers, of which the closed form has its terms"},
    {"seconds", "number", "all of the search, by the clock"},
    {"probing_seconds", "number", "of a core: plans of few layers, orders of works"},
    {"pricing_seconds", "number", "... the sums that price the candidates"},
    {"checking_seconds", "number", "... planning the best whole"},
    {"best", "table[]",
     "plan (text), entries (a table for plan =), microbatch, recompute, offload, predicted, fits, "
     "closed_form_seconds, closed_form_bytes, closed_form_host_bytes; the fastest first"},
    {"edge", "table[]", "of those planned whole: nothing has less memory and is as fast"},
    {"checked", "table[]", "all that were planned whole, in the order of the closed form"},
    {"why", "string", "what limits the best one, and what its neighbours lose"},
};

const Fields text_fields = {{"text", "string", "what print shows"}};

Fields joined(std::initializer_list<const Fields*> parts) {
  Fields all;
  for (const Fields* part : parts) all.insert(all.end(), part->begin(), part->end());
  return all;
}

}  // namespace

const std::vector<ResultField>& result_fields(const std::string& kind) {
  static const std::map<std::string, Fields> all = {
      {"train", joined({&train_fields, &identity_fields, &text_fields})},
      {"loaded", joined({&train_fields, &identity_fields, &loaded_fields, &text_fields})},
      {"plan", joined({&plan_fields, &identity_fields, &prediction_fields, &text_fields})},
      {"predicted", prediction_fields},
      {"verify", joined({&verify_fields, &identity_fields, &text_fields})},
      {"prove", joined({&prove_fields, &identity_fields, &text_fields})},
      {"logits", joined({&logits_fields, &identity_fields, &text_fields})},
      {"search", joined({&search_fields, &text_fields})},
      {"compare", joined({&compare_fields, &text_fields})}};
  static const Fields none;
  const auto found = all.find(kind);
  return found != all.end() ? found->second : none;
}

}  // namespace mw
