// Draws a timeline as a stand-alone SVG that follows the viewer's light or dark scheme.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/statistics.h"
#include "draw/page.h"
#include "draw/palette.h"

namespace mw {
namespace {

constexpr double margin = 16, title_height = 30, legend_height = 28, row_gap = 4;
constexpr double letter_width = 7;  // of the 12 px font, a little more than most letters take
constexpr double narrowest = 720, widest = 2400;
constexpr std::size_t most_hints = 20000;  // with more cells, no hover texts: they need much space

double width_of(std::string_view text) {
  const auto letters =
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  return letter_width * static_cast<double>(letters);
}

// The distance between ticks: 1, 2 or 5 times a power of ten, for about `count` ticks.
double tick_distance(double span, double count) {
  const double rough = span / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power >= rough) return step * power;
  return 10 * power;
}

std::string class_of(const TimedAction& work) {
  if (shade_of(work.name) != nullptr)
    return fmt::format("{}{}", work.name, std::max(0, work.chunk) % shade_count);
  return is_transfer(work) ? "move" : "other";
}

class Picture {
 public:
  Picture(const std::vector<std::vector<TimedAction>>& rows, const std::vector<std::string>& names)
      : rows_(rows), names_(names) {
    measure();
  }

  std::string draw(const std::string& title, const std::string& caption) {
    const double grid = static_cast<double>(rows_.size()) * (row_height_ + row_gap);
    const double bottom = top_ + grid + 24;
    style();
    add("<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n");
    add("<text class=\"title\" x=\"{}\" y=\"{}\">{}</text>\n", margin, margin + 12, escaped(title));
    legend();
    for (std::size_t i = 0; i < rows_.size(); ++i) lane(i);
    axis(grid);
    for (std::size_t i = 0; i < rows_.size(); ++i) row(i);
    double width =
        std::max({left_ + width_ + margin, 2 * margin + 1.3 * width_of(title), legend_width_});
    double height = bottom;
    std::istringstream lines(caption);
    for (std::string line; std::getline(lines, line); height += 18) {
      add("<text class=\"soft\" x=\"{}\" y=\"{:.0f}\">{}</text>\n", margin, height + 14,
          escaped(line));
      width = std::max(width, 2 * margin + width_of(line));
    }
    height += margin;
    const std::string head = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"system-ui, sans-serif\" "
        "font-size=\"12\" style=\"max-width:100%;height:auto\">\n<title>{2}</title>\n",
        width, height, escaped(title));
    return head + out_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  // Chooses the scale so that an action of typical length is wide enough for its number, if the
  // picture stays within bounds.
  void measure() {
    std::vector<double> lengths;
    bool first = true;
    double end = 0;
    for (const auto& works : rows_) {
      cells_ += works.size();
      for (const TimedAction& work : works) {
        begin_ = first ? work.start : std::min(begin_, work.start);
        end = first ? work.end : std::max(end, work.end);
        first = false;
        used_.insert(class_of(work));
        if (shade_of(work.name) == nullptr) continue;
        chunks_ = std::max(chunks_, work.chunk + 1);
        if (work.end > work.start) lengths.push_back(work.end - work.start);
      }
    }
    span_ = end - begin_;
    double wanted = narrowest;
    if (!lengths.empty()) {
      // The lower quartile of lengths, so that a few very short actions do not decide.
      wanted = 20 * span_ / quantile(lengths, 0.25);
    }
    width_ = std::clamp(wanted, narrowest, widest);
    scale_ = span_ > 0 ? width_ / span_ : 0;
    row_height_ = rows_.size() > 32 ? 14 : 24;
    double label = 0;
    for (const std::string& name : names_) label = std::max(label, width_of(name));
    left_ = margin + label + 8;
    top_ = margin + title_height + legend_height;
  }

  double x_of(double time) const { return left_ + (time - begin_) * scale_; }
  double y_of(std::size_t row) const {
    return top_ + static_cast<double>(row) * (row_height_ + row_gap);
  }

  void style() {
    std::string light, dark;
    for (const Shade& shade : shades) {
      for (int chunk = 0; chunk < shade_count; ++chunk) {
        if (!used_.count(fmt::format("{}{}", shade.name, chunk))) continue;
        light += rule(shade, chunk, 255);
        // In the dark scheme, later chunks come nearer to the dark colour of the page.
        dark += rule(shade, chunk, 24);
      }
    }
    add("<style>\n"
        ".page{{fill:#fff}}text{{fill:#1b1f24}}.soft{{fill:#59636e}}.lane{{fill:#f0f2f5}}\n"
        ".grid{{stroke:#d5dae0}}.move{{fill:#8b6fc0}}.other{{fill:#9aa3ad}}\n"
        ".title{{font-size:15px;font-weight:600}}\n"
        ".n{{font-size:11px;text-anchor:middle;pointer-events:none}}.r{{text-anchor:end}}\n"
        "{}@media (prefers-color-scheme:dark){{\n"
        ".page{{fill:#14171b}}text{{fill:#e6e9ed}}.soft{{fill:#9aa5b1}}.lane{{fill:#20252b}}\n"
        ".grid{{stroke:#39414a}}.move{{fill:#a58ad6}}.other{{fill:#6d7782}}\n{}}}\n</style>\n",
        light, dark);
  }

  // A CSS rule for the shade of a chunk: each further chunk goes about a fifth of the way towards
  // `page`, the grey of the page.
  static std::string rule(const Shade& shade, int chunk, unsigned page) {
    const double part = 0.22 * chunk;
    double luminance = 0;
    unsigned rgb[3];
    const double weights[] = {0.299, 0.587, 0.114};
    for (std::size_t i = 0; i < 3; ++i) {
      rgb[i] = static_cast<unsigned>(std::lround(shade.rgb[i] * (1 - part) + page * part));
      luminance += weights[i] * rgb[i];
    }
    const std::string name = fmt::format("{}{}", shade.name, chunk);
    return fmt::format(".{0}{{fill:#{1:02x}{2:02x}{3:02x}}}.{0}t{{fill:{4}}}\n", name, rgb[0],
                       rgb[1], rgb[2], luminance > 140 ? "#14171b" : "#fff");
  }

  // Draws the legend: a swatch for each shade in use, and then its meaning.
  void legend() {
    double x = margin;
    const double y = margin + title_height - 8;
    const auto swatch = [&](const std::string& name) {
      add("<rect class=\"{}\" x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"14\" rx=\"2\"/>",
          name, x, y);
      x += 16;
    };
    const auto words = [&](std::string_view text) {
      add("<text class=\"soft\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", x + 4, y + 11, text);
      x += 20 + width_of(text);
    };
    for (const Shade& shade : shades) {
      const double before = x;
      for (int chunk = 0; chunk < shade_count; ++chunk) {
        const std::string name = fmt::format("{}{}", shade.name, chunk);
        if (used_.count(name)) swatch(name);
      }
      if (x > before) words(fmt::format("{} {}", shade.name, shade.words));
    }
    for (const auto& [name, text] : {std::pair{"move", "send, receive"}, {"other", "other"}}) {
      if (!used_.count(name)) continue;
      swatch(name);
      words(text);
    }
    if (chunks_ > 1) words("one shade a chunk");
    legend_width_ = x;
  }

  void axis(double grid) {
    if (span_ <= 0) return;
    const double step = tick_distance(span_, width_ / 90);
    for (int i = 0; i * step <= span_ * (1 + 1e-9); ++i) {
      const double x = left_ + i * step * scale_;
      add("<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>"
          "<text class=\"soft n\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4:.4g}</text>\n",
          x, top_ - 3, top_ + grid + 2, top_ + grid + 15, i * step);
    }
  }

  void lane(std::size_t i) {
    const double y = y_of(i);
    const std::string name = i < names_.size() ? names_[i] : "";
    add("<text class=\"r\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>"
        "<rect class=\"lane\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>\n",
        left_ - 8, y + row_height_ / 2 + 4, escaped(name), left_, y, width_, row_height_);
  }

  void row(std::size_t i) {
    const double y = y_of(i);
    for (const TimedAction& work : rows_[i])
      if (!is_transfer(work))
        cell(work, y + row_height_ * work.lane / work.lanes, row_height_ / work.lanes);
    // Transfers are drawn last, over the actions during which they run.
    for (const TimedAction& work : rows_[i])
      if (is_transfer(work)) cell(work, y + row_height_ - 5, 5);
  }

  void cell(const TimedAction& work, double y, double height) {
    const double x = x_of(work.start), width = (work.end - work.start) * scale_;
    // Leaves a thin gap between neighbours, narrower for narrow cells.
    const double hair = width > 4 ? 1 : 0.15 * width;
    const std::string name = class_of(work);
    add("<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\"", name, x,
        y, std::max(0.1, width - hair), height);
    if (cells_ > most_hints) {
      add("/>");
    } else {
      add("><title>{}</title></rect>", escaped(words_of(work)));
    }
    if (shade_of(work.name) != nullptr && work.microbatch >= 0) {
      const std::string number = std::to_string(work.microbatch);
      if (width_of(number) <= width - 1) {
        add("<text class=\"n {}t\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", name,
            x + (width - hair) / 2, y + height / 2 + 4, number);
      }
    }
    out_ += '\n';
  }

  std::string words_of(const TimedAction& work) const {
    std::string words = work.name;
    if (work.vstage >= 0 && work.microbatch >= 0 && shade_of(work.name) != nullptr) {
      words = fmt::format("{}{}{}", work.vstage, work.name, work.microbatch);
    } else if (work.microbatch >= 0) {
      words += fmt::format(" of microbatch {}", work.microbatch);
    }
    return fmt::format("{}: {:.6g} to {:.6g}", words, work.start - begin_, work.end - begin_);
  }

  const std::vector<std::vector<TimedAction>>& rows_;
  const std::vector<std::string>& names_;
  std::string out_;
  std::set<std::string> used_;  // CSS classes in use
  std::size_t cells_ = 0;
  int chunks_ = 1;
  double begin_ = 0, span_ = 0, scale_ = 0, width_ = narrowest, row_height_ = 24, left_ = 0,
         top_ = 0;
  double legend_width_ = 0;
};

}  // namespace

std::string draw_svg(const std::vector<std::vector<TimedAction>>& rows,
                     const std::vector<std::string>& row_names, const std::string& title,
                     const std::string& caption) {
  return Picture(rows, row_names).draw(title, caption);
}

}  // namespace mw
