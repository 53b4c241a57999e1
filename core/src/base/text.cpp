// Text for people: joined lists, quotes, plurals, numbers of a few digits, aligned tables, and
// names made fit to print.
#include "meshwright/engine/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/options.h"

namespace mw {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string join_quoted(const std::vector<std::string>& parts, std::string_view separator) {
  std::vector<std::string> quoted;
  for (const std::string& part : parts) quoted.push_back(quote(part));
  return join(quoted, separator);
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

namespace {

// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none. Overlong forms,
// surrogates and what lies above U+10FFFF are none.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf5   ? 0
                            : first >= 0xf0 ? 4
                            : first >= 0xe0 ? 3
                            : first >= 0xc2 ? 2
                                            : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = at(1);
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return wrong ? 0 : bytes;
}

}  // namespace

namespace {

// Control characters beyond ASCII, which some terminals obey as they do ESC: U+0080 to U+009F, and
// those that turn the direction of what follows: U+202A to U+202E, U+2066 to U+2069.
bool controls_terminal(std::string_view character) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 2) return at(0) == 0xc2 && at(1) < 0xa0;
  if (character.size() != 3 || at(0) != 0xe2) return false;
  return (at(1) == 0x80 && at(2) >= 0xaa && at(2) <= 0xae) ||
         (at(1) == 0x81 && at(2) >= 0xa6 && at(2) <= 0xa9);
}

std::string without_controls(std::string_view text, bool lines) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool layout = first == '\n' || first == '\t';
    if (layout && !lines) {
      out += first == '\n' ? "\\n" : "\\t";
    } else if (bytes == 0 || (first < 0x20 && !layout) || first == 0x7f) {
      out += fmt::format("\\x{:02x}", first);
    } else if (controls_terminal(text.substr(0, bytes))) {
      for (const char c : text.substr(0, bytes))
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

}  // namespace

std::string readable(std::string_view text) {
  return without_controls(text, /*lines=*/true);
}

std::string readable_line(std::string_view text) {
  return without_controls(text, /*lines=*/false);
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("did you mean {}?", quote(near));
}

std::string format_number(double value) {
  return fmt::format("{}", value);
}

std::string plural(std::int64_t count, std::string_view noun) {
  const char* ending = count == 1 ? "" : noun.ends_with("ch") || noun.ends_with("ss") ? "es" : "s";
  return fmt::format("{} {}{}", count, noun, ending);
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out, line;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!line.empty() && display_width(line) + 1 + display_width(word) > width) {
      out += line + '\n' + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  return out + line;
}

TextTable::TextTable(std::vector<std::string> header, std::vector<std::size_t> right)
    : header_(std::move(header)), right_(std::move(right)) {
  for (std::string& cell : header_) cell = readable_line(cell);
}

void TextTable::add(std::vector<std::string> row) {
  row.resize(std::max(row.size(), header_.size()));
  for (std::string& cell : row) cell = readable_line(cell);
  rows_.push_back(std::move(row));
}

std::string TextTable::text(std::string_view indent) const {
  std::vector<std::size_t> widths;
  const auto measure = [&](const std::vector<std::string>& row) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  };
  measure(header_);
  for (const auto& row : rows_) measure(row);

  std::string out;
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line(indent);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - display_width(row[i]), ' ');
      const bool right = std::find(right_.begin(), right_.end(), i) != right_.end();
      line += right ? pad + row[i] : row[i] + pad;
      if (i + 1 < row.size()) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  const bool titled =
      std::any_of(header_.begin(), header_.end(), [](const auto& cell) { return !cell.empty(); });
  if (titled) {
    print(header_);
    std::vector<std::string> rule;
    for (const std::size_t width : widths) rule.emplace_back(width, '-');
    print(rule);
  }
  for (const auto& row : rows_) print(row);
  return out;
}

}  // namespace mw
