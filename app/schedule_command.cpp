// `meshwright schedule`: a pipeline schedule drawn, checked and timed, without a model.
#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "app/chrome_trace.h"
#include "app/command.h"
#include "common/files.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"

namespace mw {
namespace {

struct ScheduleArguments : Arguments {
  std::string name;                              // a scheduler's name, or a CSV file
  int stages = 0, microbatches = 0, chunks = 0;  // 0: not given
  std::vector<double> times = {1, 1, 1};  // durations of F, I and W of a stage and microbatch
  double send = 0;                        // duration of a send between two stages, in the same unit
  double memory = 0;                      // microbatches that a stage may hold; 0: no limit
  double joint = 1;                       // see ScheduleRequest::joint
  std::vector<std::string> options;       // options of the scheduler, KEY=VALUE
  std::string csv, svg, trace;            // files to write; empty: none
};

// most forwards of a schedule, of some seconds
constexpr std::int64_t most_works = std::int64_t{1} << 21;
constexpr double most_time = 1e12;  // in any unit: sums of such times stay exact enough

// A schedule, and the request that it was made for.
struct RequestedSchedule {
  Schedule schedule;
  ScheduleRequest request;
  std::string of_one_chunk;  // see Scheduler::of_one_chunk()
};

// Times and memory are given for a whole stage: a chunk has its share.
void share_out(const ScheduleArguments& arguments, ScheduleRequest& request) {
  const auto chunks = static_cast<double>(request.chunks);
  const auto& t = arguments.times;
  request.times = {{t[0] / chunks, t[1] / chunks, t[2] / chunks, arguments.send}};
  request.bytes = {{1 / chunks, 1 / chunks}};
  request.memory_limit = arguments.memory;
  request.joint = arguments.joint;
}

// The scheduler's options as they were given, each "pair=true".
Json options_of(const ScheduleArguments& arguments) {
  Json given = Json::object();
  for (const std::string& option : arguments.options) {
    const std::size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Error(Stage::options, "usage.value", "",
                  fmt::format("--option {} says no key and value", quote(option)),
                  "for example: --option pair=true");
    }
    const std::string value = option.substr(equals + 1);
    const Json read = json_in(value);
    given[option.substr(0, equals)] = read.is_null() && value != "null" ? Json(value) : read;
  }
  return given;
}

RequestedSchedule read_schedule(const ScheduleArguments& arguments, const Catalog& catalog) {
  check_regular(arguments.name);
  const std::optional<std::string> text = whole_file(arguments.name);
  if (!text) {
    throw Error(
        Stage::options, "file.missing", "",
        fmt::format("{}: there is no such file", arguments.name),
        "name a CSV file of compute actions, or one of " + names_of(catalog, Kind::scheduler));
  }
  if (!arguments.options.empty()) {
    throw Error(Stage::options, "usage.value", "",
                fmt::format("--option {}: {} is a file, and a file has no options",
                            arguments.options.front(), arguments.name),
                "leave --option out, or name a scheduler");
  }
  RequestedSchedule made;
  made.schedule = schedule_from_csv(*text, arguments.name);
  const auto choose = [](int given, int found) { return given > 0 ? given : found; };
  made.request.stages = choose(arguments.stages, made.schedule.stages());
  made.request.microbatches = choose(arguments.microbatches, made.schedule.microbatches);
  const int chunks = made.schedule.vstages() / std::max(1, made.schedule.stages());
  if (arguments.chunks > 0 && arguments.chunks != chunks) {
    throw Error(Stage::plan, "schedule.chunks", "",
                fmt::format("{} has {} a stage, not {}", arguments.name, plural(chunks, "chunk"),
                            arguments.chunks),
                "leave --chunks out");
  }
  made.request.chunks = chunks;
  share_out(arguments, made.request);
  return made;
}

RequestedSchedule make_schedule(const ScheduleArguments& arguments, Catalog& catalog) {
  const Registration& found = catalog.find(Kind::scheduler, arguments.name);
  Problems problems;
  const Values values = found.options().read(options_of(arguments), "", problems);
  problems.throw_if_any();
  const auto scheduler = make<Scheduler>(found, values);
  for (const auto& [option, value] : {std::pair{"--stages", arguments.stages},
                                      std::pair{"--microbatches", arguments.microbatches}}) {
    if (value > 0) continue;
    problems.add(Stage::options, "usage.missing", "", fmt::format("{} is missing", option),
                 fmt::format("for example: meshwright schedule {} --stages 4 --microbatches 8",
                             arguments.name));
  }
  problems.throw_if_any();
  RequestedSchedule made;
  made.request.stages = arguments.stages;
  made.request.microbatches = arguments.microbatches;
  const int fixed = std::max(1, scheduler->fixed_chunks());
  made.of_one_chunk = scheduler->of_one_chunk();
  made.request.chunks = arguments.chunks > 0 ? arguments.chunks : fixed;
  const std::int64_t works =
      std::int64_t{made.request.stages} * made.request.chunks * made.request.microbatches;
  if (works > most_works) {
    throw Error(
        Stage::options, "plan.size", "",
        fmt::format("{} stages x {} chunks x {} microbatches are {} forwards", made.request.stages,
                    made.request.chunks, made.request.microbatches, works),
        fmt::format("{} at most", most_works));
  }
  share_out(arguments, made.request);
  made.schedule = scheduler->make(made.request);
  return made;
}

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int given = columns != nullptr ? std::atoi(columns) : 0;
  return given > 0 ? std::min(given, 1000) : 100;
}

bool paints() {
  const char* no_colour = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0');
}

std::string percent(double part) {
  return fmt::format("{:.1f} %", 100 * part);
}

std::string title_of(const RequestedSchedule& made) {
  std::string title = fmt::format(
      "{}: {}, {}", made.schedule.name, plural(made.request.stages, "stage"),
      made.request.microbatches == 1 ? "1 microbatch"
                                     : fmt::format("{} microbatches", made.request.microbatches));
  if (made.request.chunks > 1) title += fmt::format(", {} chunks a stage", made.request.chunks);
  return title;
}

std::string caption_of(const ScheduleTimeline& timeline) {
  return fmt::format("bubble {}, makespan {:.6g}", percent(timeline.bubble), timeline.makespan);
}

// Most activations of a stage, in microbatches of the whole stage: a chunk's count in part.
double high_water(const RequestedSchedule& made, const ScheduleTimeline& timeline,
                  std::size_t stage) {
  return timeline.microbatches_peak[stage] / made.request.chunks;
}

std::string text_of(const RequestedSchedule& made, const ScheduleTimeline& timeline) {
  std::string text = title_of(made) + "\n\n" +
                     draw_text(made.schedule, timeline, terminal_columns(), paints()) + '\n';
  TextTable table({"stage", "idle", "inside", "activations"}, {0, 1, 2, 3});
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    const double idle =
        timeline.makespan > 0 ? std::max(0.0, 1 - timeline.busy[s] / timeline.makespan) : 0;
    table.add({std::to_string(s), percent(idle), percent(timeline.inner_idle[s]),
               fmt::format("{:.4g}", high_water(made, timeline, s))});
  }
  const std::string one =
      !made.of_one_chunk.empty() && made.request.chunks == 1
          ? fmt::format("\n  of one chunk a stage, this is {}: --chunks 2, or more\n",
                        made.of_one_chunk)
          : "";
  return text + table.text("  ") + one +
         "\n  idle: share of the makespan; inside: idle between a stage's first and last action;\n"
         "  activations: most microbatches stored at a time\n  " +
         caption_of(timeline) + '\n';
}

Json json_of(const RequestedSchedule& made, const ScheduleTimeline& timeline) {
  Json json = {{"kind", "schedule"},
               {"name", made.schedule.name},
               {"stages", made.request.stages},
               {"microbatches", made.request.microbatches},
               {"chunks", made.request.chunks},
               {"makespan", timeline.makespan},
               {"bubble_fraction", timeline.bubble},
               {"inner_idle", timeline.inner_idle}};
  json["high_water"] = Json::array();
  for (std::size_t s = 0; s < timeline.stages.size(); ++s)
    json["high_water"].push_back(high_water(made, timeline, s));
  json["order"] = Json::array();
  std::istringstream lines(to_text(made.schedule));
  for (std::string line; std::getline(lines, line);) json["order"].push_back(line);
  return json;
}

std::vector<OutputFile> files_of(const ScheduleArguments& arguments) {
  return {{"--csv", arguments.csv, OutputKind::schedule},
          {"--svg", arguments.svg, OutputKind::drawing},
          {"--trace", arguments.trace, OutputKind::trace}};
}

void write_files(const ScheduleArguments& arguments, const RequestedSchedule& made,
                 const ScheduleTimeline& timeline, Output& output) {
  const auto write = [&](const OutputFile& file, const std::string& text) {
    write_output(file, text);
    output.note(fmt::format("{}: written", file.path));
  };
  const std::vector<OutputFile> files = files_of(arguments);
  std::vector<std::string> row_names;
  TraceProcess process{title_of(made), {}, {}, {}};
  for (int s = 0; s < made.schedule.stages(); ++s) {
    row_names.push_back(fmt::format("stage {}", s));
    process.rows.push_back({row_names.back(), s, s, timeline.stages[static_cast<std::size_t>(s)]});
  }
  if (!arguments.csv.empty()) write(files[0], to_csv(made.schedule));
  if (!arguments.svg.empty()) {
    write(files[1], draw_svg(timeline.stages, row_names, title_of(made), caption_of(timeline)));
  }
  if (!arguments.trace.empty()) {
    const Json about = {{"schedule", made.schedule.name}, {"bubble_fraction", timeline.bubble}};
    write(files[2], chrome_trace({process}, about));
  }
}

// Prints the schedule's grid, its bubble, and what each stage holds. Throws Error with what the
// check refuses.
int show_schedule(const ScheduleArguments& arguments, Output& output) {
  PluginRegistry plugins = registry_of(arguments);
  plugins.use_all();
  if (arguments.times.size() != 3 || std::any_of(arguments.times.begin(), arguments.times.end(),
                                                 [](double t) { return !(t > 0); })) {
    throw Error(Stage::options, "usage.value", "", "--times takes three positive numbers",
                "F,I,W: of the forward, the input's gradient and the weights' gradient; for "
                "example --times 1,1.2,0.8");
  }
  for (const auto& [option, value] :
       {std::pair{"--send", arguments.send}, std::pair{"--memory", arguments.memory},
        std::pair{"--joint", arguments.joint}}) {
    if (!std::isnan(value)) continue;
    throw Error(Stage::options, "usage.value", "", fmt::format("{} is no number", option),
                "a number of 0 or more");
  }
  const bool is_file =
      arguments.name.ends_with(".csv") || arguments.name.find('/') != std::string::npos ||
      (!std::filesystem::is_directory(arguments.name) && !irregular(arguments.name).empty());
  check_outputs(files_of(arguments),
                {{"the schedule that is read", is_file ? arguments.name : ""}});
  const RequestedSchedule made =
      is_file ? read_schedule(arguments, plugins) : make_schedule(arguments, plugins);
  Problems problems;
  check(made.schedule, made.request, problems);
  problems.throw_if_any();
  const ScheduleTimeline timeline = simulate(made.schedule, made.request);
  if (!output.json()) output.text(text_of(made, timeline));
  write_files(arguments, made, timeline, output);
  output.result(json_of(made, timeline));
  return 0;
}

// The help's list of schedulers. It loads plugins, so it is made only when the help is printed.
std::string schedulers_text(const Arguments& arguments) {
  std::string text = "Schedulers:\n";
  try {
    PluginRegistry plugins = registry_of(arguments);
    plugins.use_all();
    for (const Registration* one : plugins.list(Kind::scheduler))
      text += fmt::format("  {:14}{}\n", one->name, one->doc);
  } catch (const Error& error) {  // a folder of --plugin-path is missing
    text += fmt::format("  {}\n", error.what());
  }
  return text + "Example: meshwright schedule zb-h1 --stages 4 --microbatches 8 --times 1,1.2,0.8";
}

const CommandOf<ScheduleArguments> schedule_command{
    {"schedule", 100, "draw, check and time a pipeline schedule, without a model"},
    [](CLI::App& command, ScheduleArguments& a) {
      command
          .add_option(
              "NAME", a.name,
              "a scheduler, built in or of a plugin (below), or a CSV file of compute actions "
              "(2F0, 1I3, ...)")
          ->required();
      command.add_option("--stages", a.stages, "stages; of a file: its rows")
          ->check(CLI::Range(1, 1 << 16));
      command.add_option("--microbatches", a.microbatches, "microbatches of a step")
          ->check(CLI::Range(1, 1 << 20));
      command.add_option("--chunks", a.chunks, "virtual stages of each stage")
          ->check(CLI::Range(1, 1024));
      command
          .add_option("--times", a.times,
                      "of a stage's work on one microbatch: forward, input's gradient, weights' "
                      "gradient (default 1,1,1); a chunk takes its share")
          ->delimiter(',')
          ->expected(1, 3)
          ->check(number_in(1e-12, most_time))
          ->type_name("F,I,W");
      command.add_option("--send", a.send, "from one stage to the next, in the same unit")
          ->check(number_in(0.0, most_time))
          ->type_name("TIME");
      command
          .add_option("--memory", a.memory,
                      "limit of the activations of a stage, in microbatches of the whole stage")
          ->check(number_in(1e-6, most_time))
          ->type_name("MICROBATCHES");
      command
          .add_option(
              "--joint", a.joint,
              "time of a group of actions (0F3+1B1), divided by the sum of its actions' times "
              "(default 1)")
          ->check(number_in(1e-6, 1.0))
          ->type_name("SHARE");
      command
          .add_option("--option", a.options,
                      "an option of the scheduler: pair=true; may be repeated")
          ->allow_extra_args(false)
          ->type_name("KEY=VALUE");
      command.add_option("--csv", a.csv, "write the order in PyTorch's CSV form")
          ->type_name("FILE");
      command.add_option("--svg", a.svg, "write the drawing")->type_name("FILE");
      command.add_option("--trace", a.trace, "write a Chrome trace")->type_name("FILE");
      command.footer([&a] { return schedulers_text(a); });
      add_common(command, a);
    },
    show_schedule};

}  // namespace
}  // namespace mw
