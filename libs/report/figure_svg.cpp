// Draws a figure for a paper as SVG: points are its unit, a column is 3.3 inches wide, two are 7.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "meshwright/engine/text.h"
#include "report/figures.h"
#include "report/page.h"
#include "report/svg.h"

namespace mw {
namespace {

constexpr double points_an_inch = 72, type_size = 7.5, border = 3, line_step = 10;
// Okabe and Ito's colours, which stay apart for the colour-blind.
constexpr std::array<const char*, 8> inks = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                             "#e69f00", "#56b4e9", "#5b4aa3", "#6b6f1d"};
constexpr std::array<const char*, 3> strokes = {"none", "4 2", "1.2 1.6"};

double text_width(const std::string& text) {
  return 0.58 * type_size * static_cast<double>(display_width(text));
}

// Cuts the middle out of a text that is wider than the room, as many names differ in their ends.
std::string cut_to(const std::string& text, double room) {
  const auto most = static_cast<std::size_t>(std::max(4.0, room / (0.58 * type_size)));
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c > 0; });
  if (display_width(text) <= most || !plain) return text;
  const std::size_t last = (most - 1) / 2;
  return text.substr(0, most - 1 - last) + "…" + text.substr(text.size() - last);
}

std::string number_text(double value) {
  if (value != 0 && std::abs(value) >= 1e6) return fmt::format("{:.4g} M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:.4g} k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

// An axis, which maps values to places between two points.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  bool log = false;

  double place(double value) const {
    const auto of = [&](double v) { return log ? std::log10(v) : v; };
    return from + (of(value) - of(low)) / (of(high) - of(low)) * (to - from);
  }
  std::vector<double> ticks(double count) const {
    std::vector<double> at;
    if (!log) {
      const double step = tick_distance(high - low, count);
      for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i)
        at.push_back(i == 0 ? 0 : i * step);
      return at;
    }
    const double decades = std::log10(high / low);
    const std::vector<double> within = decades > 3     ? std::vector<double>{1}
                                       : decades > 0.9 ? std::vector<double>{1, 2, 5}
                                                       : std::vector<double>{1, 1.5, 2, 3, 4, 5, 7};
    for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
      for (const double step : within)
        if (step * power >= low * (1 - 1e-9) && step * power <= high * (1 + 1e-9))
          at.push_back(step * power);
    return at;
  }
};

class PaperFigure {
 public:
  PaperFigure(const Figure& figure, const FigureStyle& style)
      : figure_(figure), style_(style), width_((style.columns == 2 ? 7.0 : 3.3) * points_an_inch) {}

  std::string draw() {
    y_ = border;
    legend();
    switch (figure_.kind) {
      case Figure::Kind::bars:
      case Figure::Kind::stacked:
        bars();
        break;
      case Figure::Kind::timeline:
        timeline();
        break;
      case Figure::Kind::curves:
        curves();
        break;
      case Figure::Kind::table:
        break;
    }
    const std::string family =
        style_.font.empty() ? "sans-serif" : "'" + style_.font + "', sans-serif";
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.4g}in\" height=\"{1:.4g}in\" "
               "viewBox=\"0 0 {2:.2f} {3:.2f}\" font-family=\"{4}\" font-size=\"{5}\">\n"
               "<title>{6}</title>\n<desc>{7}</desc>\n",
               width_ / points_an_inch, (y_ + border) / points_an_inch, width_, y_ + border,
               escaped(family), type_size, escaped(figure_.title), escaped(style_.made_by)) +
           out_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  void words(double x, double y, const char* anchor, const std::string& text) {
    add("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
        escaped(text));
  }
  void line(double x0, double y0, double x1, double y1, const char* look) {
    add("<path d=\"M{:.2f} {:.2f}L{:.2f} {:.2f}\" {}/>\n", x0, y0, x1, y1, look);
  }
  static constexpr const char* frame = "stroke=\"#000\" stroke-width=\"0.6\" fill=\"none\"";
  static constexpr const char* grid = "stroke=\"#ddd\" stroke-width=\"0.4\" fill=\"none\"";
  static const char* ink(std::size_t series) { return inks[series % inks.size()]; }
  static const char* dash(std::size_t series) { return strokes[series % strokes.size()]; }

  // Swatches and names stand one after the other, in as many lines as they need.
  void legend() {
    const bool marks = !figure_.marks.empty();
    if (figure_.series.size() < 2 && !marks) return;
    double x = border;
    y_ += type_size;
    const auto entry = [&](const std::string& name, const std::string& swatch) {
      const std::string text = cut_to(name, width_ - 2 * border - 16);
      if (x > border && x + 16 + text_width(text) > width_ - border) {
        x = border;
        y_ += line_step;
      }
      add("<g transform=\"translate({:.2f} {:.2f})\">{}</g>", x, y_ - 2.6, swatch);
      words(x + 13, y_, "start", text);
      x += 22 + text_width(text);
    };
    for (std::size_t s = 0; s < figure_.series.size(); ++s)
      entry(figure_.series[s].name, swatch_of(s));
    if (marks)
      entry(figure_.mark_name, "<path d=\"M5-4V4\" stroke=\"#000\" stroke-width=\"1.4\"/>");
    y_ += 5;
  }

  std::string swatch_of(std::size_t s) const {
    if (figure_.kind != Figure::Kind::curves)
      return fmt::format("<rect y=\"-3.5\" width=\"10\" height=\"7\" fill=\"{}\"/>", ink(s));
    if (!figure_.series[s].joined)
      return fmt::format("<circle cx=\"5\" r=\"2\" fill=\"{}\"/>", ink(s));
    return fmt::format(
        "<path d=\"M0 0H10\" stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"{}\"/>", ink(s),
        dash(s));
  }

  double longest_name() const {
    double longest = 0;
    for (const std::string& name : figure_.categories)
      longest = std::max(longest, text_width(name));
    return longest;
  }
  // The most that names beside bars may take.
  double room_beside() const { return 0.36 * width_; }

  void axis_below(const Scale& x, double top) {
    const double room = x.to - x.from;
    for (const double tick : x.ticks(room / 34)) {
      const double at = x.place(tick);
      line(at, y_, at, y_ + 2.5, frame);
      const std::string text = number_text(tick);
      const double half = text_width(text) / 2;
      words(std::clamp(at, border + half, std::max(border + half, width_ - border - half)),
            y_ + 3.5 + type_size, "middle", text);
    }
    line(x.from, y_, x.to, y_, frame);
    line(x.from, top, x.from, y_, frame);
    y_ += 5 + 2 * type_size + 2;
    words((x.from + x.to) / 2, y_, "middle", figure_.x_label);
    y_ += 2;
  }

  // How far bars and intervals go, at most to twice the longest bar: intervals of few noisy runs
  // would leave the bars no width. Their lines then end at the edge.
  double widest_bar() const {
    double most = 0, longest = 0;
    for (std::size_t c = 0; c < figure_.categories.size(); ++c) {
      double sum = 0;
      for (const FigureSeries& s : figure_.series) {
        const double value = std::isfinite(s.y[c]) ? s.y[c] : 0;
        const double spread = c < s.spread.size() && std::isfinite(s.spread[c]) ? s.spread[c] : 0;
        longest = std::max(longest, value);
        sum = figure_.kind == Figure::Kind::stacked ? sum + value : std::max(sum, value + spread);
      }
      if (c < figure_.marks.size() && std::isfinite(figure_.marks[c]))
        sum = std::max(sum, figure_.marks[c]);
      most = std::max(most, sum);
    }
    if (figure_.kind == Figure::Kind::bars && longest > 0) most = std::min(most, 2 * longest);
    return most > 0 ? most : 1;
  }

  void bars() {
    // Names stand beside their bars if they leave these most of the width, else above them.
    const double longest = longest_name();
    const bool above = longest > room_beside();
    const double left = border + (above ? 1 : longest + 4);
    const bool stacked = figure_.kind == Figure::Kind::stacked;
    const double bar = stacked || figure_.series.size() == 1 ? 8 : 5;
    const double body = bar * static_cast<double>(stacked ? 1 : figure_.series.size());
    const double each = body + 4 + (above ? line_step : 0);
    const Scale x{0, 1.03 * widest_bar(), left, width_ - border - 4};
    const double top = y_, bottom = y_ + each * static_cast<double>(figure_.categories.size());
    for (const double tick : x.ticks((x.to - x.from) / 34))
      if (tick > 0) line(x.place(tick), top, x.place(tick), bottom, grid);
    for (std::size_t c = 0; c < figure_.categories.size(); ++c, y_ += each) {
      const double at = y_ + 2 + (above ? line_step : 0);
      if (above) {
        words(left + 2, at - 2.5, "start", cut_to(figure_.categories[c], width_ - left - border));
      } else {
        words(left - 3, at + body / 2 + 2.7, "end", figure_.categories[c]);
      }
      bar_of(c, x, at, bar, body);
    }
    y_ = bottom;
    axis_below(x, top);
  }

  void bar_of(std::size_t c, const Scale& x, double at, double bar, double body) {
    const bool stacked = figure_.kind == Figure::Kind::stacked;
    double sum = 0;
    for (std::size_t s = 0; s < figure_.series.size(); ++s) {
      const FigureSeries& of = figure_.series[s];
      const double value = of.y[c];
      const double y = at + (stacked ? 0 : bar * static_cast<double>(s));
      if (!std::isfinite(value)) continue;
      add("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
          x.place(sum), y, x.place(value) - x.from, bar, ink(s));
      if (c < of.spread.size() && std::isfinite(of.spread[c]) && of.spread[c] > 0) {
        line(x.place(std::max(0.0, value - of.spread[c])), y + bar / 2,
             x.place(std::min(x.high, value + of.spread[c])), y + bar / 2, frame);
      }
      if (stacked) sum += value;
    }
    if (c < figure_.marks.size() && std::isfinite(figure_.marks[c])) {
      const double mark = x.place(figure_.marks[c]);
      line(mark, at - 1.5, mark, at + body + 1.5, "stroke=\"#000\" stroke-width=\"1.4\"");
    }
  }

  void timeline() {
    const double left = border + std::min(longest_name(), room_beside()) + 4;
    const double each = figure_.categories.size() > 16 ? 8 : 12;
    double end = 0;
    for (const FigureSpan& span : figure_.spans) end = std::max(end, span.end);
    const Scale x{0, end > 0 ? end : 1, left, width_ - border - 4};
    const double top = y_;
    for (std::size_t r = 0; r < figure_.categories.size(); ++r) {
      words(left - 3, top + each * static_cast<double>(r) + each / 2 + 2.5, "end",
            cut_to(figure_.categories[r], room_beside()));
    }
    for (const FigureSpan& span : figure_.spans) {
      const double y = top + each * static_cast<double>(span.row) + 1;
      const double from = x.place(span.start), wide = x.place(span.end) - from;
      add("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
          "stroke=\"#fff\" stroke-width=\"0.2\"/>\n",
          from, y, std::max(0.1, wide), each - 2, ink(span.kind));
      if (!span.label.empty() && wide > text_width(span.label) + 1 && each > 10) {
        add("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\" fill=\"#fff\">{}</text>\n",
            from + wide / 2, y + each / 2 + 1.7, escaped(span.label));
      }
    }
    y_ = top + each * static_cast<double>(figure_.categories.size());
    axis_below(x, top);
  }

  // The scale on which all points lie; `values`: their x or their y.
  Scale scale_of(std::vector<double> FigureSeries::*values, bool log, bool zero) const {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const FigureSeries& s : figure_.series) {
      for (const double value : s.*values) {
        if (!std::isfinite(value) || (log && value <= 0)) continue;
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
    if (!(low <= high)) low = log ? 0.1 : 0, high = 1;
    if (log) return {low / 1.12, high * 1.12, 0, 1, true};
    const double span = high > low ? high - low : std::max(1e-9, std::abs(high));
    return {zero ? 0 : low - 0.04 * span, high + 0.05 * span};
  }

  void curves() {
    Scale x = scale_of(&FigureSeries::x, figure_.log_x, figure_.from_zero);
    Scale y = scale_of(&FigureSeries::y, figure_.log_y, figure_.from_zero);
    const double top = y_ + 2, bottom = top + (style_.columns == 2 ? 0.36 : 0.58) * width_;
    y.from = bottom;
    y.to = top;
    const std::vector<double> ticks = y.ticks((bottom - top) / 22);
    double label = 0;
    for (const double tick : ticks) label = std::max(label, text_width(number_text(tick)));
    x.from = border + type_size + 4 + label + 4;
    x.to = width_ - border - 4;
    for (const double tick : ticks) {
      line(x.from, y.place(tick), x.to, y.place(tick), grid);
      words(x.from - 3, y.place(tick) + 2.6, "end", number_text(tick));
    }
    add("<text transform=\"translate({:.2f} {:.2f}) rotate(-90)\" "
        "text-anchor=\"middle\">{}</text>\n",
        border + type_size, (top + bottom) / 2, escaped(figure_.y_label));
    for (std::size_t s = 0; s < figure_.series.size(); ++s) curve(s, x, y);
    y_ = bottom;
    axis_below(x, top);
  }

  void curve(std::size_t s, const Scale& x, const Scale& y) {
    const FigureSeries& of = figure_.series[s];
    std::string path;
    for (std::size_t i = 0; i < of.x.size(); ++i) {
      const bool drawn = std::isfinite(of.x[i]) && std::isfinite(of.y[i]) &&
                         (!x.log || of.x[i] > 0) && (!y.log || of.y[i] > 0);
      if (!drawn) continue;
      const double at = x.place(of.x[i]), high = y.place(of.y[i]);
      path += fmt::format("{}{:.2f} {:.2f}", path.empty() ? "M" : "L", at, high);
      if (!of.joined || of.x.size() <= 12)
        add("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"1.8\" fill=\"{}\"/>\n", at, high, ink(s));
      if (i < of.names.size() && !of.names[i].empty()) name_point(of.names[i], at, high, x, y.from);
    }
    if (!of.joined || path.empty()) return;
    add("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1\" stroke-dasharray=\"{}\"/>\n",
        path, ink(s), dash(s));
  }

  // A name stands beside its point, on the side with more room, inside the frame.
  void name_point(const std::string& name, double at, double high, const Scale& x, double bottom) {
    const bool left = at > (x.from + x.to) / 2;
    const std::string text = cut_to(name, left ? at - x.from - 6 : x.to - at - 4);
    const double y = high + 11 > bottom ? high - 3 : high + 9;
    words(left ? at - 4 : at + 4, y, left ? "end" : "start", text);
  }

  const Figure& figure_;
  const FigureStyle& style_;
  const double width_;
  std::string out_;
  double y_ = 0;  // where the next part of the drawing begins
};

}  // namespace

std::string figure_svg(const Figure& figure, const FigureStyle& style) {
  return PaperFigure(figure, style).draw();
}

}  // namespace mw
