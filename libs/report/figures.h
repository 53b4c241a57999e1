// Figures and tables for papers, of runs, sweeps, plans and searches: drawn in the width of a
// column, each with the numbers that it shows and the command that made it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/json.h"

namespace mw {

struct FigureSeries {
  std::string name;
  std::vector<double> x, y;        // bars have y alone, one of each category; NaN: nothing there
  std::vector<double> spread;      // half of each y's interval, or none
  std::vector<std::string> names;  // the points' names, or none
  bool joined = true;              // a line joins the points
};

struct FigureSpan {
  std::size_t row = 0, kind = 0;  // indices of a timeline's categories and series
  std::string label;
  double start = 0, end = 0;
};

struct Figure {
  enum class Kind { bars, stacked, curves, timeline, table };
  Kind kind = Kind::bars;
  std::string name;              // its files' name, without their endings
  std::string title;             // a sentence for the caption
  std::string x_label, y_label;  // with the unit; bars lie along x, and y_label is their header
  std::vector<std::string> categories;  // what each bar, or each row of a timeline, stands for
  std::vector<FigureSeries> series;
  std::vector<double> marks;  // one of each category, drawn across its bar
  std::string mark_name;
  std::vector<FigureSpan> spans;
  bool log_x = false, log_y = false, from_zero = true;
  // What it shows where that is less than the data: "the 24 fastest of 30".
  std::string left_out;
};

struct FigureStyle {
  int columns = 1;      // the width: one column of a paper with two, or both
  std::string font;     // a family; empty: sans-serif
  std::string made_by;  // the command, which each file holds
};

struct FigureSet {
  std::vector<Figure> figures;
  std::vector<std::pair<std::string, std::string>> not_drawn;  // a figure's name, and why
};

// An input is a run file, a folder of runs or of a sweep, or a file with the lines that plan or
// search wrote with --json. Throws Error (options).
// `of_run`: see find_report_runs().
FigureSet figures_of(const std::vector<std::filesystem::path>& inputs,
                     const std::vector<std::string>& of_run);

std::string figure_svg(const Figure& figure, const FigureStyle& style);

// Writes each figure as NAME.svg, .pdf and .csv, and .tex where it has bars; a table as .csv and
// .tex. Returns { figures: [{ name, title, files, left_out }], not_drawn: [{ name, why }], fonts }.
// Throws Error before anything is written if rsvg-convert is missing, or if a file is there that
// this did not make.
Json write_figures(const FigureSet& set, const std::string& folder, const FigureStyle& style);

}  // namespace mw
