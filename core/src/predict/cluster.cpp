// Reads the description of a cluster, key by key.
#include "predict/cluster.h"

#include <fmt/format.h>

#include <cmath>

#include "base/json_text.h"
#include "meshwright/options.h"

namespace mw {
namespace {

constexpr double most = 1e30;

Options& rate(Options& options, const char* name, const char* doc) {
  return options.number(name, doc).range(1.0, most);
}
Options& share(Options& options, const char* name, const char* doc) {
  return options.number(name, doc).range(1e-6, 10.0);
}
Options& seconds(Options& options, const char* name, const char* doc) {
  return options.number(name, doc).range(0.0, 1e3).fallback(0.0);
}

const Options& cluster_options() {
  static const Options options =
      Options()
          .text("kind", "that it is one")
          .fallback("cluster")
          .text("name", "what it is called")
          .integer("nodes", "how many there are")
          .at_least(1)
          .fallback(1)
          .table("device", "of which type the devices are")
          .table("node", "devices of a node, and what joins them")
          .table("network", "what joins the nodes")
          .optional()
          .table("torus", "what joins all devices, where there is no network of nodes")
          .optional()
          .table("host", "the link to a device's host")
          .optional();
  return options;
}

const Options& device_options() {
  static const Options options = [] {
    Options o;
    o.text("name", "what it is called");
    rate(o, "peak16", "dense operations a second of bf16 and fp16");
    rate(o, "peak8", "... of fp8").optional();
    rate(o, "peak32", "... of fp32").optional();
    rate(o, "peak64", "... of fp64").optional();
    o.bytes("memory", "its memory").at_least(1);
    o.bytes("workspace", "that the library of products keeps of it").fallback(0);
    rate(o, "bandwidth", "bytes a second of its memory");
    share(o, "bandwidth_share", "of that, what streaming kernels achieve");
    share(o, "gemm", "of the peak, what large matrix products reach");
    o.number("units", "that tiles are spread over").range(1.0, 1e6).optional();
    o.number("tile_k", "begin and end of a tile, in units of k").range(0.0, 1e6).fallback(0.0);
    o.list("tiles", "{ rows, columns, share of the rate } of each").fallback(Json::array());
    share(o, "batched", "of `gemm`, attention's products of each head").fallback(1.0);
    seconds(o, "kernel", "of a kernel that does nothing");
    o.list("flash", "share of the peak of flash attention, by generation").fallback(Json::array());
    seconds(o, "launch", "of the host to launch one op");
    share(o, "backward_launch", "of that, in backward").fallback(1.0);
    seconds(o, "microbatch", "of the host for each microbatch");
    o.number("smooth", "how sharply the slower of host and device decides")
        .range(1.0, 100.0)
        .fallback(4.5);
    o.number("slowed", "seconds that compute loses for each of a collective beside it")
        .range(0.0, 1.0)
        .fallback(0.0);
    o.number("straggle", "1 + straggle sqrt(2 ln ranks) is what the slowest rank adds")
        .range(0.0, 1.0)
        .fallback(0.0);
    seconds(o, "optimizer", "of each optimizer step, beside its bytes");
    return o;
  }();
  return options;
}

const Options& node_options() {
  static const Options options = [] {
    Options o;
    o.integer("devices", "of a node").range(1, 65536);
    rate(o, "bandwidth", "bytes a second that a device sends to the others of its node").optional();
    share(o, "share", "of that, what collectives achieve").fallback(0.78);
    seconds(o, "latency", "of a step of a ring");
    o.list("curves", "measured all-reduces: { ranks =, points = { { bytes, seconds }, … } }")
        .fallback(Json::array());
    share(o, "curve_scale", "how much faster this link is than that of the curves").fallback(1.0);
    share(o, "curve_share", "of what was measured alone, within a step").fallback(1.0);
    return o;
  }();
  return options;
}

const Options& network_options() {
  static const Options options = [] {
    Options o;
    rate(o, "nic", "bytes a second of a node's NICs, over its devices");
    share(o, "share", "of that, what is achieved").fallback(0.88);
    seconds(o, "latency", "from node to node");
    seconds(o, "hop", "of a step of a ring that crosses nodes");
    o.number("oversubscription", "of the tree above a pod").range(1.0, 1e3).fallback(1.0);
    o.integer("pod", "nodes that reach one another at full rate; 0: all").at_least(0).fallback(0);
    share(o, "partial", "of the NICs' share, for groups of several ranks of a node but not all")
        .fallback(1.0);
    return o;
  }();
  return options;
}

const Options& torus_options() {
  static const Options options = [] {
    Options o;
    o.list("shape", "devices in each dim");
    rate(o, "bandwidth", "bytes a second of a device to one neighbour");
    share(o, "share", "of that, what is achieved").fallback(0.9);
    seconds(o, "latency", "of a hop");
    return o;
  }();
  return options;
}

const Options& host_options() {
  static const Options options = [] {
    Options o;
    rate(o, "link", "bytes a second between a device and its host");
    rate(o, "memory", "bytes a second of the host's memory, for each device");
    return o;
  }();
  return options;
}

class Reader {
 public:
  Reader(std::string path, Problems& problems) : path_(std::move(path)), problems_(problems) {}

  Cluster run(const Json& table) {
    const auto values = read(cluster_options(), table, path_);
    if (!values) return {};
    cluster_.name = values->text("name");
    cluster_.nodes = values->int32("nodes");
    read_device(*values);
    read_node(*values);
    if (values->has("network")) read_network(values->at("network"));
    if (values->has("torus")) read_torus(values->at("torus"));
    if (values->has("host")) {
      if (const auto host = read(host_options(), values->at("host"), path_ + ".host")) {
        cluster_.host_link = host->number("link");
        cluster_.host_memory = host->number("memory");
      }
    }
    check_links(*values);
    return cluster_;
  }

 private:
  std::optional<Values> read(const Options& options, const Json& given, const std::string& path) {
    Problems found;
    Values values = options.read(given, path, found);
    problems_.add(found);
    if (!found.empty()) return std::nullopt;
    return values;
  }

  void wrong(const std::string& key, const std::string& message, const std::string& hint) {
    problems_.add(Stage::options, "cluster.value", path_ + "." + key,
                  path_ + "." + key + ": " + message, hint);
  }

  void read_device(const Values& cluster) {
    const auto v = read(device_options(), cluster.at("device"), path_ + ".device");
    if (!v) return;
    DeviceType& d = cluster_.device;
    d.name = v->text("name");
    d.peak16 = v->number("peak16");
    d.peak8 = v->has("peak8") ? v->number("peak8") : 0;
    d.peak32 = v->has("peak32") ? v->number("peak32") : 0;
    d.peak64 = v->has("peak64") ? v->number("peak64") : 0;
    d.memory = v->integer("memory");
    d.workspace = v->integer("workspace");
    d.bandwidth = v->number("bandwidth");
    d.bandwidth_share = v->number("bandwidth_share");
    d.gemm = v->number("gemm");
    d.units = v->has("units") ? v->number("units") : 0;
    d.tile_k = v->number("tile_k");
    d.batched = v->number("batched");
    d.kernel = v->number("kernel");
    d.launch = v->number("launch");
    d.backward_launch = v->number("backward_launch");
    d.microbatch = v->number("microbatch");
    d.smooth = v->number("smooth");
    d.slowed = v->number("slowed");
    d.straggle = v->number("straggle");
    d.optimizer = v->number("optimizer");
    for (const Json& tile : v->at("tiles")) {
      const auto numbers = row(tile, 3, "device.tiles", "{ rows, columns, share of the rate }");
      if (!numbers.empty()) d.tiles.push_back({numbers[0], numbers[1], numbers[2]});
    }
    if (d.tiles.empty() != (d.units == 0)) {
      wrong("device.tiles", "units and tiles go together: tiles are spread over units",
            "give both, or neither: then products have no tiles");
    }
    std::size_t generation = 0;
    for (const Json& flash : v->at("flash")) {
      const bool good = flash.is_number() && flash.get<double>() > 0 && flash.get<double>() <= 1;
      if (++generation >= d.flash.size() || !good) {
        wrong("device.flash", fmt::format("got {}", describe(flash)),
              "up to three shares of the peak, between 0 and 1: of flash attention 1, 2 and 3");
        return;
      }
      d.flash[generation] = flash.get<double>();
    }
  }

  // Of so many positive numbers; empty, with a problem, for anything else.
  std::vector<double> row(const Json& given, std::size_t count, const std::string& key,
                          const std::string& form) {
    std::vector<double> numbers;
    const Json list = given.is_array() ? given : Json::array();
    for (const Json& each : list) {
      if (each.is_number() && each.get<double>() > 0 && std::isfinite(each.get<double>()))
        numbers.push_back(each.get<double>());
    }
    if (numbers.size() == count && list.size() == count) return numbers;
    wrong(key, fmt::format("got {}", describe(given)), "each is " + form + ", all above 0");
    return {};
  }

  void read_node(const Values& cluster) {
    const auto v = read(node_options(), cluster.at("node"), path_ + ".node");
    if (!v) return;
    NodeLinks& node = cluster_.node;
    node.devices = v->int32("devices");
    node.bandwidth = v->has("bandwidth") ? v->number("bandwidth") : 0;
    node.share = v->number("share");
    node.latency = v->number("latency");
    node.curve_scale = v->number("curve_scale");
    node.curve_share = v->number("curve_share");
    int number = 0;
    for (const Json& given : v->at("curves")) {
      const std::string key = fmt::format("node.curves[{}]", ++number);
      CollectiveCurve curve;
      const bool table = given.is_object() && given.contains("ranks") && given.contains("points");
      if (!table || !given["ranks"].is_number_integer() || !given["points"].is_array() ||
          given["points"].size() < 2) {
        wrong(key, fmt::format("got {}", describe(given)),
              "{ ranks = 8, points = { { bytes, seconds }, … } } of at least two points");
        continue;
      }
      curve.ranks = given["ranks"].get<int>();
      for (const Json& point : given["points"]) {
        const auto numbers = row(point, 2, key + ".points", "{ bytes, seconds }");
        if (numbers.empty()) return;
        if (!curve.points.empty() && numbers[0] <= curve.points.back().first) {
          wrong(key + ".points", "bytes do not ascend", "sort them");
          return;
        }
        curve.points.emplace_back(numbers[0], numbers[1]);
      }
      node.curves.push_back(std::move(curve));
    }
    std::sort(node.curves.begin(), node.curves.end(),
              [](const auto& a, const auto& b) { return a.ranks < b.ranks; });
  }

  void read_network(const Json& table) {
    const auto v = read(network_options(), table, path_ + ".network");
    if (!v) return;
    cluster_.network = {v->number("nic"),
                        v->number("share"),
                        v->number("latency"),
                        v->number("hop"),
                        v->number("oversubscription"),
                        v->int32("pod"),
                        v->number("partial")};
  }

  void read_torus(const Json& table) {
    const auto v = read(torus_options(), table, path_ + ".torus");
    if (!v) return;
    Torus& torus = cluster_.torus;
    torus.bandwidth = v->number("bandwidth");
    torus.share = v->number("share");
    torus.latency = v->number("latency");
    std::int64_t all = 1;
    for (const Json& ways : v->at("shape")) {
      const auto whole = whole_number(ways);
      if (!whole || *whole < 1 || *whole > 65536) {
        wrong("torus.shape", fmt::format("got {}", describe(ways)), "whole numbers from 1 on");
        return;
      }
      torus.shape.push_back(static_cast<int>(*whole));
      all *= *whole;
    }
    if (all != cluster_.devices()) {
      wrong("torus.shape",
            fmt::format("{} devices in it, and {} in {} nodes of {}", all, cluster_.devices(),
                        cluster_.nodes, cluster_.node.devices),
            "make the product of the shape that of nodes and devices");
    }
  }

  // Whatever ranks there are can reach one another.
  void check_links(const Values& given) {
    if (given.has("torus")) return;
    if (cluster_.node.devices > 1 && cluster_.node.bandwidth == 0 &&
        !given.at("node").contains("bandwidth")) {
      wrong("node.bandwidth",
            fmt::format("is missing: {} devices of a node have no link", cluster_.node.devices),
            "bytes a second of a device in one direction: 300e9 for NVLink 3");
    }
    if (cluster_.nodes > 1 && !given.has("network")) {
      wrong("network", fmt::format("is missing: {} nodes have no link", cluster_.nodes),
            "network = { nic = 25e9, latency = 15e-6 }, or nodes = 1");
    }
  }

  const std::string path_;
  Problems& problems_;
  Cluster cluster_;
};

}  // namespace

Cluster read_cluster(const Json& table, const std::string& path, Problems& problems) {
  return Reader(path, problems).run(table);
}

}  // namespace mw
