// Where the program lies, and the files that belong to it: its Lua side, templates, texts to train
// on.
#pragma once

#include <filesystem>

namespace mw {

std::filesystem::path program_path();  // of the file that runs; empty if the system does not say

// ../share/meshwright beside the program, in a build folder and installed alike.
std::filesystem::path share_folder();

}  // namespace mw
