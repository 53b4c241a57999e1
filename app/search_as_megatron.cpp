// Writes plans as flags of Megatron-LM (release core_v0.19.0), and says what these cannot express.
// The flags that it may write are listed in tests/cli/search_as.json, which a test holds the output
// to.
#include <fmt/format.h>

#include <algorithm>

#include "app/search_as_plan.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

class Flags {
 public:
  void add(const std::string& flag) { list_.push_back("--" + flag); }
  void add(const std::string& flag, std::int64_t value) { add(flag + " " + std::to_string(value)); }
  std::string text() const { return join(list_, " \\\n") + "\n"; }

 private:
  std::vector<std::string> list_;
};

// Flags of a model's sizes, where its table gives them.
class MegatronModel {
 public:
  MegatronModel(Translation& p, Flags& flags)
      : p_(p), flags_(flags), model_(p.searched.model), kind_(model_.text("kind", "")) {}

  void add() {
    if (kind_ != "gpt" && kind_ != "llama" && kind_ != "moe") {
      p_.cannot.push_back(fmt::format("mw.{}: give its sizes yourself", kind_));
      return;
    }
    size("num-layers", "layers");
    size("hidden-size", "hidden");
    size("num-attention-heads", "heads");
    size("ffn-hidden-size", "ffn");
    if (model_.get("head_dim", 0) > 0) size("kv-channels", "head_dim");
    attention();
    if (kind_ == "moe") experts();
    if (kind_ != "gpt") {
      for (const char* flag : {"swiglu", "normalization RMSNorm", "position-embedding-type rope",
                               "disable-bias-linear"})
        flags_.add(flag);
    }
    if (model_.has("rope_theta"))
      flags_.add(fmt::format("rotary-base {:.0f}", model_.get("rope_theta", 1e4)));
    if (model_.has("norm_eps"))
      flags_.add(fmt::format("norm-epsilon {}", model_.get("norm_eps", 1e-5)));
    if (!model_.get("tied", kind_ == "gpt")) flags_.add("untie-embeddings-and-output-weights");
    flags_.add("max-position-embeddings",
               std::max(p_.searched.sequence, model_.get<std::int64_t>("positions", 0)));
    flags_.add("attention-dropout", 0);  // these are 0.1 if left out
    flags_.add("hidden-dropout", 0);
    if (model_.has("vocab"))
      p_.cannot.push_back(fmt::format("model.vocab = {}: the tokenizer says it",
                                      model_.get<std::int64_t>("vocab", 0)));
    for (const std::string& one : model_.unread()) p_.cannot.push_back("model." + one);
  }

 private:
  void size(const char* flag, const char* key) {
    if (model_.has(key)) flags_.add(flag, model_.get<std::int64_t>(key, 0));
  }

  void attention() {
    const int heads = model_.get("heads", 1), groups = model_.get("kv_heads", heads);
    const int tp = p_.plan.ways("tp");
    if (groups != heads) {
      flags_.add("group-query-attention");
      flags_.add("num-query-groups", groups);
      if (groups % tp != 0 && tp % groups != 0)
        p_.cannot.push_back(fmt::format("model.kv_heads = {} with tp({})", groups, tp));
    }
    if (model_.has("attention"))
      flags_.add("attention-backend " + model_.text("attention", "flash"));
    if (!model_.has("kv_lora_rank")) return;
    flags_.add("multi-latent-attention");
    flags_.add("rope-type rope");
    flags_.add("no-rope-fusion");  // which knows latent attention with another type alone
    size("kv-lora-rank", "kv_lora_rank");
    size("q-lora-rank", "q_lora_rank");
    size("qk-head-dim", "qk_nope_head_dim");
    size("qk-pos-emb-head-dim", "qk_rope_head_dim");
    size("v-head-dim", "v_head_dim");
  }

  void experts() {
    const auto ffn = model_.get<std::int64_t>("expert_ffn", model_.get<std::int64_t>("ffn", 0));
    size("num-experts", "experts");
    size("moe-router-topk", "top_k");
    flags_.add("moe-ffn-hidden-size", ffn);
    flags_.add("moe-grouped-gemm");
    if (const int shared = model_.get("shared_experts", 0); shared > 0)
      flags_.add("moe-shared-expert-intermediate-size", shared * ffn);
    if (const int dense = model_.get("dense_layers", 0); dense > 0)
      flags_.add(
          fmt::format("moe-layer-freq \"([0]*{}+[1]*{})\"", dense, p_.searched.layers - dense));
    const std::string balance = model_.text("balance", "aux");
    if (balance == "aux") {
      flags_.add("moe-router-load-balancing-type seq_aux_loss");
      flags_.add(fmt::format("moe-aux-loss-coeff {}", model_.get("aux_weight", 0.01)));
    } else if (balance == "none") {
      flags_.add("moe-router-load-balancing-type none");
    } else {
      p_.cannot.push_back(fmt::format("model.balance = {}", lua_text(balance)));
    }
    if (model_.has("score"))
      flags_.add("moe-router-score-function " + model_.text("score", "softmax"));
  }

  Translation& p_;
  Flags& flags_;
  const ReadTable model_;
  const std::string kind_;
};

// "Et*3|t*4|t*3L": the layers of each virtual stage, with the embedding and the loss.
std::string megatron_layout(const std::vector<int>& layers) {
  std::vector<std::string> stages;
  for (const int count : layers) stages.push_back(count == 0 ? "" : fmt::format("t*{}", count));
  stages.front() = "E" + stages.front();
  stages.back() += "L";
  return join(stages, "|");
}

void megatron_stages(Translation& p, Flags& flags) {
  if (p.stages() == 1) return;
  flags.add("pipeline-model-parallel-size", p.stages());
  const std::string schedule = p.plan.of("pp").text("schedule", "1f1b");
  if (schedule != "1f1b" && schedule != "interleaved")
    p.cannot.push_back(fmt::format("the schedule {}: it has 1f1b and interleaved", schedule));
  if (schedule == "interleaved" && p.microbatches() % p.stages() != 0)
    p.cannot.push_back(
        fmt::format("{} microbatches on {} stages: interleaved stages take a "
                    "multiple of the stages",
                    p.microbatches(), p.stages()));
  if (!p.even()) {
    flags.add(fmt::format("pipeline-model-parallel-layout \"{}\"", megatron_layout(p.layers)));
  } else if (p.chunks() > 1) {
    flags.add("num-layers-per-virtual-pipeline-stage", p.layers.front());
  }
}

void megatron_data(Translation& p, Flags& flags) {
  const ReadTable& dp = p.plan.of("dp");
  const ReadTable& zero = p.plan.of("zero");
  if (p.plan.has("dp") && dp.get("overlap", true)) flags.add("overlap-grad-reduce");
  if (dp.text("reduce", "last") == "each")
    p.cannot.emplace_back("dp { reduce = \"each\" }: gradients are reduced once a step");
  if (!p.plan.has("zero")) return;
  const int stage = zero.get("stage", 1);
  flags.add("use-distributed-optimizer");
  if (!p.plan.has("dp")) flags.add("overlap-grad-reduce");
  if (zero.get("overlap_gather", true)) flags.add("overlap-param-gather");
  if (stage > 1) {
    flags.add("use-megatron-fsdp");
    flags.add(stage == 2 ? "data-parallel-sharding-strategy optim_grads"
                         : "data-parallel-sharding-strategy optim_grads_params");
    flags.add("ckpt-format fsdp_dtensor");  // it takes no other
    if (p.plan.has("pp"))
      p.cannot.push_back(fmt::format("zero {{ stage = {} }} with stages", stage));
    if (zero.get("keep", false))
      p.cannot.emplace_back("zero { keep = true }: parameters are gathered again for backward");
  }
  if (const int replicas = zero.get("replicas", 1); replicas > 1)
    flags.add("num-distributed-optimizer-instances", replicas);
  const std::string offload = zero.text("offload", "none");
  if (offload == "parameters") p.cannot.emplace_back("zero { offload = \"parameters\" }");
  if (offload != "optimizer") return;
  flags.add("optimizer-cpu-offload");
  flags.add("use-precision-aware-optimizer");  // the first needs it
}

void megatron_context(Translation& p, Flags& flags) {
  if (!p.plan.has("cp")) return;
  const ReadTable& cp = p.plan.of("cp");
  const std::string form = cp.text("form", "ring");
  const int ways = p.plan.ways("cp");
  flags.add("context-parallel-size", ways);
  flags.add(form == "ring"        ? "cp-comm-type p2p"
            : form == "allgather" ? "cp-comm-type all_gather"
                                  : "cp-comm-type a2a");
  if (cp.text("balance", "zigzag") == "none" && form != "ulysses")
    p.cannot.emplace_back("sp { balance = \"none\" }: parts are always balanced");
  if (p.searched.sequence % (2 * ways) != 0)
    p.cannot.push_back(fmt::format("sequence = {} on {} ranks: a multiple of {} is taken",
                                   p.searched.sequence, ways, 2 * ways));
}

void megatron_layer(Translation& p, Flags& flags) {
  const int tp = p.plan.ways("tp");
  flags.add("tensor-model-parallel-size", tp);
  p.plan.of("tp").has("overlap");  // gradients of weights always lie beside the all-reduces
  if (p.plan.has("sp") && tp > 1) flags.add("sequence-parallel");
  megatron_context(p, flags);
  if (!p.plan.has("ep")) return;
  const ReadTable& ep = p.plan.of("ep");
  flags.add("expert-model-parallel-size", p.plan.ways("ep"));
  if (const int left = p.expert_tp(); left == 0) {
    p.cannot.push_back(fmt::format("the ranks that ep({}) borrows", p.plan.ways("ep")));
  } else if (tp > 1) {
    flags.add("expert-tensor-parallel-size", left);
  }
  flags.add("moe-token-dispatcher-type " + ep.text("dispatch", "alltoall"));
  if (ep.get("overlap", false)) {
    if (ReadTable(p.searched.model).get("shared_experts", 0) > 0)
      flags.add("moe-shared-expert-overlap");
    else
      p.cannot.emplace_back("ep { overlap = true } without shared experts");
  }
  if (tp > 1 && !p.plan.has("sp"))
    p.cannot.emplace_back("ep with tp and without sp(): --sequence-parallel must be given");
}

void megatron_recompute(Translation& p, Flags& flags) {
  const Json& recompute = p.found.at("recompute");
  if (recompute == "full") {
    flags.add("recompute-granularity full");
    flags.add("recompute-method uniform");
    flags.add("recompute-num-layers", 1);
  } else if (recompute == "selective") {
    flags.add("recompute-granularity selective");
  } else if (recompute != "none") {
    p.cannot.push_back("recompute = " + lua_text(recompute));
  }
}

}  // namespace

PlanElsewhere as_megatron(const Json& found, const SearchedFor& searched) {
  Translation p(found, searched);
  Flags flags;
  megatron_layer(p, flags);
  megatron_stages(p, flags);
  megatron_data(p, flags);
  flags.add("micro-batch-size", p.microbatch());
  flags.add("global-batch-size", searched.batch);
  flags.add("seq-length", searched.sequence);
  megatron_recompute(p, flags);
  if (searched.precision == "bf16" || searched.precision == "fp16") {
    flags.add(searched.precision);
  } else if (searched.precision != "fp32") {
    p.cannot.push_back("precision = " + lua_text(searched.precision));
  }
  MegatronModel(p, flags).add();
  p.add_common();
  PlanElsewhere made;
  // Its checks ask for these values of a variable of the environment.
  if (p.plan.of("zero").get("stage", 1) > 1) {
    made.before = "unset CUDA_DEVICE_MAX_CONNECTIONS";
  } else if (p.plan.ways("tp") * p.plan.ways("cp") > 1) {
    made.before = "export CUDA_DEVICE_MAX_CONNECTIONS=1";
  }
  made.text = flags.text();
  made.cannot = std::move(p.cannot);
  return made;
}

}  // namespace mw
