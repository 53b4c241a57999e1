// How long documents are, as mw.pack draws them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace mw {

// A distribution of documents' lengths, in tokens.
class LengthDistribution {
 public:
  // `given`: a number of tokens; { uniform = { least, most } }; { lognormal = { median, sigma } },
  // whose logarithm is normal with that standard deviation; or a .csv of the columns length and
  // count. Throws Error (options) with the key `key`.
  LengthDistribution(const Json& given, const char* key, const Values& values);
  // The length, 1 or more, that belongs to a random number.
  std::int64_t draw(std::uint64_t bits) const;
  // A digest of the table that the distribution was read from; empty: there is none.
  const std::string& digest() const { return digest_; }

 private:
  enum class Kind : std::uint8_t { uniform, lognormal, table } kind_ = Kind::uniform;
  double first_ = 0, second_ = 0;  // least and most, or median and sigma
  // For a table: its lengths, and for each the sum of the counts up to it.
  std::vector<std::int64_t> lengths_, counts_so_far_;
  std::string digest_;
};

}  // namespace mw
