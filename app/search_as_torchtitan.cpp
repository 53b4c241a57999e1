// Writes plans as TOML of torchtitan (v0.2.2, the last release whose jobs are TOML files), and says
// what it cannot express. The keys that it may write are listed in tests/cli/search_as.json, which
// a test holds the output to.
#include <fmt/format.h>

#include <map>

#include "app/search_as_plan.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

struct TitanSchedule {
  const char* name;
  int chunks;  // of a stage, if the TOML gives no layers of chunks
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
  p.add_common();
  made.cannot = std::move(p.cannot);
  return made;
}

}  // namespace mw
