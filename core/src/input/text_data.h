// `mw.text`: bytes of UTF-8 files as tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "input/mapped_file.h"
#include "meshwright/data.h"

namespace mw {

// The files' bytes one after another, 256 ids. With S = sequence and N = tokens,
//   sequential: sample k takes the S + 1 tokens from offset (k * S) mod (N - S - 1);
//   shuffled:   the n = (N - 1) / S windows [w * S, w * S + S] each once per epoch; sample k takes
//               window P(k mod n), P a permutation that depends on the seed and on k / n.
class TextSource final : public TokenSource {
 public:
  static Options options();
  TextSource(const Values& values, const DataContext& context);
  std::int64_t vocab() const override { return 256; }
  std::int64_t tokens() const override { return starts_.back(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;

 private:
  std::int64_t offset_of(std::int64_t k, std::int64_t sequence) const;

  std::vector<MappedFile> files_;
  std::vector<std::int64_t> starts_ = {
      0};  // offset of each file's first token, and one past the last
  bool sequential_;
  std::uint64_t seed_;
};

extern const Registration text_data;

}  // namespace mw
