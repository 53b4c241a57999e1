// Reads a source of data among the options of another one.
#include "inner_source.h"

#include <algorithm>

#include "meshwright/choice.h"

namespace mw {

std::shared_ptr<const TokenSource> inner_source(const Values& values, const Json& given,
                                                const std::string& key,
                                                const DataContext& context) {
  if (const auto choice = named_choice(given); choice && choice->options.contains("sequence"))
    throw Error(Stage::options, "option.value", key, choice->name + " has a sequence of its own",
                "write sequence in the experiment, or in the data that has it");
  return make_inner<TokenSource>(values, given, key, "source of data",
                                 "mw.shards { … }, mw.text { … }, mw.synthetic {}", context);
}

std::int64_t SeveralSources::vocab() const {
  std::int64_t most = 0;
  for (const auto& source : sources_) most = std::max(most, source->vocab());
  return most;
}

bool SeveralSources::masks_labels() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const auto& source) { return source->masks_labels(); });
}

bool SeveralSources::has_documents() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const auto& source) { return source->has_documents(); });
}

std::vector<std::int64_t> SeveralSources::documents(std::int64_t k, std::int64_t sequence) const {
  const auto [source, number] = source_of(k);
  return sources_[source]->documents(number, sequence);
}

void SeveralSources::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                            std::int64_t* labels) const {
  const auto [source, number] = source_of(k);
  sources_[source]->sample(number, sequence, inputs, labels);
}

std::string SeveralSources::content() const {
  std::string all;
  for (const auto& source : sources_) all += source->content() + ";";
  return all;
}

std::vector<SourceFile> SeveralSources::files() const {
  std::vector<SourceFile> all;
  for (const auto& source : sources_) {
    const std::vector<SourceFile> own = source->files();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace mw
