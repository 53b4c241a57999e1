// Compares the first bytes of a file with those that each format begins with.
#include "known_format.h"

#include <algorithm>
#include <string_view>

namespace mw {

KnownFormat known_format(const std::uint8_t* data, std::int64_t size) {
  using namespace std::string_view_literals;
  constexpr const char *unpack = "unpack it first", *tokens = "write its tokens alone into a file";
  constexpr const char* tofile = "np.load(FILE).astype(np.uint32).tofile(\"tokens.bin\")";
  struct Known {
    std::string_view begin;
    const char *name, *hint;
  };
  static constexpr Known all[] = {
      {"\x93NUMPY"sv, "a file of numpy (.npy)", tofile},
      {"PK\3\4"sv, "a zip archive, as numpy's .npz and torch.save make", unpack},
      {"\x1f\x8b\x08\0"sv, "packed by gzip", unpack},
      {"\x1f\x8b\x08\x08"sv, "packed by gzip", unpack},  // a gzip header with the file's name
      {"\x28\xb5\x2f\xfd"sv, "packed by zstd", unpack},
      {"PAR1"sv, "a table of Parquet", tokens},
      {"ARROW1\0\0"sv, "a table of Arrow", tokens},
      {"\x89HDF\r\n\x1a\n"sv, "a file of HDF5", tokens},
      {"GGUF"sv, "weights in GGUF", "name files of tokens"},
      // The magic numbers 20240326 to 20240328, 20240522, 20240527 and 20240803, little-endian.
      {"\xc6\xd7\x34\1"sv, "weights of llm.c", "name files of tokens"},
      {"\xc7\xd7\x34\1"sv, "a state of llm.c, which its tests read", "name files of tokens"},
      {"\xc8\xd7\x34\1"sv, "a tokeniser of llm.c", "name files of tokens"},
      {"\x8a\xd8\x34\1"sv, "an evaluation of llm.c (HellaSwag)", "name files of tokens"},
      {"\x8f\xd8\x34\1"sv, "a checkpoint of llm.c", "name files of tokens"},
      {"\xa3\xd9\x34\1"sv, "weights or a state of llm.c (Llama 3)", "name files of tokens"}};
  const std::string_view bytes(reinterpret_cast<const char*>(data),
                               static_cast<std::size_t>(std::min<std::int64_t>(size, 16)));
  for (const Known& known : all)
    if (bytes.starts_with(known.begin)) return {known.name, known.hint};
  return {};
}

}  // namespace mw
