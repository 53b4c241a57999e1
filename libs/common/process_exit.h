// How the process ends.
#pragma once

namespace mw {

// To be called first in main(). When the process ends, what was registered since still happens
// (statics of functions, plugins, files); the libraries that were loaded before are not taken down:
// libtorch's operators, unregistered one by one, take longer than many a command.
void exit_without_unloading();

}  // namespace mw
