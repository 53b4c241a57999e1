// The precompiled header that all sources share. ATen's 600 headers are nearly all of a file's
// compile time; the others are those that most files use.
// Sources still include what they use: this file only saves time.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
