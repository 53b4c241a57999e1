// Writes plans as flags of Megatron-LM (release core_v0.19.0) and as TOML of torchtitan (v0.2.2,
// the last release whose jobs are TOML files), and says what these cannot express. The flags and
// keys that it may write are listed in tests/cli/search_as.json, which a test holds the output to.
#include "app/search_as.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

// A table that knows which of its keys were asked for. What nobody asked for is not expressed.
class ReadTable {
 public:
  explicit ReadTable(Json table = Json::object()) : table_(std::move(table)) {}
  bool has(const std::string& key) const {
    read_.insert(key);
    return table_.contains(key) && !table_.at(key).is_null();
  }
  template <class T>
  T get(const std::string& key, T otherwise) const {
    return has(key) ? table_.at(key).get<T>() : otherwise;
  }
  std::string text(const std::string& key, const char* otherwise) const {
    return get<std::string>(key, otherwise);
  }
  std::vector<std::string> unread() const {
    std::vector<std::string> list;
    for (const auto& [key, value] : table_.items())
      if (!read_.contains(key) && !key.starts_with('$'))  // where it stands in the script
        list.push_back(fmt::format("{} = {}", key, lua_text(value)));
    return list;
  }

 private:
  Json table_;
  mutable std::set<std::string> read_;
};

// The entries of a plan by strategy.
class Entries {
 public:
  explicit Entries(const Json& found) {
    for (const Json& entry : found.at("entries")) {
      const std::string name = entry.at("plugin");
      // Megatron's sequence parallelism has no ranks of its own; context parallelism has.
      Json options = entry;
      options.erase("plugin");
      by_name_.emplace(name == "sp" && entry.contains("ways") ? "cp" : name, options);
    }
  }
  bool has(const std::string& name) const { return by_name_.contains(name); }
  int ways(const std::string& name) const { return of(name).get("ways", 1); }
  const ReadTable& of(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? none_ : found->second;
  }
  int data() const { return ways("dp") * ways("zero"); }
  // What was not asked for, of strategies and of their options.
  void add_unread(std::vector<std::string>& cannot) const {
    static const std::set<std::string> known = {"dp", "zero", "tp", "sp", "cp", "pp", "ep"};
    for (const auto& [name, options] : by_name_) {
      if (!known.contains(name)) cannot.push_back("the strategy " + name);
      if (!known.contains(name)) continue;
      options.has("ways");
      for (const std::string& one : options.unread())
        cannot.push_back(fmt::format("{} {{ {} }}", name == "cp" ? "sp" : name, one));
    }
  }

 private:
  std::map<std::string, ReadTable> by_name_;
  const ReadTable none_;
};

// What of a plan both say in their own ways.
struct Translation {
  explicit Translation(const Json& json, const SearchedFor& request)
      : found(json), searched(request), plan(json) {
    if (found.contains("layers")) layers = found.at("layers").get<std::vector<int>>();
    plan.of("pp").has("chunks");  // `layers` has as many
  }
  int stages() const { return plan.ways("pp"); }
  int chunks() const { return std::max(1, static_cast<int>(layers.size()) / stages()); }
  bool even() const {
    return std::all_of(layers.begin(), layers.end(), [&](int n) { return n == layers.front(); });
  }
  std::int64_t microbatch() const { return found.at("microbatch"); }
  std::int64_t microbatches() const { return searched.batch / (plan.data() * microbatch()); }
  // Ranks of TP that split an expert; 0: those that the experts borrow leave no such number.
  int expert_tp() const {
    const int tp = plan.ways("tp"), ep = plan.ways("ep");
    const int others = plan.data() * plan.ways("cp");
    const ReadTable& options = plan.of("ep");
    int borrowed = others % ep == 0 ? 1 : ep % others == 0 ? ep / others : 0;
    if (options.has("borrow"))
      borrowed = options.get("borrow", Json()) == Json::array({"tp"}) ? ep : 0;
    return borrowed > 0 && tp % borrowed == 0 ? tp / borrowed : 0;
  }

  const Json& found;
  const SearchedFor& searched;
  Entries plan;
  std::vector<int> layers;  // of each virtual stage, in model order
  std::vector<std::string> cannot = {};
};

// What neither expresses.
void add_common(Translation& p) {
  const ReadTable& zero = p.plan.of("zero");
  if (zero.text("reduce", "each") == "chunk")
    p.cannot.emplace_back("zero { reduce = \"chunk\" }: gradients are reduced by chunk");
  // Both shard over the ranks of the context as well, wherever there are any.
  if (p.plan.has("zero") && p.plan.has("cp") && !zero.get("sequence", false))
    p.cannot.emplace_back(
        "zero { sequence = false }: state is sharded over the ranks of the context too");
  zero.has("sequence");
  p.plan.of("ep").has("imbalance");  // is for predictions alone
  if (p.found.at("offload") != "none")
    p.cannot.push_back("offload = " + lua_text(p.found.at("offload")));
  p.plan.add_unread(p.cannot);
}

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
      p_.cannot.push_back(fmt::format("the model {}: give its sizes yourself", kind_));
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
  add_common(p);
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

namespace {

struct TitanSchedule {
  const char* name;
  int chunks;  // that a stage has if no layers of chunks are given
};
const std::map<std::string, TitanSchedule> titan_schedules = {
    {"1f1b", {"1F1B", 1}},
    {"gpipe", {"GPipe", 1}},
    {"interleaved", {"Interleaved1F1B", 2}},
    {"looped-bfs", {"LoopedBFS", 2}},
    {"zbv", {"ZBVZeroBubble", 2}},
    {"dualpipev", {"DualPipeV", 2}}};

void titan_ddp(Translation& p) {
  if (p.plan.has("tp") || p.plan.has("pp") || p.plan.has("cp") || p.plan.has("ep"))
    p.cannot.emplace_back("dp beside other axes: DDP goes with none, zero { stage = 3 } does");
  const ReadTable& dp = p.plan.of("dp");
  if (!dp.get("overlap", true)) p.cannot.emplace_back("dp { overlap = false }");
  if (dp.text("reduce", "last") == "last" && p.microbatches() > 1)
    p.cannot.emplace_back("dp { reduce = \"last\" }: DDP reduces after each microbatch");
}

std::string titan_data(Translation& p) {
  int replicas = 1, shards = 1;
  if (p.plan.has("dp")) {
    replicas = p.plan.ways("dp");
    titan_ddp(p);
  }
  std::string more;
  if (p.plan.has("zero")) {
    const ReadTable& zero = p.plan.of("zero");
    const int stage = zero.get("stage", 1);
    if (stage < 3)
      p.cannot.push_back(
          fmt::format("zero {{ stage = {} }}: fully_shard shards parameters", stage));
    replicas = zero.get("replicas", 1);
    shards = p.plan.ways("zero") / replicas;
    more = fmt::format("fsdp_reshard_after_forward = \"{}\"\n",
                       zero.get("keep", false) ? "never" : "always");
    if (zero.text("offload", "none") == "optimizer")
      p.cannot.emplace_back("zero { offload = \"optimizer\" }: it offloads parameters too");
  }
  const bool wrapped = shards > 1 || p.plan.ways("cp") > 1;
  if (!wrapped && p.plan.ways("tp") * p.plan.ways("pp") > 1 && p.searched.precision == "bf16")
    p.cannot.emplace_back(
        "precision = \"bf16\": beside tp or pp it needs fully_shard, zero { stage = 3 }");
  return fmt::format("data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n{}",
                     replicas, shards, more);
}

// The modules of each virtual stage, where they hold unlike numbers of layers.
std::string titan_modules(const std::vector<int>& layers) {
  std::vector<std::string> stages;
  int next = 0;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    std::vector<std::string> names;
    if (s == 0) names.emplace_back("\"tok_embeddings\"");
    for (int i = 0; i < layers[s]; ++i) names.push_back(fmt::format("\"layers.{}\"", next++));
    if (s + 1 == layers.size()) names.insert(names.end(), {"\"norm\"", "\"output\""});
    stages.push_back("  [" + join(names) + "]");
  }
  return "module_fqns_per_model_part = [\n" + join(stages, ",\n") + "\n]\n";
}

std::string titan_stages(Translation& p) {
  std::string text = fmt::format("pipeline_parallel_degree = {}\n", p.stages());
  if (p.stages() == 1) return text;
  const std::string schedule = p.plan.of("pp").text("schedule", "1f1b");
  const auto known = titan_schedules.find(schedule);
  if (known == titan_schedules.end()) {
    p.cannot.push_back(fmt::format("the schedule {}", schedule));
    return text;
  }
  const auto& [name, chunks] = known->second;
  text += fmt::format("pipeline_parallel_schedule = \"{}\"\n", name);
  if ((chunks == 1) != (p.chunks() == 1))
    p.cannot.push_back(fmt::format("the schedule {} with chunks = {}", schedule, p.chunks()));
  if (!p.even()) {
    text += titan_modules(p.layers);
  } else {
    // Both are 1 if left out, and then the first and the last stage have fewer layers.
    text +=
        "pipeline_parallel_first_stage_less_layers = 0\n"
        "pipeline_parallel_last_stage_less_layers = 0\n";
    if (p.chunks() != chunks && p.chunks() > 1)
      text += fmt::format("pipeline_parallel_layers_per_stage = {}\n", p.layers.front());
  }
  return text + fmt::format("pipeline_parallel_microbatch_size = {}\n", p.microbatch());
}

void titan_experts(Translation& p, std::string& text) {
  const ReadTable& ep = p.plan.of("ep");
  const int tp = p.plan.ways("tp"), left = p.expert_tp();
  text += fmt::format("expert_parallel_degree = {}\n", p.plan.ways("ep"));
  if (left == tp || left == 1) {
    text += fmt::format("expert_tensor_parallel_degree = {}\n", left);
  } else {
    p.cannot.push_back(fmt::format("the ranks that ep({}) borrows: of tp it takes all or none",
                                   p.plan.ways("ep")));
  }
  if (ep.text("dispatch", "alltoall") != "alltoall")
    p.cannot.emplace_back("ep { dispatch = \"allgather\" }");
}

std::string titan_layer(Translation& p) {
  const int tp = p.plan.ways("tp"), cp = p.plan.ways("cp");
  std::string text = fmt::format("tensor_parallel_degree = {}\n", tp);
  if (p.plan.has("tp") && !p.plan.has("sp"))
    p.cannot.emplace_back("tp without sp(): its TP splits the sequence between products");
  if (p.plan.of("tp").get("overlap", false)) p.cannot.emplace_back("tp { overlap = true }");
  text += fmt::format("context_parallel_degree = {}\n", cp);
  if (p.searched.sequence % (tp * 2 * cp) != 0 && tp * cp > 1)
    p.cannot.push_back(
        fmt::format("sequence = {}: a multiple of {} is taken", p.searched.sequence, tp * 2 * cp));
  if (p.plan.has("cp")) {
    const ReadTable& options = p.plan.of("cp");
    const std::string form = options.text("form", "ring");
    if (form == "ulysses" || options.get("ulysses", 1) > 1) {
      p.cannot.emplace_back("sp { form = \"ulysses\" }");
    } else {
      text += fmt::format("context_parallel_rotate_method = \"{}\"\n",
                          form == "ring" ? "alltoall" : "allgather");
      if (options.text("balance", "zigzag") == "none")
        p.cannot.emplace_back("sp { balance = \"none\" }: TOML cannot say it");
    }
  }
  if (p.plan.has("ep")) titan_experts(p, text);
  return text;
}

}  // namespace

PlanElsewhere as_torchtitan(const Json& found, const SearchedFor& searched) {
  Translation p(found, searched);
  const std::int64_t local = p.plan.has("pp") ? searched.batch / p.plan.data() : p.microbatch();
  PlanElsewhere made;
  made.text =
      fmt::format("[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n",
                  local, searched.batch, searched.sequence);
  if (searched.precision == "bf16" || searched.precision == "fp32") {
    made.text += fmt::format("mixed_precision_param = \"{}\"\n",
                             searched.precision == "bf16" ? "bfloat16" : "float32");
  } else {
    p.cannot.push_back("precision = " + lua_text(searched.precision));
  }
  if (p.plan.of("zero").text("offload", "none") == "parameters")
    made.text += "enable_cpu_offload = true\n";
  made.text += "\n[parallelism]\n" + titan_data(p) + titan_layer(p) + titan_stages(p);
  const Json& recompute = found.at("recompute");
  if (recompute == "none" || recompute == "selective" || recompute == "full") {
    made.text +=
        fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", recompute.get<std::string>());
    if (recompute == "selective") {
      made.text += "selective_ac_option = \"op\"\n";
      p.cannot.emplace_back(
          "recompute = \"selective\": its own keeps every second product and what attention "
          "returns");
    }
  } else {
    p.cannot.push_back("recompute = " + lua_text(recompute));
  }
  p.cannot.emplace_back("the model's sizes: they are a flavor of its registry");
  add_common(p);
  made.cannot = std::move(p.cannot);
  return made;
}

}  // namespace mw
