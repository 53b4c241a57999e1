// Figures and tables for papers: what runs, sweeps, plans and searches say, drawn in the size of a
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
  std::vector<double> x, y;        // of bars: y alone, one of each category; NaN: nothing there
  std::vector<double> spread;      // half of an interval, or none
  std::vector<std::string> names;  // of points
  bool joined = true;              // by a line
};

struct FigureSpan {
  std::size_t row = 0, kind = 0;  // indices of a timeline's categories and series
  std::string label;
  double start = 0, end = 0;
};

struct Figure {
  enum class Kind { bars, stacked, curves, timeline, table };
  Kind kind = Kind::bars;
  std::string name;              // of its files
  std::string title;             // a sentence for the caption
  std::string x_label, y_label;  // with the unit; bars lie along x, and y_label is their header
  std::vector<std::string> categories;  // of bars: what each is of; of a timeline: its rows
  std::vector<FigureSeries> series;
  std::vector<double> marks;  // one of each category, drawn across its bar
  std::string mark_name;
  std::vector<FigureSpan> spans;
  bool log_x = false, log_y = false, from_zero = true;
  // Where the drawing shows less than the data: what it leaves out.
  std::string left_out;
};

struct FigureStyle {
  int columns = 1;      // of the paper's two, that the figure is as wide as
  std::string font;     // a family; empty: sans-serif
  std::string made_by;  // the command, which each file holds
};

struct FigureSet {
  std::vector<Figure> figures;
  std::vector<std::pair<std::string, std::string>> not_drawn;  // a figure's name, and why
};

// An input is a run file, a folder of runs or of a sweep, or a file with the lines that plan or
// search wrote with --json. Throws Error (options).
FigureSet figures_of(const std::vector<std::filesystem::path>& inputs);

std::string figure_svg(const Figure& figure, const FigureStyle& style);

// Writes each figure as NAME.svg, .pdf and .csv, and .tex where it has bars; a table as .csv and
// .tex. Returns { figures: [{ name, title, files, left_out }], not_drawn: [{ name, why }], fonts }.
// Throws Error before anything is written if rsvg-convert is missing, or if a file is there that
// this did not make.
Json write_figures(const FigureSet& set, const std::string& folder, const FigureStyle& style);

}  // namespace mw
