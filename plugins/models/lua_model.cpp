// Kinds of models and composite ops that Lua files describe. lua/meshwright/models/NAME.lua has
// the options, the graph and the Hugging Face configuration of a kind;
// lua/meshwright/composites.lua has ops that consist of several others. A Lua state of this
// library, apart from the scripts' state, loads a file at the first use of its kind or op.
#include <fmt/format.h>

#include <exception>
#include <lua.hpp>
#include <map>
#include <mutex>
#include <utility>

#include "composed.h"
#include "luajson/luajson.h"
#include "meshwright/block_op.h"
#include "meshwright/engine/files.h"
#include "meshwright/hf_config.h"
#include "meshwright/inputs.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

class ModelFiles {
 public:
  static ModelFiles& get() {
    static auto* const files = new ModelFiles();  // no order of destruction among statics
    return *files;
  }

  // Returns what the function `what` of lua/meshwright/kinds.lua does for a kind. `reach`: where it
  // finds the ops that a graph calls. Errors of the files' ops are thrown as they are.
  Json call(const char* what, const std::string& kind, const std::vector<Json>& arguments,
            const std::shared_ptr<const ScriptReach>& reach = nullptr) {
    const std::lock_guard lock(mutex_);
    const int top = lua_gettop(lua_);  // a file may call an op that is of a file itself
    const auto before = std::exchange(reach_, reach);
    luaL_checkstack(lua_, LUA_MINSTACK, nullptr);
    lua_rawgeti(lua_, LUA_REGISTRYINDEX, kinds_);
    lua_pushstring(lua_, what);
    lua_pushstring(lua_, kind.c_str());
    for (const Json& argument : arguments) push_as_lua(lua_, argument);
    const int status = lua_pcall(lua_, static_cast<int>(arguments.size()) + 2, 1, 0);
    reach_ = before;
    if (status != LUA_OK) fail();
    Json result = json_from_lua(lua_, -1, kind);
    lua_settop(lua_, top);
    return result;
  }

 private:
  using Function = int(ModelFiles&, lua_State*);

  ModelFiles() : lua_(luaL_newstate()) {
    if (lua_ == nullptr) throw std::bad_alloc();
    *static_cast<ModelFiles**>(lua_getextraspace(lua_)) = this;
    luaL_openlibs(lua_);
    lua_getglobal(lua_, "package");
    lua_pushstring(lua_, (share_folder() / "lua" / "?.lua").c_str());
    lua_setfield(lua_, -2, "path");
    lua_getfield(lua_, -1, "preload");
    lua_pushcfunction(lua_, open_core);
    lua_setfield(lua_, -2, "meshwright.core");
    lua_getglobal(lua_, "require");
    lua_pushstring(lua_, "meshwright.kinds");
    if (lua_pcall(lua_, 1, 1, 0) != LUA_OK) fail();
    kinds_ = luaL_ref(lua_, LUA_REGISTRYINDEX);
  }

  // Throws what a function of this class threw while Lua ran, or else what Lua says.
  [[noreturn]] void fail() {
    const char* text = lua_tostring(lua_, -1);
    const std::string said = text == nullptr ? "" : text;
    lua_pop(lua_, 1);
    if (const auto thrown = std::exchange(thrown_, nullptr)) std::rethrow_exception(thrown);
    throw Error(
        Stage::environment, "kit.templates", "",
        fmt::format("cannot read the models of {}: {}", (share_folder() / "lua").string(), said),
        "build or install again");
  }

  // What the recorder of graphs (lua/meshwright/model.lua) needs of the program.
  static int open_core(lua_State* lua) {
    static const luaL_Reg functions[] = {
        {"op", guarded<op>}, {"refuse", guarded<refuse>}, {"place", guarded<place>}, {}};
    luaL_newlib(lua, functions);
    return 1;
  }

  // Keeps what a function throws, and ends the call of Lua, which unwinds by an exception of its
  // own.
  template <Function function>
  static int guarded(lua_State* lua) {
    ModelFiles& files = **static_cast<ModelFiles**>(lua_getextraspace(lua));
    try {
      return function(files, lua);
    } catch (const std::exception&) {
      files.thrown_ = std::current_exception();
    }
    return luaL_error(lua, "see thrown_");
  }

  static int op(ModelFiles& files, lua_State* lua) {
    const std::string name = luaL_checkstring(lua, 1);
    const lua_Integer given = luaL_checkinteger(lua, 2);
    lua_pushinteger(lua, check_call(name, given, json_from_lua(lua, 3, name), files.reach_));
    return 1;
  }
  static int refuse(ModelFiles&, lua_State* lua) {
    throw Error(Stage::options, "script.argument", "", luaL_checkstring(lua, 1),
                luaL_optstring(lua, 2, ""));
  }
  static int place(ModelFiles&, lua_State*) { return 0; }

  lua_State* lua_;
  int kinds_ = LUA_NOREF;  // what kinds.lua returned
  std::recursive_mutex mutex_;
  std::shared_ptr<const ScriptReach> reach_;
  std::exception_ptr thrown_;
};

// An option as a file declares it: { name = "layers", type = "integer", doc = …, range = … }.
void add_option(Options& options, const std::string& kind, const Json& one) {
  const std::string name = one.at("name"), type = one.at("type"), doc = one.at("doc");
  if (type == "integer") options.integer(name, doc);
  if (type == "number") options.number(name, doc);
  if (type == "boolean") options.boolean(name, doc);
  if (type == "text") options.text(name, doc);
  if (type == "table") options.table(name, doc);
  if (type == "choice") options.choice(name, one.at("choices"), doc);
  if (one.contains("range")) options.range(one.at("range")[0], one.at("range")[1]);
  if (one.contains("at_least")) options.at_least(one.at("at_least"));
  if (one.contains("unit")) options.unit(one.at("unit"));
  if (one.contains("fallback")) options.fallback(one.at("fallback"));
  if (one.value("optional", false)) options.optional();
  if (one.value("positional", false)) options.positional(name);
  if (one.value("usual", false)) {
    options.usual([kind, name](const Json& values) {
      return ModelFiles::get().call("usual", kind, {name, values}) == Json(true);
    });
  }
}

// What Lua has in place of null and of a list without entries (hf.null, hf.no_entries).
Json with_nulls(const Json& value) {
  if (value == Json{{"null", true}}) return nullptr;
  if (value == Json{{"no_entries", true}}) return Json::array();
  return value;
}

HfKey read_key(const Json& given) {
  HfKey key;
  for (const Json& name : given.at("names")) key.names.push_back(name);
  key.value = with_nulls(given.value("value", Json()));
  key.option = given.value("option", "");
  key.unread = given.value("unread", false);
  key.absent = with_nulls(given.value("absent", Json()));
  const Json alike = given.value("alike", Json::array());
  for (const Json& one : alike) key.alike.push_back(with_nulls(one));
  return key;
}

}  // namespace

void check_in_lua(const std::string& kind, const std::vector<Json>& arguments,
                  const std::string& op) {
  Problems problems;
  for (const Json& one : ModelFiles::get().call("check", kind, arguments)) {
    const std::string said = one.at("message"), key = one.at("key");
    problems.add(Stage::options, one.at("code"), op.empty() ? key : "",
                 op.empty() ? said : op + ": " + said, one.at("hint"));
  }
  problems.throw_if_any();
}

Options options_in_lua(const std::string& kind) {
  Options options;
  for (const Json& one : ModelFiles::get().call("options", kind, {}))
    add_option(options, kind, one);
  return options;
}

namespace {

class LuaModel : public Model, public HfModel, public ModelInputs {
 public:
  LuaModel(const char* kind, const Values& values) : kind_(kind), values_(values) {
    check_in_lua(kind, {values.json()});
    Json graph = call("describe", {values.json()});
    graph["name"] = kind;
    graph["tied"] = false;
    graph[model_kind_key] = true;
    Values read(std::move(graph));
    read.set_reach(values.reach());
    graph_ = composed_model(read);
  }

  std::int64_t vocab() const override { return graph_->vocab(); }
  bool batch_is_a_size() const override { return true; }
  Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    return graph_->build(batch, sequence, tokens);
  }

  std::vector<DataInput> inputs(std::int64_t sequence) const override {
    return dynamic_cast<const ModelInputs&>(*graph_).inputs(sequence);
  }

  std::optional<HfConfig> hf_config(std::int64_t sequence) const override {
    const Json given = call("hf", {values_.json(), sequence});
    HfConfig config;
    config.types = given.at("types").get<std::vector<std::string>>();
    config.architecture = given.at("architecture");
    for (const Json& key : given.at("keys")) config.keys.push_back(read_key(key));
    config.absent = given.value("absent", Json::object());
    const Json more = given.value("more", Json::object());
    for (const auto& [name, value] : more.items()) config.more[name] = with_nulls(value);
    config.prefix = given.value("prefix", "");
    config.lacks_optional = given.value("lacks_optional", false);
    config.none = given.value("none", "");
    return config;
  }

 private:
  Json call(const char* what, const std::vector<Json>& arguments) const {
    return ModelFiles::get().call(what, kind_, arguments, values_.reach());
  }

  const char* kind_;
  const Values values_;
  std::unique_ptr<Model> graph_;
};

template <const char* kind>
class KindOfModel final : public LuaModel {
 public:
  static Options options() { return options_in_lua(kind); }
  explicit KindOfModel(const Values& values) : LuaModel(kind, values) {}
};

// An op that is several others (lua/meshwright/composites.lua).
template <const char* kind>
class LuaOp final : public BlockOp {
 public:
  static Options options() { return options_in_lua(kind); }
  explicit LuaOp(const Values& values) : values_(values) {}

  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    if (b.dims(inputs[0]).empty()) {
      throw Error(Stage::options, "model.dims", "", fmt::format("{}: x has no dims", name),
                  "x:" + std::string(kind) + "() of a value (batch, seq, hidden)");
    }
    const Json record = record_of(b.dims(inputs[0]).back().name());
    std::vector<std::vector<int>> made{inputs};
    const auto value = [&](const Json& ref) {
      return made.at(ref.at(0)).at(ref.at(1).get<std::size_t>() - 1);
    };
    for (const Json& one : record.at("ops")) {
      std::vector<int> from;
      for (const Json& ref : one.at("inputs")) from.push_back(value(ref));
      const std::string local = one.contains("name") ? "." + one.at("name").get<std::string>() : "";
      made.push_back(make_block_op(one.at("op"), one.value("options", Json()), values_.reach())
                         ->append(b, name + local, from));
    }
    return {value(record.at("result"))};
  }

 private:
  // What the file records for an input whose last dim is `last`: once, as layers repeat.
  Json record_of(const std::string& last) const {
    const std::lock_guard lock(mutex_);
    Json& known = records_[last];
    if (known.is_null())
      known = ModelFiles::get().call("body", kind, {values_.json(), last}, values_.reach());
    return known;
  }

  const Values values_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Json> records_;
};

constexpr char attention_op[] = "attention", mlp_op[] = "mlp", experts_op[] = "experts",
               dropout_op[] = "dropout", drop_path_op[] = "drop_path", noise_op[] = "noise";

constexpr char gemma2[] = "gemma2", gemma3[] = "gemma3", gpt[] = "gpt", gpt_oss[] = "gpt_oss",
               llama[] = "llama", mamba2[] = "mamba2", moe[] = "moe", olmo2[] = "olmo2",
               qwen3[] = "qwen3", qwen3_next[] = "qwen3_next";

}  // namespace

MESHWRIGHT_BUILT_IN(
    model<KindOfModel<llama>>(llama, "Llama decoder: RMSNorm, rotary positions, SwiGLU, no bias"),
    model<KindOfModel<gpt>>(gpt, "GPT-2 decoder: LayerNorm, learned positions, GELU, biases"),
    model<KindOfModel<moe>>(
        moe, "Llama decoder with experts: top-k router, shared experts, dense leading layers"),
    model<KindOfModel<gemma2>>(gemma2, "Gemma 2: every second layer sees a window; soft caps"),
    model<KindOfModel<gemma3>>(gemma3, "Gemma 3 (text): five layers of six see a window"),
    model<KindOfModel<qwen3>>(qwen3, "Qwen3 decoder: queries and keys are normed"),
    model<KindOfModel<gpt_oss>>(gpt_oss, "gpt-oss: experts, sinks of attention, windows, biases"),
    model<KindOfModel<qwen3_next>>(qwen3_next,
                                   "Qwen3-Next: gated delta rule, gated attention, experts"),
    model<KindOfModel<olmo2>>(olmo2, "OLMo 2 decoder: norms after each block, not before"),
    model<KindOfModel<mamba2>>(mamba2,
                               "Mamba-2 decoder: a convolution and a recurrence, no attention"));

MESHWRIGHT_BUILT_IN(
    op<LuaOp<attention_op>>(attention_op,
                            "x (batch, seq, hidden) -> the same: q, k, v, rotary positions, "
                            "causal attention, and the projection back"),
    op<LuaOp<dropout_op>>(
        dropout_op, "x (batch, seq, …) -> the same: in training, a share of elements is zero"),
    op<LuaOp<drop_path_op>>(
        drop_path_op, "x (batch, seq, …) -> the same: in training, a share of samples is zero"),
    op<LuaOp<noise_op>>(noise_op, "x (batch, seq, …) -> in training, with normal noise added"),
    op<LuaOp<mlp_op>>(mlp_op, "x (…, hidden) -> the same: to its width, an activation, and back"),
    op<LuaOp<experts_op>>(experts_op,
                          "x (batch, seq, hidden) -> the same: each token through the "
                          "experts that it chooses; of the dims experts and expert_ffn"));

}  // namespace mw
