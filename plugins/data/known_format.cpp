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
      {"\x1f\x8b\x08"sv, "packed by gzip", unpack},
      {"\x28\xb5\x2f\xfd"sv, "packed by zstd", unpack},
      {"\xfd"
       "7zXZ\0"sv,
       "packed by xz", unpack},
      {"BZh91AY&SY"sv, "packed by bzip2", unpack},
      {"\x04\x22\x4d\x18"sv, "packed by lz4", unpack},
      {"PAR1"sv, "a table of Parquet", tokens},
      {"ARROW1\0\0"sv, "a table of Arrow", tokens},
      {"\xff\xff\xff\xff"
       "\x10"sv,
       "a table of Arrow", tokens},
      {"\x89HDF\r\n\x1a\n"sv, "a file of HDF5", tokens},
      {"LITPKDS"sv, "packed by LitGPT", tokens},
      {"TNTIDX\0\0"sv, "an index of fairseq's or of Megatron's first form",
       "write the data with today's Megatron (MMIDIDX)"},
      {"GGUF"sv, "weights in GGUF", "name files of tokens"},
      {"\x80\x02"
       "c"sv,
       "a pickle of Python", tokens},
      {"\x80\x04\x95"sv, "a pickle of Python", tokens},
      {"\x80\x05\x95"sv, "a pickle of Python", tokens}};
  const std::string_view bytes(reinterpret_cast<const char*>(data),
                               static_cast<std::size_t>(std::min<std::int64_t>(size, 16)));
  for (const Known& known : all)
    if (bytes.starts_with(known.begin)) return {known.name, known.hint};
  return {};
}

}  // namespace mw
