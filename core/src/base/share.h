// Where the files lie that belong to the program: its Lua side, templates, texts to train on.
#pragma once

#include <filesystem>

namespace mw {

// ../share/meshwright beside the program, in a build folder and installed alike.
std::filesystem::path share_folder();

}  // namespace mw
