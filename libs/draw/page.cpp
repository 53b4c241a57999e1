// Builds one HTML file from the page's template, its scripts, Chart.js and the data.
#include "draw/page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <ctime>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "common/files.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

namespace fs = std::filesystem;

namespace {

std::string part(const std::string& name) {
  const fs::path share = share_folder();
  const fs::path path = name == "chart.min.js" ? share / name : share / "page" / name;
  std::optional<std::string> text = whole_file(path);
  if (text && !text->empty()) return *std::move(text);
  throw Error(Stage::environment, "page.part", "",
              fmt::format("a part of the reports' page is missing: {}", path.string()),
              "build or install the program anew; Chart.js is Debian's libjs-chart.js");
}

// JSON for a <script> element. Every "<" is escaped, so that no text ends the element or begins a
// comment.
std::string script_json(const Json& data) {
  const std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Json page_data(const std::string& kind, const std::string& title) {
  return {{"kind", kind},
          {"title", title},
          {"program", version_line()},
          {"made", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))}};
}

std::string html_page(const std::string& title, const Json& data) {
  const std::string page = part("page.html");
  std::string out;
  std::size_t at = 0;
  for (;;) {
    const std::size_t begin = page.find("{{", at), end = page.find("}}", begin);
    if (begin == std::string::npos || end == std::string::npos) break;
    out.append(page, at, begin - at);
    const std::string name = page.substr(begin + 2, end - begin - 2);
    if (name == "title") {
      out += escaped(readable(title));
    } else if (name == "policy") {
      if (data.contains("watch")) out += "; connect-src 'self'";
    } else if (name == "data") {
      out += script_json(data);
    } else {
      out += part(name);
    }
    at = end + 2;
  }
  return out.append(page, at, std::string::npos);
}

Json page_number(double value) {
  if (!std::isfinite(value)) return {};
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

std::string page_text(const std::string& text, std::size_t most) {
  const std::size_t have = display_width(text);
  if (have <= most) return readable(text);
  std::size_t at = 0;
  for (std::size_t seen = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
    if (begins && seen++ == most) break;
  }
  return fmt::format("{} … ({} characters)", readable(text.substr(0, at)), have);
}

std::string page_value(const Json& value, std::size_t most) {
  return page_text(value.is_string() ? value.get<std::string>() : value.dump(), most);
}

std::string bars_html(const Json& chart) {
  const std::string title = page_text(chart.value("title", "Chart"), 200);
  Json data = page_data("bars", title);
  data["unit"] = page_text(chart.value("unit", ""), 60);
  data["series"] = data["bars"] = Json::array();
  for (const Json& name : chart.at("series")) data["series"].push_back(page_value(name));
  for (const Json& bar : chart.at("bars")) {
    Json row = Json::array();
    for (std::size_t i = 0; i < bar.size(); ++i) {
      if (i == 0) {
        row.push_back(page_value(bar[i]));
      } else {
        row.push_back(bar[i]);
      }
    }
    data["bars"].push_back(std::move(row));
  }
  return html_page(title, data);
}

}  // namespace mw
