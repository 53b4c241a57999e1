// The colours of a schedule's actions: a hue for each of F, B, I and W, and a shade for each chunk.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "meshwright/schedule.h"

namespace mw {

constexpr int shade_count = 4;

struct Shade {
  std::string_view name, words;
  std::array<int, shade_count> terminal;  // for each chunk, one of a terminal's 256 colours
  std::array<unsigned, 3> rgb;            // the colour of chunk 0
};

// Colour-blind people can tell blue, vermilion, orange and green apart.
constexpr std::array<Shade, 4> shades = {{
    {"F", "forward", {25, 32, 74, 117}, {0x2f, 0x6d, 0xb5}},
    {"B", "backward", {130, 166, 209, 216}, {0xc2, 0x4e, 0x1e}},
    {"I", "input gradient", {136, 172, 179, 222}, {0xd9, 0x92, 0x1c}},
    {"W", "weight gradient", {29, 35, 72, 115}, {0x1f, 0x8a, 0x6d}},
}};

// The shade of F, B, I or W; null for any other name, such as that of a transfer.
inline const Shade* shade_of(std::string_view name) {
  for (const Shade& shade : shades)
    if (shade.name == name) return &shade;
  return nullptr;
}

inline bool is_transfer(const TimedAction& action) {
  return action.name.starts_with("send") || action.name.starts_with("receive");
}

inline std::string escape_of(const TimedAction& work) {
  const Shade* shade = shade_of(work.name);
  if (shade == nullptr) return "\x1b[48;5;244m\x1b[38;5;16m";
  const auto chunk = static_cast<std::size_t>(work.chunk % shade_count);
  return "\x1b[48;5;" + std::to_string(shade->terminal[chunk]) + "m\x1b[38;5;" +
         (chunk < 2 ? "231m" : "16m");
}

}  // namespace mw
