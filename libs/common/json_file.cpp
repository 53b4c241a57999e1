// Reads files that hold JSON, and says what is wrong with one.
#include "common/json_file.h"

#include <fstream>

namespace mw {

Json read_json(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return {};
  Json json = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json() : json;
}

}  // namespace mw
