// The precompiled header of plugins: what nearly all of a plugin's compile time is spent on. A
// plugin includes what it uses all the same; this only saves time.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
