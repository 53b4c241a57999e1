// `mw.shards`: tokens of files that a tokeniser has written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/data.h"
#include "sample_order.h"
#include "shard_files.h"

namespace mw {

// The files' tokens one after another, in the order of the files' names; which a sample has:
// SampleOrder. An id that the model does not know ends the run, with the file and the place.
class ShardSource final : public TokenSource {
 public:
  static Options options();
  ShardSource(const Values& values, const DataContext& context);
  std::int64_t vocab() const override { return vocab_; }  // the model's: each id is checked
  std::int64_t tokens() const override { return order_.tokens(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::string content() const override;

 private:
  void check_first_ids(Problems& problems) const;

  std::vector<TokenFile> files_;
  std::vector<std::int64_t> starts_ = {0};  // number of each file's first token, and of all
  SampleOrder order_;
  std::int64_t vocab_;
};

}  // namespace mw
