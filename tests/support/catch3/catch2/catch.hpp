// Catch2 3 under the names of Catch2 2, which Debian 12 has and the tests are written for. Its folder
// is on the include path only where Catch2 3 is found (cmake/tests.cmake).
#pragma once

#include <catch2/catch_all.hpp>
#include <string>

using Catch::Approx;

namespace Catch {

inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
using Matchers::EndsWith;
using Matchers::StartsWith;

}  // namespace Catch
