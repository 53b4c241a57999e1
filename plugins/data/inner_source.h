// Sources of data that other ones take their samples from.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/data.h"

namespace mw {

// Makes the source that a script gives at `key` of a source's options. Throws Error (options).
std::shared_ptr<const TokenSource> inner_source(const Values& values, const Json& given,
                                                const std::string& key, const DataContext& context);

// Samples of several sources: source_of() says which a sample is of.
class SeveralSources : public TokenSource {
 public:
  std::int64_t vocab() const override;
  bool masks_labels() const override;
  bool has_documents() const override;
  std::vector<std::int64_t> documents(std::int64_t k, std::int64_t sequence) const override;
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::string content() const override;
  std::vector<SourceFile> files() const override;

 protected:
  // The source of a sample, and the sample's number there.
  virtual std::pair<std::size_t, std::int64_t> source_of(std::int64_t k) const = 0;

  std::vector<std::shared_ptr<const TokenSource>> sources_;
};

}  // namespace mw
