// Reads the tables of an ELF file, in which each number may be anything. The system's loader
// crashes on a file that was cut off, and Boost's reader reads wherever a file says.
#include "registry/module_file.h"

#include <elf.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace mw {
namespace {

constexpr std::uintmax_t most_bytes = std::uintmax_t{1} << 30;

class ElfFile {
 public:
  explicit ElfFile(std::string bytes) : bytes_(std::move(bytes)) {}

  bool is_module() const {
    const auto head = at<Elf64_Ehdr>(0);
    return head && std::memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 &&
           head->e_ident[EI_CLASS] == ELFCLASS64 && head->e_ident[EI_DATA] == ELFDATA2LSB &&
           head->e_type == ET_DYN && head->e_phentsize == sizeof(Elf64_Phdr) &&
           head->e_shentsize == sizeof(Elf64_Shdr);
  }

  // Whether the file has all bytes that are to be mapped, and its table of sections.
  bool whole() const {
    const auto head = *at<Elf64_Ehdr>(0);
    for (std::size_t p = 0; p < head.e_phnum; ++p) {
      const auto part = entry<Elf64_Phdr>(head.e_phoff, p);
      if (!part || (part->p_type == PT_LOAD && !holds(part->p_offset, part->p_filesz)))
        return false;
    }
    return head.e_shnum > 0 && entry<Elf64_Shdr>(head.e_shoff, head.e_shnum - 1u).has_value();
  }

  // Whether the name is among the symbols that others may use.
  bool exports(std::string_view name) const {
    const auto head = *at<Elf64_Ehdr>(0);
    for (std::size_t s = 0; s < head.e_shnum; ++s) {
      const auto table = entry<Elf64_Shdr>(head.e_shoff, s);
      if (!table || table->sh_type != SHT_DYNSYM || !holds(table->sh_offset, table->sh_size))
        continue;
      const auto names = entry<Elf64_Shdr>(head.e_shoff, table->sh_link);
      if (table->sh_link >= head.e_shnum || !names || !holds(names->sh_offset, names->sh_size))
        continue;
      const std::string_view texts(bytes_.data() + names->sh_offset, names->sh_size);
      const std::string wanted = std::string(name) + '\0';
      for (std::size_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); ++i) {
        const auto symbol = entry<Elf64_Sym>(table->sh_offset, i);
        if (symbol->st_shndx != SHN_UNDEF && symbol->st_name < texts.size() &&
            texts.substr(symbol->st_name).starts_with(wanted))
          return true;
      }
    }
    return false;
  }

 private:
  bool holds(std::uint64_t begin, std::uint64_t size) const {
    return begin <= bytes_.size() && size <= bytes_.size() - begin;
  }
  template <class Part>
  std::optional<Part> at(std::uint64_t begin) const {
    if (!holds(begin, sizeof(Part))) return std::nullopt;
    Part part;
    std::memcpy(&part, bytes_.data() + begin, sizeof part);
    return part;
  }
  // Entry `index` of the table at `begin`; nothing beyond the file's end.
  template <class Part>
  std::optional<Part> entry(std::uint64_t begin, std::size_t index) const {
    if (begin > bytes_.size()) return std::nullopt;
    return at<Part>(begin + index * sizeof(Part));
  }

  std::string bytes_;
};

// The file's bytes; none if it is too large or cannot be read.
std::string module_bytes(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (error || size > most_bytes) return "";
  std::string bytes(size, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<std::size_t>(stream.gcount()));
  return bytes;
}

}  // namespace

ModuleVerdict look_into_module(const std::filesystem::path& file) {
  const ElfFile module(module_bytes(file));
  if (!module.is_module()) {
    return {nullptr, "plugin.unloadable", "not a loadable module for this machine",
            "build it with meshwright_add_plugin"};
  }
  if (!module.whole()) {
    return {nullptr, "plugin.unloadable",
            "not a loadable module: it was cut off, or is damaged, as it says that it has more "
            "bytes than are there",
            "copy or build it again"};
  }
  if (!module.exports(descriptor_symbol)) {
    return {nullptr, "plugin.foreign", "not a Meshwright plugin: it exports no descriptor",
            "end the plugin with MESHWRIGHT_PLUGIN(…) of meshwright/plugin.h"};
  }
  return {};
}

}  // namespace mw
