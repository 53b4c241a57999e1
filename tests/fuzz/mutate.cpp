// Changes inputs by small steps, as fuzzers do, led by a seed alone.
#include "fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace mw::fuzz {
namespace {

constexpr std::size_t longest = 1 << 16;

// SplitMix64 (Steele et al. 2014): the standard library's distributions differ from one to another.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t end) { return end == 0 ? 0 : next() % end; }

 private:
  std::uint64_t state_;
};

constexpr std::array numbers = {"0",          "-1",  "1e999", "1.5",      "9223372036854775807",
                                "4294967296", "1e9", "-1e18", "0.000001", "18446744073709551616"};
constexpr std::array marks = {"{", "}", "[", "]", "\"", ",", "null", "\n", "{}", "[[[[[[[["};

// Puts another number in the place of the first one behind some place, or at the end.
void change_number(std::string& text, Dice& dice) {
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto from = text.begin() + static_cast<std::ptrdiff_t>(dice.below(text.size()));
  const auto begin = std::find_if(from, text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  text.replace(begin, end, numbers[dice.below(numbers.size())]);
}

void change(std::string& text, const std::string& other, Dice& dice) {
  const std::size_t at = dice.below(text.size() + 1);
  const std::size_t count = 1 + dice.below(dice.below(3) == 0 ? 256 : 8);
  switch (dice.below(8)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << dice.below(8)));
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(dice.next());
      break;
    case 2:
      text.erase(at, count);
      break;
    case 3:
      text.insert(at, text.substr(dice.below(text.size() + 1), count));
      break;
    case 4:
      text.insert(at, other.substr(dice.below(other.size() + 1), count));
      break;
    case 5:
      change_number(text, dice);
      break;
    case 6:
      text.insert(at, marks[dice.below(marks.size())]);
      break;
    default:  // eight bytes, as the sizes in files are
      for (std::size_t i = 0; i < 8 && at + i < text.size(); ++i)
        text[at + i] = dice.below(2) == 0 ? '\0' : '\xff';
  }
  if (text.size() > longest) text.resize(longest);
}

}  // namespace

std::string mutated(const std::vector<std::string>& inputs, std::uint64_t seed) {
  Dice dice(seed);
  std::string text = inputs[dice.below(inputs.size())];
  const std::string& other = inputs[dice.below(inputs.size())];
  for (std::size_t k = 1 + dice.below(4); k > 0; --k) change(text, other, dice);
  return text;
}

}  // namespace mw::fuzz
