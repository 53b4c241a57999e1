// Opens an experiment's data and held-out data, and checks both against the model and each other.
#include "script/read_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <vector>

#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "script/guarded.h"
#include "script/identity.h"
#include "script/read_experiment.h"

namespace mw {

namespace {

namespace fs = std::filesystem;

// A file behind its links; one that cannot be followed is its own path, and equals no other.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path found = fs::canonical(path, error);
  return error ? path : found;
}

// The files of a source, in the order in which they are read.
std::vector<fs::path> files_of(const TokenSource& source) {
  std::vector<fs::path> files;
  for (const SourceFile& file : source.files()) files.push_back(real_path(file.path));
  return files;
}

// The fractions of tokens between which a source's option `part` lies, or those of the sources that
// it reads by.
std::pair<double, double> part_of(const Json& options) {
  const Json part = options.value("part", Json());
  if (part.is_array() && part.size() == 2 && part[0].is_number() && part[1].is_number())
    return {part[0].get<double>(), part[1].get<double>()};
  std::pair<double, double> all{1, 0};
  for (const char* key : {"data", "sources", "sets"}) {
    if (!options.contains(key) || !options[key].is_structured()) continue;
    const bool one = options[key].is_object() && key == std::string("data");
    for (const Json& of : one ? Json::array({options[key]}) : options[key]) {
      if (!of.is_object()) continue;
      const auto [from, to] = part_of(of);
      all = {std::min(all.first, from), std::max(all.second, to)};
    }
  }
  return all.first < all.second ? all : std::pair(0.0, 1.0);
}

// A file that both sources read; empty: there is none, or they read different parts of the same
// files in the same order.
std::string read_by_both(const TokenSource& a, const Values& of_a, const TokenSource& b,
                         const Values& of_b) {
  const std::vector<fs::path> here = files_of(a), there = files_of(b);
  const auto [from, to] = part_of(of_a.json());
  const auto [begin, end] = part_of(of_b.json());
  if (here == there && (to <= begin || end <= from)) return "";
  const auto both = std::ranges::find_first_of(here, there);
  return both == here.end() ? "" : both->string();
}

void note_read_again(const TokenSource& source, std::int64_t sequence, std::int64_t samples,
                     const std::string& reader, const char* key, std::vector<std::string>& notes) {
  const std::int64_t there = source.tokens() > 0 ? (source.tokens() - 1) / sequence : 0;
  if (there < 1 || samples <= there) return;
  notes.push_back(fmt::format("{}: its {} are {} of {}, and {} takes {}: each is read {:.3g} times",
                              key, plural(source.tokens(), "token"), plural(there, "sample"),
                              sequence, reader, samples,
                              static_cast<double>(samples) / static_cast<double>(there)));
}

}  // namespace

void DataReader::note_unread(const Chosen& chosen, const TokenSource& source, const char* key,
                             std::vector<std::string>& notes) const {
  if (!chosen.values.has("path")) return;
  const Json& given = chosen.values.at("path");
  const std::vector<fs::path> files = files_of(source);
  const std::set<fs::path> read(files.begin(), files.end());
  if (read.empty()) return;
  for (const Json& one : given.is_array() ? given : Json::array({given})) {
    std::error_code error;
    const fs::path folder =
        one.is_string() ? find_file(one.get<std::string>(), roots_) : fs::path();
    if (!fs::is_directory(folder, error)) continue;
    std::vector<std::string> folders;
    std::int64_t hidden = 0;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      std::error_code unknown;
      const fs::path& path = at->path();
      if (read.contains(real_path(path))) continue;
      if (path.filename().string().starts_with('.'))
        ++hidden;
      else if (fs::is_directory(path, unknown))
        folders.push_back(path.filename().string());
    }
    std::ranges::sort(folders);
    std::vector<std::string> unread;
    if (!folders.empty())
      unread.push_back(plural(static_cast<std::int64_t>(folders.size()), "folder") + " (" +
                       folders.front() + (folders.size() > 1 ? ", …)" : ")"));
    if (hidden > 0) unread.push_back(plural(hidden, "hidden file"));
    if (!unread.empty())
      notes.push_back(fmt::format("{}: {} has {} in it, which are not read", key, folder.string(),
                                  join(unread, " and ")));
  }
}

std::vector<std::string> DataReader::notes(const RunSetup& setup,
                                           const Evaluation& evaluation) const {
  std::vector<std::string> notes;
  if (!setup.plan || !setup.data || setup.steps < 1) return notes;
  const std::int64_t last = setup.steps - 1;
  note_unread(*data_, *setup.data, "data", notes);
  note_read_again(*setup.data, setup.plan_at(last).request.sequence,
                  setup.first_sample(last) + setup.plan_at(last).request.batch, "the run", "data",
                  notes);
  if (!held_out_ || !setup.held_out_data) return notes;
  note_unread(*held_out_, *setup.held_out_data, "evaluate.data", notes);
  note_read_again(*setup.held_out_data, sequence_, evaluation.batches * setup.plan->request.batch,
                  "an evaluation", "evaluate.data", notes);
  const std::string both =
      read_by_both(*setup.data, data_->values, *setup.held_out_data, held_out_->values);
  if (!both.empty())
    notes.push_back(
        fmt::format("evaluate.data: it is no held-out data: the run trains on {} too; "
                    "data takes part = {{ 0, 0.9 }}, and evaluate.data the rest, "
                    "part = {{ 0.9, 1 }}",
                    both));
  return notes;
}

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

void DataReader::open(const Model* model, RunRequest& asked, RunSetup& setup) {
  if (model != nullptr) vocab_ = model->vocab();
  if (const auto* with = dynamic_cast<const ModelInputs*>(model)) inputs_ = with->inputs(sequence_);
  if (!data_ || sequence_ < 1) return;
  setup.data = open_source(*data_, "data", values_.has("seed") ? values_.integer("seed") : 0);
  if (!setup.data) return;
  asked.data_settings = without_hidden(data_->values.json());
  asked.data_settings["kind"] = data_->registration->name;
  asked.data_settings.erase("sequence");
}

std::shared_ptr<const TokenSource> DataReader::open_source(const Chosen& chosen, const char* key,
                                                           std::int64_t seed) {
  DataContext context;
  context.seed = seed;
  context.sequence = sequence_;
  context.vocab = vocab_;
  if (values_.has("batch")) context.batch = values_.integer("batch");
  context.roots = roots_;
  auto data = guarded(make_chosen<TokenSource>(chosen, problems_, context), chosen.speaker);
  for (const DataInput& input : data ? inputs_ : std::vector<DataInput>()) {
    const std::string lacks = dynamic_cast<const InputSource&>(*data).lacks(input);
    if (lacks.empty()) continue;
    problems_.add(Stage::options, "data.input", key,
                  fmt::format("{}: {} has no input {}, which the model declares: {}", key,
                              chosen.registration->name, input.name, lacks),
                  "mw.tensors reads inputs from a file; mw.synthetic makes noise for every one");
  }
  if (data && data->vocab() > context.vocab) {
    problems_.add(Stage::options, "data.vocab", "model.vocab",
                  fmt::format("model.vocab: {} ids are too few for {}: {} has {}", context.vocab,
                              key, chosen.registration->name, data->vocab()),
                  fmt::format("use vocab = {}", data->vocab()));
  }
  const auto refuse = [&](const char* what, std::int64_t said, const char* hint) {
    problems_.add(attributed(
        chosen.speaker,
        {Stage::options, "plugin.fault", "", fmt::format("it says that {} {}", what, said), hint}));
  };
  if (data && data->vocab() < 1)
    refuse("the number of its ids is", data->vocab(), "mend its vocab(): 1 at least");
  if (data && data->tokens() < 0)
    refuse("the number of its tokens is", data->tokens(),
           "mend its tokens(): 0 where there is no end");
  return data;
}

// The seed with which a source of the training data's kind makes the same tokens.
std::int64_t DataReader::seed_like_training(const Chosen& chosen) const {
  const bool alike = data_ && data_->registration == chosen.registration;
  if (data_ && data_->values.has("seed") && (alike || !chosen.values.has("seed")))
    return data_->values.integer("seed");
  return values_.has("seed") ? values_.integer("seed") : 0;
}

Json DataReader::evaluation(RunSetup& setup, Evaluation& evaluation) {
  if (!has("evaluate") || sequence_ < 1) return {};
  Problems found;
  Values given = evaluate_options().read(values_.at("evaluate"), "evaluate", found);
  given.set_reach(reach_);
  problems_.add(found);
  if (!found.empty()) return {};
  Json data_of = given.at("data");
  // A table of sources by name is a source too, mw.sets.
  if (!named_choice(data_of)) data_of = {{"kind", "sets"}, {"sets", data_of}};
  const auto chosen = choose(Kind::data, data_of, "evaluate.data", reach_, "", problems_);
  if (!chosen) return {};
  if (chosen->values.has("sequence") && chosen->values.integer("sequence") != sequence_) {
    problems_.add(Stage::options, "option.conflict", "evaluate.data.sequence",
                  fmt::format("evaluate.data.sequence is {}, and the run's is {}",
                              chosen->values.integer("sequence"), sequence_),
                  "leave it out: it is the run's");
    return {};
  }
  evaluation.every = given.integer("every");
  evaluation.batches = given.integer("batches");
  // Seed 0 whatever the run's seed: a spread over seeds is then that of training alone.
  setup.held_out_data = open_source(*chosen, "evaluate.data", 0);
  // A source without an end makes its tokens from the seed: another seed would make other tokens
  // than those that the model learns.
  if (setup.held_out_data && setup.held_out_data->tokens() == 0)
    setup.held_out_data = open_source(*chosen, "evaluate.data", seed_like_training(*chosen));
  const std::int64_t batches_of_set = evaluation.batches;
  if (setup.held_out_data)
    evaluation.batches *=
        std::max<std::int64_t>(1, static_cast<std::int64_t>(setup.held_out_data->sets().size()));
  held_out_ = chosen;
  Json data = resolved_value(chosen->values.json());
  data.erase("sequence");
  data["kind"] = chosen->registration->name;
  Json read{{"data", data}, {"every", evaluation.every}, {"batches", batches_of_set}};
  if (given.text("by") != "parameters") read["by"] = given.at("by");
  return read;
}

}  // namespace mw
