// Reads and writes this machine's calibration, and looks up measured times, or what stands in for
// those that were not measured.
#include "predict/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "common/files.h"
#include "common/run_timing.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

std::string work_kind(const Program& program, const Instruction& instruction) {
  if (!instruction.computes()) return name_of(instruction.measured_as());
  if (instruction.update != Update::none) return name_of(instruction.update);
  return fmt::format("{} {}", program.graph->ops()[instruction.op].kind(),
                     name_of(instruction.piece));
}

std::string work_class(const Program& program, const Instruction& i) {
  if (!i.runs_op()) return "";
  const OpClass op_class = program.graph->ops()[i.op].op_class();
  return op_class == OpClass::other ? ""
                                    : fmt::format("{} {}", name_of(op_class), name_of(i.piece));
}

SizedWork sized_work(const RankView& view, const Instruction& i, const Footprint& made) {
  SizedWork sized;
  for (const LocalWork& work : made.work) {
    sized.size.flops += work.flops;
    sized.size.bytes += work.bytes;
    sized.product = sized.product || work.gemms > 0;
    sized.beside += work.host + work.one_memory;
  }
  sized.moves = sized.size.flops <= 0 && (i.begins_transfer() || i.awaits_transfer());
  if (!i.runs_op() || sized.size.flops <= 0) return sized;
  sized.size.kernels = 0;
  for (int part = i.part(); part <= i.part() + i.ring_alike; ++part)
    sized.size.kernels += view.cost(i.op, i.piece, part).kernels;
  const Op& op = view.program().graph->ops()[i.op];
  if (op.inputs.empty() || op.inputs[0].dims.empty()) return sized;
  const auto width = view.dims(i.op, i.part()).at(op.inputs[0].dims.back()).size;
  if (width > 0) sized.size.dots = sized.size.flops / static_cast<double>(width);
  return sized;
}

const WorkFit* Calibration::fit_of(const std::string& kind, const std::string& of_class,
                                   int element, bool product, const WorkSize& size) const {
  if (work.empty()) return nullptr;
  const auto fitting = [&](const auto& kinds) -> const WorkFit* {
    // One rank, as measured, has nothing to move or to copy. Adding two tensors stands in: it is a
    // kernel that does as little.
    const bool copies = kind == "move" || kind == "copy";
    for (const std::string& name : {kind, of_class,
                                    std::string(copies    ? "add"
                                                : product ? "product"
                                                          : "other")}) {
      const auto found = kinds.find(name);
      if (found != kinds.end() && found->second.samples > 0) return &found->second;
      if (size.flops <= 0 && size.bytes <= 0) break;
    }
    return nullptr;
  };
  const auto own = work.find(element);
  if (own != work.end()) return fitting(own->second);
  const auto nearest =
      std::min_element(work.begin(), work.end(), [&](const auto& a, const auto& b) {
        return std::abs(a.first - element) < std::abs(b.first - element);
      });
  return fitting(nearest->second);
}

double Calibration::transfer_seconds(Collective op, int ways, double bytes) const {
  const auto found = transfers.find(name_of(op));
  if (found == transfers.end() || found->second.empty()) return 0;
  const std::map<int, LogCurve>& curves = found->second;
  std::vector<std::pair<double, double>> by_ways;
  for (const auto& [measured, curve] : curves)
    by_ways.emplace_back(measured, std::max(1e-9, curve.at(bytes, /*grows=*/true)));
  const bool pair = op == Collective::send || op == Collective::recv;
  return LogCurve(std::move(by_ways)).at(ways, /*grows=*/!pair);
}

namespace {

constexpr const char* schema = "meshwright.calibration/4";

Json shared_json(const SharedCosts& s) {
  return {{"work", s.work}, {"transfer", s.transfer}, {"call", s.call},
          {"step", s.step}, {"wall", s.wall},         {"idle", s.idle}};
}

double at_least_0(const Json& json, const char* key) {
  const double value = json.at(key).get<double>();
  if (!(value >= 0) || !std::isfinite(value)) throw std::invalid_argument(key);
  return value;
}

int int_in(const Json& json, const char* key) {
  const auto whole = whole_number(json.at(key));
  if (!whole || *whole != static_cast<int>(*whole)) throw std::invalid_argument(key);
  return static_cast<int>(*whole);
}

SharedCosts read_shared(const Json& json) {
  return {at_least_0(json, "work"), at_least_0(json, "transfer"), at_least_0(json, "call"),
          at_least_0(json, "step"), at_least_0(json, "wall"),     at_least_0(json, "idle")};
}

}  // namespace

Json Calibration::to_json() const {
  Json json{{"schema", schema},
            {"date", date},
            {"cpu", cpu},
            {"cores", cores},
            {"kernels", kernels},
            {"version", version},
            {"device", device.to_json()},
            {"step", step}};
  for (const auto& [element, kinds] : work) {
    Json& of = json["work"][std::to_string(element)];
    for (const auto& [kind, fit] : kinds) of[kind] = fit.to_json();
  }
  for (const auto& [op, ways] : transfers) {
    Json& of = json["transfers"][op];
    for (const auto& [count, curve] : ways) of[std::to_string(count)] = curve.to_json();
  }
  json["few"] = shared_json(few);
  json["many"] = shared_json(many);
  json["mixes"] = Json::array();
  for (const CalibratedMix& mix : mixes) {
    json["mixes"].push_back({{"plan", mix.plan},
                             {"ranks", mix.ranks},
                             {"step_seconds", mix.step},
                             {"cpu_seconds", mix.cpu},
                             {"predicted_step_seconds", mix.predicted_step},
                             {"predicted_cpu_seconds", mix.predicted_cpu}});
  }
  json["step_error"] = step_error;
  json["cpu_error"] = cpu_error;
  json["others_cores"] = number_or_null(others_cores);
  json["quick"] = quick;
  return json;
}

Calibration Calibration::from_json(const Json& json) {
  if (json.at("schema") != schema) {
    throw std::invalid_argument(
        fmt::format("schema: got {}, this program reads {}", json.at("schema").dump(), schema));
  }
  Calibration c;
  c.date = json.at("date").get<std::string>();
  c.cpu = json.at("cpu").get<std::string>();
  c.kernels = json.at("kernels").get<std::string>();
  c.version = json.at("version").get<std::string>();
  c.cores = int_in(json, "cores");
  c.device = Device::from_json(json.at("device"));
  for (const auto& [element, kinds] : json.at("work").items()) {
    for (const auto& [kind, fit] : kinds.items())
      c.work[std::stoi(element)][kind] = WorkFit::from_json(fit);
  }
  for (const auto& [op, ways] : json.at("transfers").items()) {
    for (const auto& [count, curve] : ways.items())
      c.transfers[op][std::stoi(count)] = LogCurve::from_json(curve);
  }
  // A collective without a curve would be priced as free.
  for (const Collective op :
       {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
        Collective::all_to_all, Collective::send, Collective::recv}) {
    if (c.transfers[name_of(op)].empty())
      throw std::invalid_argument(fmt::format("transfers has no {}", name_of(op)));
  }
  for (const auto& [element, kinds] : c.work)
    for (const char* kind : {"product", "other"})
      if (!kinds.contains(kind))
        throw std::invalid_argument(fmt::format("work.{} has no {}", element, kind));
  c.step = at_least_0(json, "step");
  c.few = read_shared(json.at("few"));
  c.many = read_shared(json.at("many"));
  for (const Json& mix : json.at("mixes")) {
    c.mixes.push_back({mix.at("plan").get<std::string>(), int_in(mix, "ranks"),
                       at_least_0(mix, "step_seconds"), at_least_0(mix, "cpu_seconds"),
                       at_least_0(mix, "predicted_step_seconds"),
                       at_least_0(mix, "predicted_cpu_seconds")});
  }
  c.step_error = at_least_0(json, "step_error");
  c.cpu_error = at_least_0(json, "cpu_error");
  c.others_cores = number_under(json, "others_cores");
  c.quick = json.value("quick", false);
  return c;
}

namespace {

const char* named_by_environment() {
  const char* name = std::getenv("MESHWRIGHT_CALIBRATION");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

}  // namespace

std::filesystem::path calibration_file() {
  if (const char* name = named_by_environment()) return name;
  return cache_folder() / "calibration.json";
}

std::filesystem::path first_use_file() {
  Fnv1a<std::uint64_t> hash;
  const std::string key =
      fmt::format("{} of {}, {}, {}", core_count(), cpu_model(), kernels_key(), version_line());
  hash.add(key.data(), key.size());
  return cache_folder() / fmt::format("first-use-{:016x}.json", hash.value());
}

bool first_use_left_out() {
  const char* given = std::getenv("MESHWRIGHT_FIRST_USE");
  const std::string_view word = given == nullptr ? "" : given;
  if (word != "" && word != "on" && word != "off")
    throw Error(Stage::environment, "environment.value", "",
                fmt::format("MESHWRIGHT_FIRST_USE is {}", quote(given)), "set it to on or off");
  return word == "off";
}

std::shared_ptr<const Calibration> first_use_calibration() {
  if (first_use_left_out()) return nullptr;
  try {
    return read_calibration(first_use_file());
  } catch (const Error&) {  // a damaged file, or one of an earlier form, is measured anew
    return nullptr;
  }
}

std::string other_machine(const Calibration& c) {
  if (c.cpu != cpu_model() || c.cores != core_count()) {
    return fmt::format("it is of {} of {}, this machine has {} of {}", plural(c.cores, "core"),
                       c.cpu, core_count(), cpu_model());
  }
  if (c.version != version_line())
    return fmt::format("it is of {}, this is {}", c.version, version_line());
  if (c.kernels != kernels_key())
    return fmt::format("it is of other kernels: {}; here: {}", c.kernels, kernels_key());
  return "";
}

std::shared_ptr<const Calibration> read_calibration(const std::filesystem::path& file) {
  const std::optional<std::string> text = whole_file(file);
  if (!text) return nullptr;
  auto calibration = std::make_shared<Calibration>();
  try {
    if (is_nested_too_deep(*text)) throw std::invalid_argument("lists in lists without end");
    *calibration = Calibration::from_json(Json::parse(*text));
  } catch (const std::exception& error) {
    throw Error(Stage::environment, "calibration.broken", "",
                fmt::format("{} is not a calibration file: {}", file.string(), error.what()),
                "measure anew: meshwright calibrate");
  }
  if (const std::string why = other_machine(*calibration); !why.empty()) {
    throw Error(Stage::environment, "calibration.other-machine", "",
                fmt::format("the calibration {} is not of this machine: {}", file.string(), why),
                "measure this one: meshwright calibrate");
  }
  return calibration;
}

const FoundCalibration& this_calibration() {
  static const FoundCalibration found = [] {
    FoundCalibration made;
    const std::filesystem::path file = calibration_file();
    const bool named = named_by_environment() != nullptr;
    try {
      made.calibration = read_calibration(file);
    } catch (const Error& error) {
      if (named) throw;
      const Problem& problem = error.problems().front();
      made.why = fmt::format("{}, so it is not used; {}", problem.message, problem.hint);
    }
    if (named && made.calibration == nullptr) {
      throw Error(Stage::environment, "calibration.missing", "",
                  fmt::format("there is no calibration {}", file.string()),
                  "MESHWRIGHT_CALIBRATION names it; meshwright calibrate -o FILE makes one");
    }
    return made;
  }();
  return found;
}

}  // namespace mw
