// The model of mw.model: what a script's functions do is recorded as data, once for a whole graph
// or once for each layer's block, and the record is played into a builder whenever a graph is
// wanted. No rank calls the script.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "meshwright/block_op.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"

#include "composed.h"
#include "meshwright/hf_config.h"
#include "meshwright/inputs.h"
#include "meshwright/model.h"
#include "meshwright/plugin.h"
#include "ops/expression.h"

namespace mw {
namespace {

const std::set<std::string> reserved{"batch",  "seq", "keys", "stat",
                                     "scores", "top", "load", "document_starts"};
const std::set<std::string> even_dims{"hidden", "heads", "kv_heads", "head_dim", "experts"};

// An output of a recorded op; op 0 is what the function is given: the input of a block; of a graph
// the tokens, the labels and the positions.
struct Ref {
  std::size_t op = 0, output = 0;
};

struct Recorded {
  std::shared_ptr<const BlockOp> op;
  std::string kind, name;  // name: given by the script, or empty
  std::vector<Ref> inputs;
  std::string place;  // the line of the script: "script.lua:12"
  // In a graph: the layer, as Op::layer has it.
  std::optional<int> layer;
  // The expression that it computes (BlockOp::expression), and whether nothing but another
  // expression of its layer uses that.
  std::optional<std::string> expression;
  bool joined = false;
  bool frozen = false;  // whether nothing trains the weights that it makes
};

// The ops that a function of the script called, and what it returned.
struct Part {
  std::string key;  // the option that has the function: "block"
  std::vector<Recorded> ops;
  std::vector<Ref> results;  // a block's one value, or a graph's losses
  int layers = 0;            // how many layers a graph has
  // Whether a loop of the graph takes their number from the option `layers`.
  bool takes_layers = false;
  std::string got, place;
  Json table;  // the record of the function, without places
};

const std::set<std::string> reserved_inputs{"tokens", "labels", "positions",   "starts",
                                            "weight", "layers", "positions_of"};

struct Input {
  Dims dims;
  std::int64_t below = 0;  // 0: real numbers
};

struct DimChoice {
  std::int64_t size = 0;  // 0: as many as the tokens of a sequence
  bool even = false;
  std::string like, from;
};

[[noreturn]] void refuse(const char* code, const std::string& key, const std::string& place,
                         std::string message, std::string hint) {
  throw Error(Problem{Stage::options, code, key, std::move(message), std::move(hint), place});
}

// Whether it is a list; a table of Lua without entries may be either.
bool is_list(const Json& json) {
  return json.is_array() || (json.is_object() && json.empty());
}

// Reads a reference to an output of one of `ops` recorded ops; nullopt if `json` is none.
std::optional<Ref> ref_of(const Json& json, std::size_t ops) {
  if (!json.is_array() || json.size() != 2) return std::nullopt;
  const auto op = whole_number(json[0]), output = whole_number(json[1]);
  if (!op || !output || *op < 0 || static_cast<std::size_t>(*op) > ops || *output < 1)
    return std::nullopt;
  return Ref{static_cast<std::size_t>(*op), static_cast<std::size_t>(*output) - 1};
}

class Composed final : public Model, public ModelInputs, public HfModel {
 public:
  static Options options() {
    return Options()
        .text("name", "what messages and reports call it")
        .fallback("model")
        .table(
            "dims",
            "sizes by name: hidden, vocab, and those that its ops name (heads, ffn, …); { 64, "
            "like = \"ffn\" } is cut as ffn is; { 64, even = true } is cut into equal parts alone")
        .integer("layers", "transformer layers; a graph may say them itself: m:layers(4)")
        .range(1, most_layers)
        .optional()
        .any("block",
             "a function of a layer's input and the layer's number, from 0, that returns its "
             "output; called once for each layer when the experiment is read")
        .optional()
        .table("inputs",
               "of a graph, what it has beside m.tokens, by name and dims: image = { \"batch\", "
               "\"patches\", \"channels\" } are numbers, kinds = { \"batch\", \"seq\", below = 2 } "
               "indices; m.image is the value")
        .optional()
        .any("graph",
             "in place of block: a function of the model, m, that computes with m.tokens, m.labels "
             "and m.positions, in `for layer in m:layers(n)` for each layer, and returns a loss or "
             "a list of losses; called once when the experiment is read")
        .optional()
        .any("embed", "a function of the embedded tokens that returns the first layer's input")
        .optional()
        .any("head",
             "a function of the last layer's output that returns what is projected to the "
             "vocabulary; left out: an RMSNorm")
        .optional()
        .boolean("tied", "the output projection is the embedding's weight")
        .fallback(false)
        .table("hf",
               "what Hugging Face's transformers calls the model: { type = \"bert\", architecture "
               "= \"BertForMaskedLM\", config = { hidden_size = 64, … }, without = { \"pooler.\" "
               "} }; weights are held to it, and exported with such a config.json")
        .optional();
  }

  explicit Composed(const Values& values) : values_(values), of_kind_(values.has(model_kind_key)) {
    read_dims(values.at("dims"));
    if (values.has("hf")) read_hf(values.at("hf"));
    check_functions();
    if (values.has("inputs")) read_inputs(values.at("inputs"));
    if (values.has("graph")) {
      graph_ = part("graph", values.has("layers") ? values.int32("layers") : 0);
      layers_ = graph_->layers;
      if (values.has("layers") && !graph_->takes_layers) {
        refuse("option.conflict", "layers", "",
               "layers: no loop of the graph takes the number of layers from here",
               "write for layer in m:layers() do … end, or leave layers out");
      }
    } else {
      layers_ = values.int32("layers");
      for (int layer = 0; layer < layers_; ++layer) blocks_.push_back(part("block", layer));
    }
    if (values.has("embed")) embed_ = part("embed", 0);
    if (values.has("head")) head_ = part("head", 0);
    if (!of_kind_) check_dims_are_used(build(1, 1, 1));
  }

  std::string name() const override { return values_.text("name"); }
  std::int64_t vocab() const override { return dims_.at("vocab").size; }

  std::vector<DataInput> inputs(std::int64_t sequence) const override {
    std::vector<DataInput> all;
    for (const auto& [name, input] : inputs_) {
      DataInput one{name, {}, input.below};
      for (std::size_t d = 1; d < input.dims.size(); ++d) {
        const std::string& dim = input.dims[d].name();
        const auto known = dims_.find(dim);
        one.shape.push_back(known == dims_.end() || known->second.size == 0 ? sequence
                                                                            : known->second.size);
      }
      all.push_back(std::move(one));
    }
    return all;
  }

  std::optional<HfConfig> hf_config(std::int64_t) const override { return hf_; }

  Json made_of() const override {
    Json all = Json::array();
    if (graph_) all.push_back({{"layers", layers_}, {"graph", graph_->table}});
    for (const Part& block : blocks_) {
      if (!all.empty() && all.back()["block"] == block.table) {
        all.back()["layers"] = all.back()["layers"].get<int>() + 1;
      } else {
        all.push_back({{"layers", 1}, {"block", block.table}});
      }
    }
    if (embed_) all.push_back({{"embed", embed_->table}});
    if (head_) all.push_back({{"head", head_->table}});
    return all;
  }

  Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    // `first` finds the values that ops make once (make_once); `b` makes these before its layers.
    Builder first(name(), batch, sequence, tokens), b(name(), batch, sequence, tokens);
    compose(first, nullptr);
    compose(b, &first);
    return std::move(b.graph);
  }

 private:
  void read_dims(const Json& table) {
    for (const auto& [name, given] : table.items()) {
      const std::string key = "dims." + name;
      if (reserved.count(name) > 0) {
        refuse("model.twice", key, "",
               fmt::format("{} is a dim of every model: it cannot be given a size", name),
               "give yours another name");
      }
      if (!name.empty() && name[0] == '$') continue;
      dims_[name] = read_dim(key, given);
      dims_[name].from = of_kind_ ? name : key;
      if (of_kind_ && given.is_object()) dims_[name].from = given.value("$from", name);
    }
    for (const char* needed : {"hidden", "vocab"}) {
      // A graph of inputs alone has no vocabulary.
      if (dims_.count(needed) > 0 || (values_.has("graph") && needed == std::string("vocab")))
        continue;
      refuse("option.missing", fmt::format("dims.{}", needed), "",
             fmt::format("{} is missing", needed),
             needed == std::string("hidden") ? "the width of the residual stream: hidden = 128"
                                             : "the size of the vocabulary: vocab = 256");
    }
    for (auto& [name, dim] : dims_) {
      std::set<std::string> seen;
      std::string of = name;
      for (; !dims_.at(of).like.empty(); of = dims_.at(of).like) {
        if (!seen.insert(of).second) {
          refuse("model.dims", "dims." + name, "", fmt::format("{} is to be like itself", name),
                 "name the dim that strategies speak of, such as ffn");
        }
        if (dims_.count(dims_.at(of).like) > 0) continue;
        refuse("model.dims", "dims." + of, "",
               fmt::format("{} is to be like {}, and there is no such dim", of, dims_.at(of).like),
               did_you_mean(dims_.at(of).like, names()));
      }
      dim.even = dim.even || even_dims.count(of) > 0;
      // the last of a chain of likes: strategies' rules follow one link
      if (of != name) dim.like = of;
    }
    declared_ = names();
    const auto fill = [&](const char* name, std::int64_t size, const char* from) {
      if (dims_.count(name) == 0) dims_[name] = {size, true, "", from};
    };
    const std::int64_t hidden = dims_.at("hidden").size;
    fill("vocab", 1, "no op looks up tokens");
    fill("heads", 1, "heads");
    const std::int64_t heads = dims_.at("heads").size;
    fill("kv_heads", heads, "heads");
    if (hidden % heads == 0) fill("head_dim", hidden / heads, "hidden / heads");
  }

  DimChoice read_dim(const std::string& key, const Json& given) const {
    DimChoice dim;
    const Json* size = &given;
    if (given.is_object()) {
      for (const auto& [inner, value] : given.items()) {
        const bool known = inner == "like"   ? value.is_string()
                           : inner == "even" ? value.is_boolean()
                                             : inner.starts_with('$');
        if (!known) bad_dim(key, given);
      }
      if (!given.contains(unnamed_key)) bad_dim(key, given);
      size = &given.at(unnamed_key);
      dim.like = given.value("like", "");
      dim.even = given.value("even", false);
    }
    if (of_kind_ && *size == Json("sequence")) return dim;
    const auto whole = whole_number(*size);
    if (!whole || *whole < 1 || *whole > INT32_MAX) bad_dim(key, given);
    dim.size = *whole;
    return dim;
  }

  [[noreturn]] void bad_dim(const std::string& key, const Json& given) const {
    const Json& size =
        given.is_object() && given.contains(unnamed_key) ? given[unnamed_key] : given;
    if (of_kind_ && whole_number(size)) {
      const std::string from = given.is_object() ? given.value("$from", "") : "";
      throw Error(
          Stage::options, "plan.size", "",
          fmt::format("{}{} is {}, and a dim is {} at most", key.substr(5),
                      from.empty() ? "" : " (" + from + ")", *whole_number(size), INT32_MAX),
          "smaller sizes");
    }
    refuse(
        "option.type", key, "", fmt::format("got {}", describe(given)),
        "a dim is a whole number from 1 on, or one like another: { 64, like = \"ffn\" }, or one of "
        "equal parts: { 64, even = true }");
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, dim] : dims_) all.push_back(name);
    return all;
  }

  void read_hf(const Json& table) {
    static const Options options =
        Options()
            .text("type", "config.json's model_type")
            .text("architecture", "the class in transformers")
            .table("config", "further keys of config.json, which are written and compared")
            .optional()
            .list("without",
                  "what the names of tensors begin with that the model does not compute with")
            .optional();
    Problems problems;
    const Values given = options.read(table, "hf", problems);
    problems.throw_if_any();
    hf_.emplace();
    hf_->of_script = true;
    hf_->types = {given.text("type")};
    hf_->architecture = given.text("architecture");
    if (given.has("config")) add_hf_keys("", given.at("config"));
    for (const Json& one : given.has("without") ? given.at("without") : Json::array()) {
      if (!one.is_string() || one.get<std::string>().empty())
        refuse("option.type", "hf.without", "", fmt::format("got {}", describe(one)),
               "without = { \"pooler.\" }");
      hf_->without.push_back(one);
    }
  }

  // Numbers as lua/meshwright/model.lua (with_reals) was given them.
  static Json without_marks(const Json& value) {
    if (value.is_object() && value.contains("__real__")) return value.at("__real__").get<double>();
    if (!value.is_structured()) return value;
    Json plain = value;
    for (auto& [key, item] : plain.items()) item = without_marks(item);
    return plain;
  }

  // The keys of a table of config.json; those of a table in it have names such as "text_config.x".
  void add_hf_keys(const std::string& before, const Json& table) {
    for (const auto& [name, value] : table.items()) {
      if (name.starts_with('$')) continue;
      const bool of_export = before.empty() && (name == "model_type" || name == "architectures" ||
                                                name == "dtype" || name == "torch_dtype");
      if (of_export || name.find('.') != std::string::npos)
        refuse("option.value", "hf.config", "",
               fmt::format("{} is no key of it", quote(before + name)),
               of_export ? "hf = { type = …, architecture = … } and the export's dtype say it"
                         : "a table in config: text_config = { hidden_size = 64 }");
      const bool is_table = value.is_object() && !value.empty() && !value.contains("__real__");
      if (is_table)
        add_hf_keys(before + name + ".", value);
      else
        hf_->keys.push_back({{before + name}, without_marks(value), ""});
    }
  }

  void read_inputs(const Json& table) {
    for (const auto& [name, given] : table.items()) {
      if (!name.empty() && name[0] == '$') continue;
      const std::string key = "inputs." + name;
      const Json dims =
          given.is_object() && given.contains(unnamed_key) ? given.at(unnamed_key) : given;
      Input input;
      const Json list = dims.is_array() ? dims : Json::array({dims});
      for (const Json& dim : list) {
        if (!dim.is_string()) bad_input(key, given);
        const auto text = dim.get<std::string>();
        if (text != "batch" && text != "seq" && dims_.count(text) == 0) {
          refuse("model.dims", key, "", fmt::format("the model has no dim {}", quote(text)),
                 did_you_mean(text, names()));
        }
        if (contains(input.dims, Dim(text))) bad_input(key, given);
        input.dims.emplace_back(text);
      }
      if (input.dims.empty() || input.dims.front() != Dim("batch")) bad_input(key, given);
      for (const auto& [inner, value] : given.items()) {
        if (!given.is_object() || inner == "below" || inner[0] == '$') continue;
        refuse("option.unknown", key + "." + inner, "",
               fmt::format("{} is no key of an input", inner), "keys: below");
      }
      if (given.is_object() && given.contains("below")) {
        const Json& below = given.at("below");
        const auto whole = whole_number(below);
        if (below.is_string() && dims_.count(below.get<std::string>()) > 0)
          input.below = bound(below.get<std::string>());
        else if (whole && *whole > 0)
          input.below = *whole;
        else
          bad_below(key + ".below", below);
      }
      if (reserved_inputs.count(name) > 0) {
        refuse("model.twice", key, "", fmt::format("{} is an input of every model", name),
               "give yours another name");
      }
      inputs_[name] = input;
    }
  }

  // The size of a dim that an input's indices are below.
  std::int64_t bound(const std::string& dim) {
    bounds_.insert(dim);
    return dims_.at(dim).size;
  }

  [[noreturn]] static void bad_input(const std::string& key, const Json& given) {
    refuse("option.value", key, "",
           fmt::format(
               "got {}; an input has the dim batch, and then seq or dims of the model, each once",
               lua_text(given)),
           "image = { \"batch\", \"patches\", \"channels\" }");
  }

  [[noreturn]] static void bad_below(const std::string& key, const Json& given) {
    refuse("option.value", key, "", fmt::format("got {}", describe(given)),
           "below = 2 or the name of a dim: the indices go from 0 to one less");
  }

  // Refuses functions that do not go together.
  void check_functions() const {
    if (values_.has("inputs") && !values_.has("graph")) {
      refuse("option.needs", "inputs", "", "inputs are for a graph, and there is none",
             "write graph = function(m) … end");
    }
    if (!values_.has("graph")) {
      for (const char* needed : {"layers", "block"}) {
        if (values_.has(needed)) continue;
        refuse("option.missing", needed, "", fmt::format("{} is missing", needed),
               needed == std::string("layers") ? "the number of transformer layers: layers = 4"
                                               : "a function: block = function(x) … return x + y "
                                                 "end, or graph = function(m) … end");
      }
      return;
    }
    for (const char* other : {"block", "embed", "head"}) {
      if (!values_.has(other)) continue;
      refuse("option.conflict", other, "",
             fmt::format("graph and {}: a graph is the whole model", other),
             "leave out one of them");
    }
    if (values_.flag("tied")) {
      refuse("option.conflict", "tied", "",
             "graph and tied: a graph says itself what it projects by",
             "use the embedding's weight twice: x:linear { weight }");
    }
  }

  // Reads what the script's function records for a layer, or a record that was given in its place.
  // A graph's function is given the number of layers, 0 if that was left out.
  Part part(const char* key, int layer) const {
    const Json& given = values_.at(key);
    Json record = given;
    if (values_.is_function(key)) {
      record = called(key, layer);
    } else if (given.is_array() && !given.empty()) {
      record = given[static_cast<std::size_t>(layer) % given.size()];
    }
    if (!record.is_object() || !record.contains("ops")) {
      refuse("option.type", key, "", fmt::format("must be a function; got {}", describe(given)),
             "write block = function(x) … return x + y end");
    }
    Part part;
    part.key = key;
    part.place = record.value(place_key, "");
    part.got = record.value("got", "nothing");
    part.table = without_hidden(record);
    const Json& ops = record.at("ops");
    for (const Json& op : ops.is_array() ? ops : Json::array())
      part.ops.push_back(read_op(op, part.ops, key));
    if (record.contains("result")) part.results = {ref(record.at("result"), part.ops, key)};
    if (key == std::string("graph")) read_graph(record, part);
    join_expressions(part);
    return part;
  }

  // What the record of a graph has beside that of a block: several results, layers.
  void read_graph(const Json& record, Part& part) const {
    const Json losses = record.value("losses", Json::array());
    for (const Json& loss : losses.is_array() ? losses : Json::array())
      part.results.push_back(ref(loss, part.ops, part.key));
    const auto layers = whole_number(record.value("layers", Json(0)));
    if (!layers || *layers < 0 || *layers > most_layers) bad_record(record, part.key);
    part.layers = static_cast<int>(*layers);
    part.takes_layers = record.value("takes_layers", Json(false)) == Json(true);
    for (std::size_t i = 0; i < part.results.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (part.results[i].op != part.results[j].op) continue;
        refuse("model.twice", part.key, part.place, "a loss is returned twice",
               "give it a weight instead: logits:cross_entropy(m.labels, { weight = 2 })");
      }
    }
    int before = -1;
    std::vector<bool> used(static_cast<std::size_t>(part.layers), false);
    for (const Recorded& op : part.ops) {
      if (!op.layer || *op.layer < before || *op.layer > part.layers) bad_record(record, part.key);
      before = *op.layer;
      if (*op.layer >= 0 && *op.layer < part.layers)
        used[static_cast<std::size_t>(*op.layer)] = true;
    }
    if (part.layers > 0 && std::find(used.begin(), used.end(), false) == used.end()) return;
    refuse("model.unused", part.key, part.place,
           part.layers == 0 ? "the graph has no layers" : "a layer of m:layers() has no ops",
           "for layer in m:layers(4) do x = … end, to the end of the loop");
  }

  // Marks expressions whose only user is an expression of their layer.
  static void join_expressions(Part& part) {
    std::vector<int> users(part.ops.size() + 1, 0), user(part.ops.size() + 1, -1);
    for (std::size_t n = 0; n < part.ops.size(); ++n) {
      for (const Ref& input : part.ops[n].inputs) {
        ++users[input.op];
        user[input.op] = static_cast<int>(n);
      }
    }
    for (const Ref& result : part.results) users[result.op] += 2;
    for (std::size_t n = 0; n < part.ops.size(); ++n) {
      Recorded& one = part.ops[n];
      if (!one.expression || users[n + 1] != 1) continue;
      const Recorded& reader = part.ops[static_cast<std::size_t>(user[n + 1])];
      // Sums of two values stay ops of their own, as long as nothing else is joined with them.
      one.joined = reader.expression && reader.layer == one.layer && one.kind != "add";
    }
  }

  // Reads a reference to an output of an earlier op, or to op 0, the input of the block.
  Ref ref(const Json& json, const std::vector<Recorded>& ops, const std::string& key) const {
    const std::optional<Ref> found = ref_of(json, ops.size());
    const int given = key == "graph" ? 3 + static_cast<int>(inputs_.size()) : 1;
    const int outputs = !found || found->op == 0 ? given : ops[found->op - 1].op->outputs();
    if (!found || static_cast<int>(found->output) >= outputs) bad_record(json, key);
    return *found;
  }

  [[noreturn]] static void bad_record(const Json& json, const std::string& key) {
    refuse("option.type", key, "",
           fmt::format("{} is no record of what a block did", lua_text(json)),
           "write a function: block = function(x) … return x + y end");
  }

  Json called(const char* key, int layer) const {
    try {
      return values_.function(key)({Json(layer)});
    } catch (const Stopped&) {
      throw;
    } catch (const Error& error) {
      if (error.problems().front().stage == Stage::script) throw;
      throw at_place(error, key, "");
    }
  }

  Recorded read_op(const Json& json, const std::vector<Recorded>& before,
                   const std::string& key) const {
    const auto text = [&](const char* name) { return json.value(name, Json("")).is_string(); };
    if (!json.is_object() || !json.contains("op") || !text("op") || !text("name") ||
        !text(place_key) || !is_list(json.value("inputs", Json())))
      bad_record(json, key);
    Recorded one;
    one.kind = json.at("op").get<std::string>();
    one.name = json.value("name", "");
    one.frozen = json.value("frozen", Json(false)) == Json(true);
    one.place = json.value(place_key, "");
    for (const Json& input : json.at("inputs")) one.inputs.push_back(ref(input, before, key));
    if (const auto layer = whole_number(json.value("layer", Json()))) {
      if (key != "graph" || *layer < -1 || *layer > most_layers) bad_record(json, key);
      one.layer = static_cast<int>(*layer);
    }
    const Json given = json.value("options", Json::object());
    std::shared_ptr<const BlockOp>& known = made_[one.kind + json_text(given)];
    if (known == nullptr) known = make_op(one, given, key);
    one.op = known;
    one.expression = known->expression();
    // A script's calls were checked when they were recorded; a record may be written by hand.
    if (one.inputs.size() != known->inputs().size()) bad_record(json, key);
    return one;
  }

  std::shared_ptr<const BlockOp> make_op(const Recorded& one, const Json& given,
                                         const std::string& key) const {
    try {
      return make_block_op(one.kind, given, values_.reach(), key);
    } catch (const Error& error) {
      throw at_place(error, key, one.place);
    }
  }

  // The error of an op at its line of the script. A kind's errors stay those of its options.
  Error at_place(const Error& error, const std::string& key, const std::string& place) const {
    if (of_kind_) return error;
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      problem.key = key;
      if (problem.place.empty()) problem.place = place;
    }
    return Error(std::move(problems));
  }

  void compose(Builder& b, const Builder* first) const {
    b.graph.layers = layers_;
    for (const auto& [name, dim] : dims_) {
      b.dim(name, dim.size > 0 ? dim.size : b.graph.size("seq"), dim.even,
            dim.like.empty() ? Dim() : Dim(dim.like), dim.from);
    }
    if (graph_) return compose_graph(b, first);
    int x = b.embed();
    if (first != nullptr) b.make_all_of(*first);
    if (embed_) x = play_block(b, *embed_, x);
    for (b.layer = 0; b.layer < layers_; ++b.layer) x = play_block(b, blocks_[b.layer], x);
    b.layer = layers_;
    x = head_ ? play_block(b, *head_, x) : b.rms_norm("norm", x);
    b.head_and_loss(x, values_.flag("tied"));
  }

  void compose_graph(Builder& b, const Builder* first) const {
    std::vector<int> given{b.tokens, b.labels, b.positions};
    for (const auto& [name, input] : inputs_)
      given.push_back(b.input(name, input.dims, input.below));
    const std::vector<int> losses = play(b, *graph_, given, first);
    for (int loss : losses) {
      if (b.dims(loss).empty()) continue;
      refuse("model.dims", graph_->key, graph_->place,
             fmt::format("it returns a value of the dims {}, and a loss is one number",
                         text_of(b.dims(loss))),
             "return logits:cross_entropy(m.labels)");
    }
    b.graph.loss = losses.front();
    b.graph.other_losses.insert(b.graph.other_losses.end(), losses.begin() + 1, losses.end());
  }

  int play_block(Builder& b, const Part& part, int x) const {
    const int result = play(b, part, {x}).front();
    if (b.dims(result) != b.dims(x)) {
      refuse("model.dims", part.key, part.place,
             fmt::format("{}it is given {} and returns {}", where(b), text_of(b.dims(x)),
                         text_of(b.dims(result))),
             "what it returns has the dims of what it is given");
    }
    return result;
  }

  // A value of the graph, or an expression of such values that is not an op yet.
  struct Played {
    int value = -1;
    Expressions f;
    int root = -1;
    std::vector<int> operands;
    const Recorded* op = nullptr;
    std::string name;
  };

  // Appends the ops, and returns the values of its results. `given`: the outputs of op 0. `first`:
  // if not null, what it made once is made before the ops of layers.
  std::vector<int> play(Builder& b, const Part& part, const std::vector<int>& given,
                        const Builder* first = nullptr) const {
    if (part.results.empty()) {
      refuse("function.result", part.key, part.place,
             fmt::format("{}returned {}, not a value", where(b), part.got),
             part.key == "graph" ? "return a loss: return logits:cross_entropy(m.labels)"
                                 : "return what the last op makes: return x + y");
    }
    check_all_used(b, part);
    std::vector<std::vector<Played>> made(1);
    for (int value : given) made[0].push_back({value, {}, -1, {}, nullptr, ""});
    std::map<std::pair<int, std::string>, int> unnamed;  // how many, by layer (-1: none) and kind
    std::set<std::pair<int, std::string>> taken;
    for (const Recorded& one : part.ops) {
      if (one.layer) b.layer = *one.layer;
      const int scope = b.layer < b.graph.layers ? b.layer : -1;
      if (first != nullptr && b.layer >= 0) b.make_all_of(*std::exchange(first, nullptr));
      std::string local = one.name;
      if (local.empty()) {
        int& count = unnamed[{scope, one.kind}];
        do {
          local = ++count == 1 ? one.kind : fmt::format("{}_{}", one.kind, count);
        } while (b.has_op(b.name(local)));
      }
      const bool is_op = one.kind != "weight";  // whose name has ".weight" behind it
      if (!taken.insert({scope, is_op ? local : local + ".weight"}).second) {
        refuse("model.twice", part.key, one.place,
               fmt::format("{}two ops are called {}", where(b), quote(local)),
               "give one of them another name");
      }
      std::vector<Played*> inputs;
      for (const Ref& ref : one.inputs) inputs.push_back(&made.at(ref.op).at(ref.output));
      made.push_back(played(b, part, one, b.name(local), inputs));
    }
    std::vector<int> results;
    for (const Ref& result : part.results)
      results.push_back(made.at(result.op).at(result.output).value);
    return results;
  }

  // Appends an op, or leaves an expression to the one that reads it.
  std::vector<Played> played(Builder& b, const Part& part, const Recorded& one,
                             const std::string& name, const std::vector<Played*>& inputs) const {
    const bool joins = std::any_of(inputs.begin(), inputs.end(),
                                   [](const Played* input) { return input->value < 0; });
    if (one.expression == "a + b" || one.expression == "a - b") check_sum(b, part, one, inputs);
    std::vector<Played> outputs;
    if (!one.joined && !joins) {
      std::vector<int> values;
      for (const Played* input : inputs) values.push_back(input->value);
      for (int value : append(b, part, one, name, values))
        outputs.push_back({value, {}, -1, {}, nullptr, ""});
      return outputs;
    }
    std::vector<int> all;
    for (const Played* input : inputs) {
      if (input->value >= 0) all.push_back(input->value);
      all.insert(all.end(), input->operands.begin(), input->operands.end());
    }
    const Dims dims = b.map_dims(all);
    Played whole{-1, {}, -1, {}, &one, name};
    std::vector<int> arguments;
    for (Played* input : inputs) arguments.push_back(argument(b, part, *input, dims, whole));
    Expressions own;
    const int root = own.parse(*one.expression);
    whole.root = whole.f.copy(own, root, arguments);
    if (!one.joined) append_map(b, part, whole);
    outputs.push_back(std::move(whole));
    return outputs;
  }

  // A sum of values of which neither has all dims of the other is a mistake; a product need not be.
  static void check_sum(const Builder& b, const Part& part, const Recorded& one,
                        const std::vector<Played*>& inputs) {
    const auto dims = [&](const Played& input) {
      return input.value >= 0 ? b.dims(input.value) : b.map_dims(input.operands);
    };
    const Dims first = dims(*inputs[0]), second = dims(*inputs[1]);
    const auto has_all = [](const Dims& all, const Dims& some) {
      return std::all_of(some.begin(), some.end(), [&](Dim dim) { return contains(all, dim); });
    };
    if (has_all(first, second) || has_all(second, first)) return;
    refuse("model.dims", part.key, one.place,
           fmt::format("{}: {} and {} differ: a sum is of the dims of one of the two",
                       b.name(one.name.empty() ? one.kind : one.name), text_of(first),
                       text_of(second)),
           "x:linear \"hidden\" gives a value other dims");
  }

  // The node of `whole` for one of its inputs: that input's expression, if it is of the same dims,
  // or an operand.
  int argument(Builder& b, const Part& part, Played& input, const Dims& dims, Played& whole) const {
    constexpr std::size_t most = 26;  // operands have letters
    constexpr double largest = 64;    // nodes of a joined expression
    const auto operand = [&](int value) {
      const auto found = std::find(whole.operands.begin(), whole.operands.end(), value);
      const auto place = found - whole.operands.begin();
      if (found == whole.operands.end()) whole.operands.push_back(value);
      return whole.f.operand(static_cast<int>(place));
    };
    // What two expressions draw is another number in each, so each is an op of its own.
    const bool draws = input.value < 0 && input.f.draws_in(input.root);
    const bool fits = input.value < 0 && !draws && b.map_dims(input.operands) == dims &&
                      whole.operands.size() + input.operands.size() <= most &&
                      input.f.nodes()[static_cast<std::size_t>(input.root)].size <= largest;
    if (!fits) {
      if (input.value < 0) append_map(b, part, input);
      return operand(input.value);
    }
    std::vector<int> operands;
    for (int value : input.operands) operands.push_back(operand(value));
    return whole.f.copy(input.f, input.root, operands);
  }

  void append_map(Builder& b, const Part& part, Played& expression) const {
    try {
      expression.value =
          b.map(expression.name, expression.f.text(expression.root), expression.operands);
    } catch (const Error& error) {
      throw at_place(error, part.key, expression.op->place);
    }
    expression.operands.clear();
  }

  std::vector<int> append(Builder& b, const Part& part, const Recorded& one,
                          const std::string& name, const std::vector<int>& inputs) const {
    const bool outer = std::exchange(b.frozen, b.frozen || one.frozen);
    const std::size_t weights = one.frozen ? b.graph.parameters().size() : 0;
    try {
      const PluginPlace speaker{one.kind, ""};
      auto outputs = call_plugin(
          speaker, "was appended", [&] { return one.op->append(b, name, inputs); }, Stage::options);
      b.frozen = outer;
      if (one.frozen && b.graph.parameters().size() == weights)
        refuse("model.frozen", part.key, one.place,
               fmt::format("{}{} makes no weight, and nothing of it could be frozen", where(b),
                           quote(one.name.empty() ? one.kind : one.name)),
               "leave frozen = true out");
      if (static_cast<int>(outputs.size()) == one.op->outputs()) return outputs;
      throw Error(Stage::options, "plugin.fault", "",
                  fmt::format("the op {} made {} values and says that it makes {}", one.kind,
                              outputs.size(), one.op->outputs()),
                  "mend the plugin");
    } catch (const Error& error) {
      throw at_place(error, part.key, one.place);
    }
  }

  // An op whose result nothing uses has parameters that never get a gradient.
  static void check_all_used(const Builder& b, const Part& part) {
    std::vector<bool> used(part.ops.size() + 1, false);
    for (const Ref& result : part.results) used[result.op] = true;
    for (std::size_t n = part.ops.size(); n > 0; --n) {
      const Recorded& one = part.ops[n - 1];
      if (!used[n]) {
        refuse("model.unused", part.key, one.place,
               fmt::format("{}nothing uses what {} makes", where(b),
                           quote(one.name.empty() ? one.kind : one.name)),
               "return it, add it to what is returned, or leave it out");
      }
      for (const Ref& ref : one.inputs) used[ref.op] = true;
    }
  }

  void check_dims_are_used(const Graph& graph) const {
    for (const auto& [name, input] : inputs_) {
      const int value = graph.find(name);
      const bool used = std::any_of(graph.ops().begin(), graph.ops().end(), [&](const Op& op) {
        return std::any_of(op.inputs.begin(), op.inputs.end(),
                           [&](const Use& use) { return use.value == value; });
      });
      if (used) continue;
      refuse("model.unused", "inputs." + name, "", fmt::format("nothing uses m.{}", name),
             "leave it out, or use it in the graph");
    }
    for (const std::string& name : declared_) {
      if (bounds_.count(name) > 0) continue;
      const bool used = std::any_of(graph.ops().begin(), graph.ops().end(),
                                    [&](const Op& op) { return op.has(name); });
      if (used) continue;
      refuse("model.unused", "dims." + name, "", fmt::format("no op has the dim {}", name),
             "leave it out, or use it in the block");
    }
  }

  // "layer 3: " in a layer, else "", for messages.
  static std::string where(const Builder& b) {
    if (b.layer < 0 || b.layer >= b.graph.layers) return "";
    return fmt::format("layer {}: ", b.layer);
  }

  const Values values_;
  const bool of_kind_;  // whether it is the graph of a kind of model, and not a script's own
  std::map<std::string, DimChoice> dims_;
  std::vector<std::string> declared_;  // the dims that the script gives
  int layers_ = 0;
  std::map<std::string, Input> inputs_;
  std::set<std::string> bounds_;  // dims that indices of inputs are below
  std::vector<Part> blocks_;
  std::optional<Part> embed_, head_, graph_;
  std::optional<HfConfig> hf_;
  mutable std::map<std::string, std::shared_ptr<const BlockOp>> made_;  // ops by kind and options
};

}  // namespace

// Where no script is read, as in a plugin that makes a model itself, ops are those built in.
static const Registration& op_named(const std::string& name,
                                    const std::shared_ptr<const ScriptReach>& reach,
                                    const std::string& key) {
  if (reach != nullptr && reach->catalog != nullptr)
    return reach->catalog->find(Kind::op, name, key);
  const PluginDescriptor& own = built_in();
  for (std::size_t i = 0; i < own.count; ++i) {
    const Registration& one = own.registrations[i];
    if (one.kind == Kind::op && one.name == name) return one;
  }
  throw Error(Stage::options, "option.choice", key, fmt::format("there is no op {}", quote(name)));
}

std::shared_ptr<const BlockOp> make_block_op(const std::string& name, const Json& options,
                                             const std::shared_ptr<const ScriptReach>& reach,
                                             const std::string& key) {
  const Registration& registration = op_named(name, reach, key);
  Problems found;
  Values values = registration.options().read(options, name, found);
  found.throw_if_any();
  values.set_reach(reach);
  return call_plugin(
      PluginPlace{name, ""}, "was made", [&] { return make<BlockOp>(registration, values); },
      Stage::options);
}

int check_call(const std::string& name, std::int64_t given, const Json& options,
               const std::shared_ptr<const ScriptReach>& reach) {
  const auto op = make_block_op(name, options, reach);
  std::vector<std::string> takes;
  const int outputs = call_plugin(
      PluginPlace{name, ""}, "was made",
      [&] {
        takes = op->inputs();
        return op->outputs();
      },
      Stage::options);
  if (std::ssize(takes) == given) return outputs;
  throw Error(Stage::script, "script.argument", "",
              fmt::format("{} takes {}; got {}", name, join(takes), plural(given, "value")),
              op_named(name, reach, "").doc);
}

std::unique_ptr<Model> composed_model(const Values& values) {
  return std::make_unique<Composed>(values);
}

MESHWRIGHT_BUILT_IN(model<Composed>(
    "model", "A model of one's own: a block as a function of a value over named dims"));

}  // namespace mw
