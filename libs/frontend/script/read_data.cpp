// Opens an experiment's data and its held-out data, and holds both to the model and to each other.
#include "script/read_data.h"

#include <fmt/format.h>

#include "meshwright/engine/text.h"
#include "script/guarded.h"
#include "script/identity.h"
#include "script/read_experiment.h"

namespace mw {

DataReader::DataReader(const Json& table, const Values& values,
                       const std::vector<std::filesystem::path>& roots,
                       const std::shared_ptr<const ScriptReach>& reach, Problems& problems)
    : table_(table), values_(values), roots_(roots), reach_(reach), problems_(problems) {
  if (has("data")) data_ = choose(Kind::data, values_.at("data"), "data", reach_, "", problems_);
  sequence_ = read_sequence();
}

std::int64_t DataReader::read_sequence() const {
  const bool inside = data_ && data_->values.has("sequence");
  if (has("sequence")) {
    const std::int64_t given = values_.integer("sequence");
    if (inside && data_->values.integer("sequence") != given) {
      problems_.add(Stage::options, "option.conflict", "sequence",
                    fmt::format("sequence is {} but data.sequence is {}", given,
                                data_->values.integer("sequence")),
                    "keep one of the two");
    }
    return given;
  }
  if (inside) return data_->values.integer("sequence");
  const Json& data = has("data") ? values_.at("data") : Json();
  const bool refused =
      table_.contains("sequence") || (data.is_object() && data.contains("sequence"));
  if (!refused) {
    problems_.add(Stage::options, "option.missing", "sequence",
                  "sequence is missing: the tokens of one sample",
                  "write sequence = 128 in the experiment or in its data");
  }
  return 0;
}

void DataReader::open(const Model* model, Experiment& experiment) {
  if (model != nullptr) vocab_ = model->vocab();
  if (!data_ || sequence_ < 1) return;
  experiment.data = open_source(*data_, "data", values_.has("seed") ? values_.integer("seed") : 0);
  if (!experiment.data) return;
  experiment.data_settings = without_hidden(data_->values.json());
  experiment.data_settings["kind"] = data_->registration->name;
  experiment.data_settings.erase("sequence");
}

std::shared_ptr<const TokenSource> DataReader::open_source(const Chosen& chosen, const char* key,
                                                           std::int64_t seed) {
  DataContext context;
  context.seed = seed;
  context.sequence = sequence_;
  context.vocab = vocab_;
  context.roots = roots_;
  auto data = guarded(make_chosen<TokenSource>(chosen, problems_, context), chosen.speaker);
  if (data && data->vocab() > context.vocab) {
    problems_.add(Stage::options, "data.vocab", "model.vocab",
                  fmt::format("model.vocab: {} ids are too few for {}: {} has {}", context.vocab,
                              key, chosen.registration->name, data->vocab()),
                  fmt::format("use vocab = {}", data->vocab()));
  }
  return data;
}

// The seed with which a source of the kind of the training's makes what that makes.
std::int64_t DataReader::seed_like_training(const Chosen& chosen) const {
  if (data_ && data_->registration == chosen.registration && data_->values.has("seed"))
    return data_->values.integer("seed");
  return values_.has("seed") ? values_.integer("seed") : 0;
}

Json DataReader::evaluation(Experiment& experiment) {
  if (!has("evaluate") || sequence_ < 1) return {};
  Problems found;
  Values given = evaluate_options().read(values_.at("evaluate"), "evaluate", found);
  given.set_reach(reach_);
  problems_.add(found);
  if (!found.empty()) return {};
  const auto chosen = choose(Kind::data, given.at("data"), "evaluate.data", reach_, "", problems_);
  if (!chosen) return {};
  if (chosen->values.has("sequence") && chosen->values.integer("sequence") != sequence_) {
    problems_.add(Stage::options, "option.conflict", "evaluate.data.sequence",
                  fmt::format("evaluate.data.sequence is {}, and the run's is {}",
                              chosen->values.integer("sequence"), sequence_),
                  "leave it out: it is the run's");
    return {};
  }
  Evaluation& evaluation = experiment.evaluation;
  evaluation.every = given.integer("every");
  evaluation.batches = given.integer("batches");
  // The same for each seed of a run: a spread over seeds is that of training.
  experiment.held_out_data = open_source(*chosen, "evaluate.data", 0);
  // A source without an end makes its tokens from the seed: another seed would make other tokens
  // than those that the model learns.
  if (experiment.held_out_data && experiment.held_out_data->tokens() == 0)
    experiment.held_out_data = open_source(*chosen, "evaluate.data", seed_like_training(*chosen));
  Json data = resolved_value(chosen->values.json());
  data.erase("sequence");
  data["kind"] = chosen->registration->name;
  return {{"data", data}, {"every", evaluation.every}, {"batches", evaluation.batches}};
}

}  // namespace mw
