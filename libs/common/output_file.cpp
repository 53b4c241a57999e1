// Writes a file that a command's option or a script asks for, making its folders, and says what
// went wrong if it cannot.
#include "common/output_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "meshwright/error.h"

namespace mw {

void write_output(const std::string& asked_by, const std::string& path, const std::string& text) {
  const std::filesystem::path file(path);
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (out) return;
  const int reason = errno != 0 ? errno : EIO;
  throw Error(Stage::options, "file.write", "",
              fmt::format("{} {}: cannot write it: {}", asked_by, path,
                          std::generic_category().message(reason)),
              "name a file in a folder that you may write to");
}

}  // namespace mw
