// `mw.text`: bytes of UTF-8 files as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "meshwright/data.h"
#include "sample_order.h"

namespace mw {

// The files' bytes one after another, 256 ids; which a sample has: SampleOrder.
class TextSource final : public TokenSource {
 public:
  static Options options();
  TextSource(const Values& values, const DataContext& context);
  std::int64_t vocab() const override { return 256; }
  std::int64_t tokens() const override { return order_.tokens(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::string content() const override;

 private:
  std::vector<MappedFile> files_;
  std::vector<std::int64_t> starts_ = {
      0};  // offset of each file's first token, and one past the last
  SampleOrder order_;
};

}  // namespace mw
