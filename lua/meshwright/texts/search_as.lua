-- Writes plans that a search found as flags of Megatron-LM (release core_v0.19.0) and as TOML of
-- torchtitan (v0.2.2, the last release whose jobs are TOML files), and says what these cannot
-- express. What it may write is listed in tests/cli/search_as.json, which a test holds it to.
local format = require "meshwright.format"

-- Reads keys of a table, and knows which: what nobody asked for is not expressed.
local function reader(given)
  local read = {}
  local function get(_, key, otherwise)
    read[key] = true
    local value = given and given[key]
    if value == nil then return otherwise end
    return math.type(value) == "float" and math.tointeger(value) or value
  end
  local function add_unread(list, form)
    for key, value in pairs(given or {}) do
      if not read[key] and key:sub(1, 1) ~= "$" then
        list[#list + 1] = form:format(key .. " = " .. format.lua(value))
      end
    end
  end
  return setmetatable({ add_unread = add_unread }, { __call = get })
end

local known = { dp = true, zero = true, tp = true, sp = true, cp = true, pp = true, ep = true }
local none = reader()

-- One plan on its way into another program's words. An sp with ways of its own, context
-- parallelism, is "cp": Megatron's sequence parallelism has no ranks of its own.
local function translation(found, searched)
  local t, names = { found = found, searched = searched, microbatch = found.microbatch, cannot = {} }, {}
  local entries = {}
  for _, entry in ipairs(found.entries) do
    local name = entry.plugin == "sp" and entry.ways ~= nil and "cp" or entry.plugin
    if not entries[name] then
      names[#names + 1] = name
      entries[name] = reader(entry)
      entries[name] "plugin"
    end
  end
  table.sort(names)
  function t.has(name) return entries[name] ~= nil end
  function t.of(name) return entries[name] or none end
  function t.ways(name) return t.of(name)("ways", 1) end
  function t.refuse(text, ...) t.cannot[#t.cannot + 1] = text:format(...) end

  t.layers = found.layers or {}  -- of each virtual stage, in model order
  t.of("pp") "chunks"            -- `layers` has as many
  t.stages, t.data = t.ways "pp", t.ways "dp" * t.ways "zero"
  t.chunks = math.max(1, #t.layers // t.stages)
  t.microbatches = searched.batch // (t.data * t.microbatch)
  t.even = true
  for _, count in ipairs(t.layers) do t.even = t.even and count == t.layers[1] end

  -- Ranks of TP that split an expert; 0: those that the experts borrow leave no such number.
  function t.expert_tp()
    local tp, ep, others = t.ways "tp", t.ways "ep", t.data * t.ways "cp"
    local borrowed = others % ep == 0 and 1 or ep % others == 0 and ep // others or 0
    local borrow = t.of("ep") "borrow"
    if borrow ~= nil then
      borrowed = type(borrow) == "userdata" and #borrow == 1 and borrow[1] == "tp" and ep or 0
    end
    return borrowed > 0 and tp % borrowed == 0 and tp // borrowed or 0
  end

  -- Refuses what neither program expresses, and what nobody asked for.
  function t.add_common()
    local zero = t.of "zero"
    if zero("reduce", "each") == "chunk" then
      t.refuse 'zero { reduce = "chunk" }: gradients are reduced by chunk'
    end
    -- Both shard over the ranks of the context as well, wherever there are any.
    if t.has "zero" and t.has "cp" and not zero("sequence", false) then
      t.refuse "zero { sequence = false }: state is sharded over the ranks of the context too"
    end
    zero "sequence"
    t.of("ep") "imbalance"  -- predictions alone have it
    if found.offload ~= "none" then t.refuse("offload = %s", format.lua(found.offload)) end
    for _, name in ipairs(names) do
      if known[name] then
        entries[name] "ways"
        entries[name].add_unread(t.cannot, (name == "cp" and "sp" or name) .. " { %s }")
      else
        t.refuse("the strategy %s", name)
      end
    end
  end
  return t
end

-- --- Megatron-LM ---

local function megatron_experts(t, model, add, size)
  local ffn = model("expert_ffn", model("ffn", 0))
  size("num-experts", "experts")
  size("moe-router-topk", "top_k")
  add("moe-ffn-hidden-size", ffn)
  add "moe-grouped-gemm"
  local shared, dense, ahead = model("shared_experts", 0), model("dense_layers", 0), model("predict_ahead", 0)
  if shared > 0 then add("moe-shared-expert-intermediate-size", shared * ffn) end
  if dense > 0 then
    -- Without the modules that predict further tokens, which Megatron-LM counts apart.
    local layers = t.searched.layers - ahead
    add("moe-layer-freq", ('"([0]*%d+[1]*%d)"'):format(dense, layers - dense))
  end
  local balance = model("balance", "aux")
  if balance == "aux" then
    add("moe-router-load-balancing-type", "seq_aux_loss")
    add("moe-aux-loss-coeff", format.number(model("aux_weight", 0.01)))
  elseif balance == "none" then
    add("moe-router-load-balancing-type", "none")
  else
    t.refuse("model.balance = %s", format.lua(balance))
  end
  if model("jitter", 0) > 0 then add("moe-input-jitter-eps", format.number(model "jitter")) end
  if model("noise", 0) > 0 then t.refuse("model.noise = %s", format.lua(model "noise")) end
  if model("groups", 1) > 1 then
    size("moe-router-num-groups", "groups")
    add("moe-router-group-topk", model("group_top", 1))
  end
  if ahead > 0 then
    add("mtp-num-layers", ahead)
    add("mtp-loss-scaling-factor", format.number(model("ahead_weight", 0.3)))
    if t.stages > 1 then t.refuse("model.predict_ahead on stages: its layout says where these modules are") end
  end
  local score = model "score"
  if score then add("moe-router-score-function", score) end
end

local function megatron_attention(t, model, add, size)
  local heads = model("heads", 1)
  local groups, tp = model("kv_heads", heads), t.ways "tp"
  if groups ~= heads then
    add "group-query-attention"
    add("num-query-groups", groups)
    if groups % tp ~= 0 and tp % groups ~= 0 then t.refuse("model.kv_heads = %d with tp(%d)", groups, tp) end
  end
  local attention = model "attention"
  if attention then add("attention-backend", attention) end
  if model "kv_lora_rank" == nil then return end
  add "multi-latent-attention"
  add("rope-type", "rope")
  add "no-rope-fusion"  -- which knows latent attention with another type alone
  size("kv-lora-rank", "kv_lora_rank")
  size("q-lora-rank", "q_lora_rank")
  size("qk-head-dim", "qk_nope_head_dim")
  size("qk-pos-emb-head-dim", "qk_rope_head_dim")
  size("v-head-dim", "v_head_dim")
end

-- Flags of a model's sizes, where its table gives them.
local function megatron_model(t, add)
  local model = reader(t.searched.model)
  local kind = model("kind", "")
  if kind ~= "gpt" and kind ~= "llama" and kind ~= "moe" then
    return t.refuse("mw.%s: give its sizes yourself", kind)
  end
  local function size(flag, key)
    local value = model(key)
    if value ~= nil then add(flag, value) end
  end
  size("num-layers", "layers")
  size("hidden-size", "hidden")
  size("num-attention-heads", "heads")
  size("ffn-hidden-size", "ffn")
  if model("head_dim", 0) > 0 then size("kv-channels", "head_dim") end
  megatron_attention(t, model, add, size)
  if kind == "moe" then megatron_experts(t, model, add, size) end
  if kind ~= "gpt" then
    add "swiglu"
    add("normalization", "RMSNorm")
    add("position-embedding-type", "rope")
    add "disable-bias-linear"
  end
  local theta, eps = model "rope_theta", model "norm_eps"
  if theta then add("rotary-base", ("%.0f"):format(theta)) end
  if eps then add("norm-epsilon", format.number(eps)) end
  if not model("tied", kind == "gpt") then add "untie-embeddings-and-output-weights" end
  add("max-position-embeddings", math.max(t.searched.sequence, model("positions", 0)))
  add("attention-dropout", 0)  -- these are 0.1 if left out
  add("hidden-dropout", 0)
  local vocab = model "vocab"
  if vocab then t.refuse("model.vocab = %d: the tokenizer says it", vocab) end
  model.add_unread(t.cannot, "model.%s")
end

local function megatron_stages(t, add)
  if t.stages == 1 then return end
  add("pipeline-model-parallel-size", t.stages)
  local schedule = t.of("pp")("schedule", "1f1b")
  if schedule ~= "1f1b" and schedule ~= "interleaved" then
    t.refuse("the schedule %s: it has 1f1b and interleaved", schedule)
  end
  if schedule == "interleaved" and t.microbatches % t.stages ~= 0 then
    t.refuse("%d microbatches on %d stages: interleaved stages take a multiple of the stages", t.microbatches, t.stages)
  end
  if not t.even then
    -- "Et*3|t*4|t*3L": the layers of each virtual stage, with the embedding and the loss.
    local stages = {}
    for k, count in ipairs(t.layers) do stages[k] = count == 0 and "" or "t*" .. count end
    add("pipeline-model-parallel-layout", ('"E%sL"'):format(table.concat(stages, "|")))
  elseif t.chunks > 1 then
    add("num-layers-per-virtual-pipeline-stage", t.layers[1])
  end
end

local function megatron_data(t, add)
  local dp, zero = t.of "dp", t.of "zero"
  if t.has "dp" and dp("overlap", true) then add "overlap-grad-reduce" end
  if dp("reduce", "last") == "each" then t.refuse 'dp { reduce = "each" }: gradients are reduced once a step' end
  if not t.has "zero" then return end
  local stage = zero("stage", 1)
  add "use-distributed-optimizer"
  if not t.has "dp" then add "overlap-grad-reduce" end
  if zero("overlap_gather", true) then add "overlap-param-gather" end
  if stage > 1 then
    add "use-megatron-fsdp"
    add("data-parallel-sharding-strategy", stage == 2 and "optim_grads" or "optim_grads_params")
    add("ckpt-format", "fsdp_dtensor")  -- it takes no other
    if t.has "pp" then t.refuse("zero { stage = %d } with stages", stage) end
    if zero("keep", false) then t.refuse "zero { keep = true }: parameters are gathered again for backward" end
  end
  local replicas, offload = zero("replicas", 1), zero("offload", "none")
  if replicas > 1 then add("num-distributed-optimizer-instances", replicas) end
  if offload == "parameters" then t.refuse 'zero { offload = "parameters" }' end
  if offload ~= "optimizer" then return end
  add "optimizer-cpu-offload"
  add "use-precision-aware-optimizer"  -- the first needs it
end

local function megatron_context(t, add)
  if not t.has "cp" then return end
  local cp, ways, sequence = t.of "cp", t.ways "cp", t.searched.sequence
  local form = cp("form", "ring")
  add("context-parallel-size", ways)
  add("cp-comm-type", form == "ring" and "p2p" or form == "allgather" and "all_gather" or "a2a")
  if cp("balance", "zigzag") == "none" and form ~= "ulysses" then
    t.refuse 'sp { balance = "none" }: parts are always balanced'
  end
  if sequence % (2 * ways) ~= 0 then
    t.refuse("sequence = %d on %d ranks: a multiple of %d is taken", sequence, ways, 2 * ways)
  end
end

local function megatron_layer(t, add)
  local tp = t.ways "tp"
  add("tensor-model-parallel-size", tp)
  t.of("tp") "overlap"  -- gradients of weights always lie beside the all-reduces
  if t.has "sp" and tp > 1 then add "sequence-parallel" end
  megatron_context(t, add)
  if not t.has "ep" then return end
  local ep, left = t.of "ep", t.expert_tp()
  add("expert-model-parallel-size", t.ways "ep")
  if left == 0 then
    t.refuse("the ranks that ep(%d) borrows", t.ways "ep")
  elseif tp > 1 then
    add("expert-tensor-parallel-size", left)
  end
  add("moe-token-dispatcher-type", ep("dispatch", "alltoall"))
  if ep("overlap", false) then
    if (t.searched.model.shared_experts or 0) > 0 then
      add "moe-shared-expert-overlap"
    else
      t.refuse "ep { overlap = true } without shared experts"
    end
  end
  if tp > 1 and not t.has "sp" then
    t.refuse "ep with tp and without sp(): --sequence-parallel must be given"
  end
end

local function megatron_recompute(t, add)
  local recompute = t.found.recompute
  if recompute == "full" then
    add("recompute-granularity", "full")
    add("recompute-method", "uniform")
    add("recompute-num-layers", 1)
  elseif recompute == "selective" then
    add("recompute-granularity", "selective")
  elseif recompute ~= "none" then
    t.refuse("recompute = %s", format.lua(recompute))
  end
end

local function megatron(t)
  local flags = {}
  local function add(flag, value)
    flags[#flags + 1] = "--" .. flag .. (value == nil and "" or " " .. value)
  end
  local precision = t.searched.precision
  megatron_layer(t, add)
  megatron_stages(t, add)
  megatron_data(t, add)
  add("micro-batch-size", t.microbatch)
  add("global-batch-size", t.searched.batch)
  add("seq-length", t.searched.sequence)
  megatron_recompute(t, add)
  if precision == "bf16" or precision == "fp16" then
    add(precision)
  elseif precision ~= "fp32" then
    t.refuse("precision = %s", format.lua(precision))
  end
  megatron_model(t, add)
  t.add_common()
  -- Its checks ask for these values of a variable of the environment.
  local before = t.of("zero")("stage", 1) > 1 and "unset CUDA_DEVICE_MAX_CONNECTIONS"
    or t.ways "tp" * t.ways "cp" > 1 and "export CUDA_DEVICE_MAX_CONNECTIONS=1" or ""
  return table.concat(flags, " \\\n") .. "\n", before
end

-- --- torchtitan ---

-- The name of a schedule, and its chunks of a stage where the TOML gives no layers of chunks.
local titan_schedules = {
  ["1f1b"] = { "1F1B", 1 }, gpipe = { "GPipe", 1 }, interleaved = { "Interleaved1F1B", 2 },
  ["looped-bfs"] = { "LoopedBFS", 2 }, zbv = { "ZBVZeroBubble", 2 }, dualpipev = { "DualPipeV", 2 },
}

local function titan_ddp(t)
  if t.has "tp" or t.has "pp" or t.has "cp" or t.has "ep" then
    t.refuse "dp beside other axes: DDP goes with none, zero { stage = 3 } does"
  end
  local dp = t.of "dp"
  if not dp("overlap", true) then t.refuse "dp { overlap = false }" end
  if dp("reduce", "last") == "last" and t.microbatches > 1 then
    t.refuse 'dp { reduce = "last" }: DDP reduces after each microbatch'
  end
end

local function titan_data(t, add)
  local replicas, shards, keep = 1, 1, nil
  if t.has "dp" then
    replicas = t.ways "dp"
    titan_ddp(t)
  end
  if t.has "zero" then
    local zero = t.of "zero"
    local stage = zero("stage", 1)
    if stage < 3 then t.refuse("zero { stage = %d }: fully_shard shards parameters", stage) end
    replicas = zero("replicas", 1)
    shards = t.ways "zero" // replicas
    keep = zero("keep", false)
    if zero("offload", "none") == "optimizer" then
      t.refuse 'zero { offload = "optimizer" }: it offloads parameters too'
    end
  end
  local wrapped = shards > 1 or t.ways "cp" > 1
  if not wrapped and t.ways "tp" * t.ways "pp" > 1 and t.searched.precision == "bf16" then
    t.refuse 'precision = "bf16": beside tp or pp it needs fully_shard, zero { stage = 3 }'
  end
  add("data_parallel_replicate_degree", replicas)
  add("data_parallel_shard_degree", shards)
  if keep ~= nil then add("fsdp_reshard_after_forward", keep and '"never"' or '"always"') end
end

-- The modules of each virtual stage, where they hold unlike numbers of layers.
local function titan_modules(layers)
  local stages, next = {}, 0
  for s, count in ipairs(layers) do
    local names = { s == 1 and '"tok_embeddings"' or nil }
    for _ = 1, count do
      names[#names + 1] = ('"layers.%d"'):format(next)
      next = next + 1
    end
    if s == #layers then names[#names + 1] = '"norm", "output"' end
    stages[s] = ("  [%s]"):format(table.concat(names, ", "))
  end
  return ("[\n%s\n]"):format(table.concat(stages, ",\n"))
end

local function titan_stages(t, add)
  add("pipeline_parallel_degree", t.stages)
  if t.stages == 1 then return end
  local schedule = t.of("pp")("schedule", "1f1b")
  if not titan_schedules[schedule] then return t.refuse("the schedule %s", schedule) end
  local name, chunks = table.unpack(titan_schedules[schedule])
  add("pipeline_parallel_schedule", ('"%s"'):format(name))
  if (chunks == 1) ~= (t.chunks == 1) then t.refuse("the schedule %s with chunks = %d", schedule, t.chunks) end
  if not t.even then
    add("module_fqns_per_model_part", titan_modules(t.layers))
  else
    -- Both are 1 if left out, and then the first and the last stage have fewer layers.
    add("pipeline_parallel_first_stage_less_layers", 0)
    add("pipeline_parallel_last_stage_less_layers", 0)
    if t.chunks ~= chunks and t.chunks > 1 then add("pipeline_parallel_layers_per_stage", t.layers[1]) end
  end
  add("pipeline_parallel_microbatch_size", t.microbatch)
end

local function titan_experts(t, add)
  local tp, left, ways = t.ways "tp", t.expert_tp(), t.ways "ep"
  add("expert_parallel_degree", ways)
  if left == tp or left == 1 then
    add("expert_tensor_parallel_degree", left)
  else
    t.refuse("the ranks that ep(%d) borrows: of tp it takes all or none", ways)
  end
  if t.of("ep")("dispatch", "alltoall") ~= "alltoall" then t.refuse 'ep { dispatch = "allgather" }' end
end

local function titan_layer(t, add)
  local tp, cp, sequence = t.ways "tp", t.ways "cp", t.searched.sequence
  add("tensor_parallel_degree", tp)
  if t.has "tp" and not t.has "sp" then
    t.refuse "tp without sp(): its TP splits the sequence between products"
  end
  if t.of("tp")("overlap", false) then t.refuse "tp { overlap = true }" end
  add("context_parallel_degree", cp)
  if sequence % (tp * 2 * cp) ~= 0 and tp * cp > 1 then
    t.refuse("sequence = %d: a multiple of %d is taken", sequence, tp * 2 * cp)
  end
  if t.has "cp" then
    local options = t.of "cp"
    local form = options("form", "ring")
    if form == "ulysses" or options("ulysses", 1) > 1 then
      t.refuse 'sp { form = "ulysses" }'
    else
      add("context_parallel_rotate_method", form == "ring" and '"alltoall"' or '"allgather"')
      if options("balance", "zigzag") == "none" then t.refuse 'sp { balance = "none" }: TOML cannot say it' end
    end
  end
  if t.has "ep" then titan_experts(t, add) end
end

local function titan_training(t, add)
  local searched = t.searched
  add("local_batch_size", t.has "pp" and searched.batch // t.data or t.microbatch)
  add("global_batch_size", searched.batch)
  add("seq_len", searched.sequence)
  local names = { bf16 = '"bfloat16"', fp32 = '"float32"' }
  if names[searched.precision] then
    add("mixed_precision_param", names[searched.precision])
  else
    t.refuse("precision = %s", format.lua(searched.precision))
  end
  if t.of("zero")("offload", "none") == "parameters" then add("enable_cpu_offload", "true") end
end

local function titan_recompute(t, add)
  local recompute = t.found.recompute
  if recompute ~= "none" and recompute ~= "selective" and recompute ~= "full" then
    return t.refuse("recompute = %s", format.lua(recompute))
  end
  add("mode", ('"%s"'):format(recompute))
  if recompute == "selective" then
    add("selective_ac_option", '"op"')
    t.refuse 'recompute = "selective": its own keeps every second product and what attention returns'
  end
end

local function torchtitan(t)
  local function lines(write)
    local list = {}
    write(t, function(key, value) list[#list + 1] = ("%s = %s\n"):format(key, value) end)
    return table.concat(list)
  end
  local text = "[training]\n" .. lines(titan_training)
  local stages, layer, data = lines(titan_stages), lines(titan_layer), lines(titan_data)
  text = text .. "\n[parallelism]\n" .. data .. layer .. stages
  local recompute = lines(titan_recompute)
  if recompute ~= "" then text = text .. "\n[activation_checkpoint]\n" .. recompute end
  t.refuse "the model's sizes: they are a flavor of its registry"
  t.add_common()
  return text, ""
end

-- The text, a command of the shell that must come before it ("": none), both for people with what
-- is not expressed as comments, and what that is.
local function written(software, found, searched)
  local t = translation(found, searched)
  local text, before = software(t)
  local shown = {}
  for _, one in ipairs(t.cannot) do shown[#shown + 1] = "# not expressed: " .. one .. "\n" end
  if before ~= "" then shown[#shown + 1] = "# before it: " .. before .. "\n" end
  return { text, before, table.concat(shown) .. text, table.unpack(t.cannot) }
end

-- For each plan of `best`, both.
return function(given)
  local all = {}
  for k, found in ipairs(given.best) do
    all[k] = { written(megatron, found, given.searched), written(torchtitan, found, given.searched) }
  end
  return all
end
