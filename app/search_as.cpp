// Writes plans as flags of Megatron-LM (megatron/training/arguments.py of 2025) and as TOML of
// torchtitan (torchtitan/config/job_config.py of 2025), and says what these cannot express.
#include "app/search_as.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

// The entries of a plan by strategy, with what each says of its options.
class Entries {
 public:
  explicit Entries(const Json& found) {
    for (const Json& entry : found.at("entries")) {
      const std::string name = entry.at("plugin");
      // Megatron's sequence parallelism has no ranks of its own; context parallelism has.
      by_name_[name == "sp" && entry.contains("ways") ? "cp" : name] = entry;
    }
  }
  bool has(const std::string& name) const { return by_name_.contains(name); }
  int ways(const std::string& name) const { return has(name) ? at(name).value("ways", 1) : 1; }
  template <class T>
  T get(const std::string& name, const char* option, T otherwise) const {
    return has(name) ? at(name).value(option, otherwise) : otherwise;
  }
  std::string text(const std::string& name, const char* option, const char* otherwise) const {
    return get<std::string>(name, option, otherwise);
  }
  int data() const { return ways("dp") * ways("zero"); }
  std::vector<std::string> others(const std::vector<std::string>& known) const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : by_name_)
      if (std::find(known.begin(), known.end(), name) == known.end()) names.push_back(name);
    return names;
  }

 private:
  const Json& at(const std::string& name) const { return by_name_.at(name); }
  std::map<std::string, Json> by_name_;
};

const std::vector<std::string> known_forms = {"dp", "zero", "tp", "sp", "cp", "pp", "ep"};

// What neither expresses.
void add_common(const Json& found, const Entries& plan, std::vector<std::string>& cannot) {
  for (const std::string& name : plan.others(known_forms)) cannot.push_back("the strategy " + name);
  if (plan.get("zero", "keep", false) && plan.get("zero", "stage", 1) < 3)
    cannot.emplace_back("zero { keep = true }");
  if (plan.text("zero", "reduce", "each") == "chunk")
    cannot.emplace_back("zero { reduce = \"chunk\" }: gradients are reduced by chunk");
  if (plan.get("zero", "sequence", false))
    cannot.emplace_back("zero { sequence = true }: it is so wherever context is split");
  if (found.at("offload") != "none") cannot.push_back("offload = " + lua_text(found.at("offload")));
  if (plan.has("pp"))
    cannot.emplace_back("layers of each stage: even ones, where this plan balances them");
}

class Flags {
 public:
  void add(const std::string& flag) { list_.push_back("--" + flag); }
  void add(const std::string& flag, std::int64_t value) { add(flag + " " + std::to_string(value)); }
  std::string text() const { return join(list_, " \\\n") + "\n"; }

 private:
  std::vector<std::string> list_;
};

void megatron_model(const SearchedFor& searched, Flags& flags, std::vector<std::string>& cannot) {
  const Json& model = searched.model;
  const std::string kind = model.value("kind", "");
  if (kind != "gpt" && kind != "llama" && kind != "moe") {
    cannot.push_back(fmt::format("the model {}: give its sizes yourself", kind));
    return;
  }
  const auto size = [&](const char* flag, const char* key) {
    if (model.contains(key) && model.at(key).is_number_integer())
      flags.add(flag, model.at(key).get<std::int64_t>());
  };
  size("num-layers", "layers");
  size("hidden-size", "hidden");
  size("num-attention-heads", "heads");
  size("ffn-hidden-size", "ffn");
  if (model.contains("kv_heads") && model.at("kv_heads") != model.value("heads", Json())) {
    flags.add("group-query-attention");
    size("num-query-groups", "kv_heads");
  }
  if (kind == "moe") {
    size("num-experts", "experts");
    size("moe-router-topk", "top_k");
    size("moe-ffn-hidden-size", "expert_ffn");
    for (const char* key : {"shared_experts", "dense_layers", "kv_lora_rank"}) {
      if (model.value(key, Json(0)) != 0) cannot.push_back(fmt::format("model.{}", key));
    }
  }
  if (kind != "gpt") {
    flags.add("swiglu");
    flags.add("normalization RMSNorm");
    flags.add("position-embedding-type rope");
    flags.add("disable-bias-linear");
    if (!model.value("tied", false)) flags.add("untie-embeddings-and-output-weights");
  }
}

void megatron_stages(const Entries& plan, const SearchedFor& searched, Flags& flags,
                     std::vector<std::string>& cannot) {
  const int stages = plan.ways("pp"), chunks = plan.get("pp", "chunks", 1);
  if (stages == 1) return;
  flags.add("pipeline-model-parallel-size", stages);
  const std::string schedule = plan.text("pp", "schedule", "1f1b");
  if (schedule != "1f1b" && schedule != "interleaved")
    cannot.push_back(fmt::format("the schedule {}: it has 1f1b and interleaved", schedule));
  if (schedule != "interleaved") return;
  if (searched.layers % (stages * chunks) == 0) {
    flags.add("num-layers-per-virtual-pipeline-stage", searched.layers / (stages * chunks));
  } else {
    cannot.push_back(fmt::format("{} layers on {} chunks", searched.layers, stages * chunks));
  }
}

void megatron_data(const Entries& plan, Flags& flags, std::vector<std::string>& cannot) {
  if (plan.has("dp") && plan.get("dp", "overlap", true)) flags.add("overlap-grad-reduce");
  if (!plan.has("zero")) return;
  const int stage = plan.get("zero", "stage", 1);
  flags.add("use-distributed-optimizer");
  flags.add("overlap-grad-reduce");
  if (plan.get("zero", "overlap_gather", true)) flags.add("overlap-param-gather");
  if (stage > 1) {
    flags.add("use-megatron-fsdp");
    flags.add(stage == 2 ? "data-parallel-sharding-strategy optim_grads"
                         : "data-parallel-sharding-strategy optim_grads_params");
    if (plan.has("pp")) cannot.push_back(fmt::format("zero {{ stage = {} }} with stages", stage));
  }
  if (const int replicas = plan.get("zero", "replicas", 1); replicas > 1) {
    if (stage > 1) cannot.emplace_back("zero { replicas } at stages 2 and 3");
    flags.add("num-distributed-optimizer-instances", replicas);
  }
  const std::string offload = plan.text("zero", "offload", "none");
  if (offload == "optimizer") flags.add("optimizer-cpu-offload");
  if (offload == "parameters") cannot.emplace_back("zero { offload = \"parameters\" }");
}

void megatron_layer(const Entries& plan, Flags& flags, std::vector<std::string>& cannot) {
  flags.add("tensor-model-parallel-size", plan.ways("tp"));
  if (plan.has("sp")) flags.add("sequence-parallel");
  if (plan.has("cp")) {
    const std::string form = plan.text("cp", "form", "ring");
    flags.add("context-parallel-size", plan.ways("cp"));
    flags.add(form == "ring"        ? "cp-comm-type p2p"
              : form == "allgather" ? "cp-comm-type all_gather"
                                    : "cp-comm-type a2a");
    if (plan.get("cp", "ulysses", 1) > 1)
      cannot.emplace_back("sp { ulysses }: see --hierarchical-context-parallel-sizes");
    if (plan.text("cp", "balance", "zigzag") == "none" && form != "ulysses")
      cannot.emplace_back("sp { balance = \"none\" }: parts are always balanced");
  }
  if (plan.has("ep")) {
    flags.add("expert-model-parallel-size", plan.ways("ep"));
    flags.add("moe-token-dispatcher-type " + plan.text("ep", "dispatch", "alltoall"));
    if (plan.has("tp") && !plan.has("sp"))
      cannot.emplace_back("ep with tp and without sp(): --sequence-parallel must be given");
  }
}

}  // namespace

PlanElsewhere as_megatron(const Json& found, const SearchedFor& searched) {
  const Entries plan(found);
  PlanElsewhere made;
  Flags flags;
  megatron_layer(plan, flags, made.cannot);
  megatron_stages(plan, searched, flags, made.cannot);
  megatron_data(plan, flags, made.cannot);
  flags.add("micro-batch-size", found.at("microbatch").get<std::int64_t>());
  flags.add("global-batch-size", searched.batch);
  flags.add("seq-length", searched.sequence);
  flags.add("max-position-embeddings", searched.sequence);
  const Json& recompute = found.at("recompute");
  if (recompute == "full") {
    flags.add("recompute-granularity full");
    flags.add("recompute-method uniform");
    flags.add("recompute-num-layers", 1);
  } else if (recompute == "selective") {
    flags.add("recompute-granularity selective");
  } else if (recompute != "none") {
    made.cannot.push_back("recompute = " + lua_text(recompute));
  }
  if (searched.precision == "bf16" || searched.precision == "fp16") flags.add(searched.precision);
  megatron_model(searched, flags, made.cannot);
  add_common(found, plan, made.cannot);
  made.text = flags.text();
  return made;
}

namespace {

const std::map<std::string, std::string> titan_schedules = {{"1f1b", "1F1B"},
                                                            {"gpipe", "GPipe"},
                                                            {"interleaved", "Interleaved1F1B"},
                                                            {"looped-bfs", "LoopedBFS"},
                                                            {"zbv", "ZBVZeroBubble"},
                                                            {"dualpipev", "DualPipeV"}};

std::string titan_data(const Entries& plan, std::vector<std::string>& cannot) {
  int replicas = 1, shards = 1;
  if (plan.has("dp")) {
    replicas = plan.ways("dp");
    if (plan.has("tp") || plan.has("pp") || plan.has("cp") || plan.has("ep"))
      cannot.emplace_back("dp beside other axes: DDP goes with none, zero { stage = 3 } does");
  }
  std::string more;
  if (plan.has("zero")) {
    const int stage = plan.get("zero", "stage", 1);
    if (stage < 3)
      cannot.push_back(fmt::format("zero {{ stage = {} }}: fully_shard shards parameters", stage));
    replicas = plan.get("zero", "replicas", 1);
    shards = plan.ways("zero") / replicas;
    more = fmt::format("fsdp_reshard_after_forward = \"{}\"\n",
                       plan.get("zero", "keep", false) ? "never" : "always");
    if (plan.text("zero", "offload", "none") == "optimizer")
      cannot.emplace_back("zero { offload = \"optimizer\" }: it offloads parameters too");
  }
  return fmt::format("data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n{}",
                     replicas, shards, more);
}

std::string titan_stages(const Entries& plan, const Json& found, const SearchedFor& searched,
                         std::vector<std::string>& cannot) {
  const int stages = plan.ways("pp"), chunks = plan.get("pp", "chunks", 1);
  std::string text = fmt::format("pipeline_parallel_degree = {}\n", stages);
  if (stages == 1) return text;
  const std::string schedule = plan.text("pp", "schedule", "1f1b");
  const auto name = titan_schedules.find(schedule);
  if (name == titan_schedules.end()) {
    cannot.push_back(fmt::format("the schedule {}", schedule));
  } else {
    text += fmt::format("pipeline_parallel_schedule = \"{}\"\n", name->second);
  }
  if (chunks > 1)
    text += fmt::format("pipeline_parallel_layers_per_stage = {}\n",
                        std::max<std::int64_t>(1, searched.layers / (stages * chunks)));
  return text + fmt::format("pipeline_parallel_microbatch_size = {}\n",
                            found.at("microbatch").get<std::int64_t>());
}

std::string titan_layer(const Entries& plan, std::vector<std::string>& cannot) {
  std::string text = fmt::format("tensor_parallel_degree = {}\n", plan.ways("tp"));
  if (plan.has("tp") && !plan.has("sp"))
    cannot.emplace_back("tp without sp(): its TP splits the sequence between products");
  if (plan.get("tp", "overlap", false)) cannot.emplace_back("tp { overlap = true }");
  text += fmt::format("context_parallel_degree = {}\n", plan.ways("cp"));
  if (plan.has("cp")) {
    const std::string form = plan.text("cp", "form", "ring");
    if (form == "ulysses" || plan.get("cp", "ulysses", 1) > 1) {
      cannot.emplace_back("sp { form = \"ulysses\" }");
    } else {
      text += fmt::format("context_parallel_rotate_method = \"{}\"\n",
                          form == "ring" ? "alltoall" : "allgather");
    }
  }
  if (plan.has("ep")) text += fmt::format("expert_parallel_degree = {}\n", plan.ways("ep"));
  return text;
}

}  // namespace

PlanElsewhere as_torchtitan(const Json& found, const SearchedFor& searched) {
  const Entries plan(found);
  PlanElsewhere made;
  const std::int64_t microbatch = found.at("microbatch");
  const std::int64_t local = plan.has("pp") ? searched.batch / plan.data() : microbatch;
  made.text =
      fmt::format("[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n",
                  local, searched.batch, searched.sequence);
  if (searched.precision == "bf16") made.text += "mixed_precision_param = \"bfloat16\"\n";
  if (searched.precision == "fp16") made.cannot.emplace_back("precision = \"fp16\"");
  if (plan.text("zero", "offload", "none") == "parameters")
    made.text += "enable_cpu_offload = true\n";
  made.text += "\n[parallelism]\n" + titan_data(plan, made.cannot) +
               titan_layer(plan, made.cannot) + titan_stages(plan, found, searched, made.cannot);
  const Json& recompute = found.at("recompute");
  const bool named = recompute == "none" || recompute == "selective" || recompute == "full";
  if (named) {
    made.text +=
        fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n", recompute.get<std::string>());
    if (recompute == "selective") made.text += "selective_ac_option = \"op\"\n";
  } else {
    made.cannot.push_back("recompute = " + lua_text(recompute));
  }
  made.cannot.emplace_back("the model's sizes: they are a flavor of its registry");
  add_common(found, plan, made.cannot);
  return made;
}

}  // namespace mw
