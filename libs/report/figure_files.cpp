// Writes figures for papers: SVG, the PDF that librsvg makes of it, their numbers, LaTeX tables.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <sstream>
#include <system_error>

#include "common/files.h"
#include "common/process.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/rows.h"
#include "report/figures.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr const char* converter = "rsvg-convert";
constexpr std::string_view made_mark = "meshwright report ";  // in all files that are replaced

std::string csv_text(const std::string& text) {
  const std::string quoted = csv_quoted(text);
  const bool plain = text.find_first_of(",\n") == std::string::npos;
  return plain && quoted == '"' + text + '"' ? text : quoted;
}

std::string csv_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.10g}", value) : "";
}

double value_at(const std::vector<double>& values, std::size_t at) {
  return at < values.size() ? values[at] : not_known;
}

// A column's head. Tables have no unit of their own, as their columns' names say it.
std::string with_unit(const std::string& name, const Figure& figure) {
  return figure.x_label.empty() ? name : fmt::format("{} ({})", name, figure.x_label);
}

std::string csv_of_bars(const Figure& figure) {
  std::string out = csv_text(figure.y_label);
  for (const FigureSeries& s : figure.series) {
    out += "," + csv_text(with_unit(s.name, figure));
    if (!s.spread.empty()) out += "," + csv_text(s.name + " ±");
  }
  if (!figure.marks.empty()) out += "," + csv_text(with_unit(figure.mark_name, figure));
  out += "\n";
  for (std::size_t c = 0; c < figure.categories.size(); ++c) {
    out += csv_text(figure.categories[c]);
    for (const FigureSeries& s : figure.series) {
      out += "," + csv_number(value_at(s.y, c));
      if (!s.spread.empty()) out += "," + csv_number(value_at(s.spread, c));
    }
    if (!figure.marks.empty()) out += "," + csv_number(value_at(figure.marks, c));
    out += "\n";
  }
  return out;
}

std::string csv_of_curves(const Figure& figure) {
  std::string out =
      fmt::format("series,name,{},{}\n", csv_text(figure.x_label), csv_text(figure.y_label));
  for (const FigureSeries& s : figure.series) {
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      out += fmt::format("{},{},{},{}\n", csv_text(s.name),
                         i < s.names.size() ? csv_text(s.names[i]) : "", csv_number(s.x[i]),
                         csv_number(s.y[i]));
    }
  }
  return out;
}

std::string csv_of_timeline(const Figure& figure) {
  std::string out = fmt::format("row,work,label,start ({0}),end ({0})\n", figure.x_label);
  for (const FigureSpan& span : figure.spans) {
    out += fmt::format("{},{},{},{},{}\n", csv_text(figure.categories[span.row]),
                       csv_text(figure.series[span.kind].name), csv_text(span.label),
                       csv_number(span.start), csv_number(span.end));
  }
  return out;
}

std::string tex_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("&%$#_{}").find(c) != std::string_view::npos) {
      out += std::string("\\") + c;
    } else if (c == '\\') {
      out += "\\textbackslash{}";
    } else if (c == '~') {
      out += "\\textasciitilde{}";
    } else if (c == '^') {
      out += "\\textasciicircum{}";
    } else {
      out += c;
    }
  }
  return out;
}

std::string tex_number(double value) {
  if (!std::isfinite(value)) return "--";
  return std::abs(value) >= 1e4 ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

// Comments of PDF and LaTeX end with their line.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

// Why no PDF is made. Empty: they are.
std::string why_no_pdf() {
  std::istringstream folders(std::getenv("PATH") == nullptr ? "" : std::getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((fs::path(folder) / converter).c_str(), X_OK) == 0) return "";
  return fmt::format(
      "{} is not there, which makes a PDF of each drawing; install it (apt-get install "
      "librsvg2-bin on Debian and Ubuntu, librsvg2-tools on Fedora) and give the command again",
      converter);
}

void check_replaced(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return;
  const std::optional<std::string> text =
      fs::is_regular_file(file) ? whole_file(file) : std::nullopt;
  if (text && text->find(made_mark) != std::string::npos) return;
  throw Error(
      Stage::options, "page.foreign", "",
      fmt::format("--figures {}: it is there, and it is no figure of meshwright", file.string()),
      "name another folder; figures that are there are replaced");
}

// The fonts that a PDF holds, without the letters that tell subsets apart.
void take_fonts(const std::string& pdf, std::set<std::string>& fonts) {
  constexpr std::string_view key = "/FontName /";
  for (std::size_t at = 0; (at = pdf.find(key, at)) != std::string::npos;) {
    at += key.size();
    std::string name = pdf.substr(at, pdf.find_first_of(" \r\n/>", at) - at);
    if (const std::size_t plus = name.find('+'); plus != std::string::npos) name.erase(0, plus + 1);
    fonts.insert(name);
  }
}

// Adds the command that made a PDF as a comment before its last lines, where readers skip it.
void put_comment(std::string& pdf, const std::string& made_by) {
  const std::size_t at = pdf.rfind("startxref");
  if (at != std::string::npos) pdf.insert(at, "% made by: " + one_line(made_by) + "\n");
}

void make_pdf(const fs::path& svg, const fs::path& pdf, const FigureStyle& style,
              std::set<std::string>& fonts) {
  const std::string log = pdf.string() + ".log";
  ProcessStart start;
  start.command = {converter, "--format=pdf", "--dpi-x=96", "--dpi-y=96",
                   "-o",      pdf.string(),   svg.string()};
  start.output = log;
  int status = 0;
  const pid_t process = start_process(start);
  ::waitpid(process, &status, 0);
  const std::string said = whole_file(log).value_or("");
  std::error_code error;
  fs::remove(log, error);
  std::string text = whole_file(pdf).value_or("");
  if (status != 0 || !text.starts_with("%PDF")) {
    throw Error(Stage::environment, "program.failed", "",
                fmt::format("--figures: {} could not convert {}: {}", converter, svg.string(),
                            readable_line(said)),
                "run it by hand on that file to see more");
  }
  take_fonts(text, fonts);
  put_comment(text, style.made_by);
  write_output("--figures", pdf.string(), text);
}

std::string figure_csv(const Figure& figure, const FigureStyle& style) {
  const std::string head = "# made by: " + one_line(style.made_by) + "\n";
  switch (figure.kind) {
    case Figure::Kind::curves:
      return head + csv_of_curves(figure);
    case Figure::Kind::timeline:
      return head + csv_of_timeline(figure);
    default:
      return head + csv_of_bars(figure);
  }
}

std::string figure_tex(const Figure& figure, const FigureStyle& style) {
  const std::size_t columns = figure.series.size() + (figure.marks.empty() ? 0 : 1);
  std::string out = fmt::format(
      "% made by: {}\n% {}; needs \\usepackage{{booktabs}}\n\\begin{{tabular}}{{l{}}}\n\\toprule\n",
      one_line(style.made_by), figure.title, std::string(columns, 'r'));
  out += tex_text(figure.y_label);
  for (const FigureSeries& s : figure.series) out += " & " + tex_text(s.name);
  if (!figure.marks.empty()) out += " & " + tex_text(figure.mark_name);
  out += " \\\\\n";
  if (!figure.x_label.empty())
    out +=
        fmt::format(" & \\multicolumn{{{}}}{{r}}{{{}}} \\\\\n", columns, tex_text(figure.x_label));
  out += "\\midrule\n";
  for (std::size_t c = 0; c < figure.categories.size(); ++c) {
    out += tex_text(figure.categories[c]);
    for (const FigureSeries& s : figure.series) {
      out += " & " + tex_number(value_at(s.y, c));
      const double spread = value_at(s.spread, c);
      if (std::isfinite(spread)) out += fmt::format(" $\\pm$ {}", tex_number(spread));
    }
    if (!figure.marks.empty()) out += " & " + tex_number(value_at(figure.marks, c));
    out += " \\\\\n";
  }
  return out + "\\bottomrule\n\\end{tabular}\n";
}

bool has_table(const Figure& figure) {
  return figure.kind != Figure::Kind::curves && figure.kind != Figure::Kind::timeline;
}

}  // namespace

Json write_figures(const FigureSet& set, const std::string& folder, const FigureStyle& style) {
  const std::string no_pdf = why_no_pdf();
  const auto path = [&](const Figure& figure, const char* ending) {
    return (fs::path(folder) / (figure.name + ending)).string();
  };
  for (const Figure& figure : set.figures)
    for (const char* ending : {".svg", ".pdf", ".csv", ".tex"})
      check_replaced(path(figure, ending));
  Json result = {{"figures", Json::array()}, {"not_drawn", Json::array()}};
  std::set<std::string> fonts;
  for (const Figure& figure : set.figures) {
    Json files = Json::array();
    const auto write = [&](const char* ending, const std::string& text) {
      write_output("--figures", path(figure, ending), text);
      files.push_back(path(figure, ending));
    };
    if (figure.kind != Figure::Kind::table) {
      write(".svg", figure_svg(figure, style));
      if (no_pdf.empty()) {
        make_pdf(path(figure, ".svg"), path(figure, ".pdf"), style, fonts);
        files.push_back(path(figure, ".pdf"));
      }
    }
    write(".csv", figure_csv(figure, style));
    if (has_table(figure)) write(".tex", figure_tex(figure, style));
    result["figures"].push_back({{"name", figure.name},
                                 {"title", figure.title},
                                 {"files", files},
                                 {"left_out", figure.left_out}});
  }
  for (const auto& [name, why] : set.not_drawn)
    result["not_drawn"].push_back({{"name", name}, {"why", why}});
  result["fonts"] = fonts;
  result["no_pdf"] = no_pdf.empty() ? Json() : Json(no_pdf);
  return result;
}

}  // namespace mw
