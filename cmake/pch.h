// Precompiled header. ATen's 600 headers are nearly all of a file's compile time; the standard ones
// are those that most files use. Sources still include what they use: this file only saves time.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
