// Reads the description of a cluster, key by key.
#include "predict/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "meshwright/engine/text.h"
#include "predict/fields.h"

namespace mw {
namespace {

constexpr double largest_number = 1e30;
constexpr std::int64_t most_devices = std::int64_t{1} << 40;

Options& rate(Options& options) {
  return options.range(1.0, largest_number);
}
Options& share(Options& options) {
  return options.range(1e-6, 10.0);
}
Options& seconds(Options& options) {
  return options.range(0.0, 1e3).fallback(0.0);
}

const Fields<Cluster>& cluster_fields() {
  static const Fields<Cluster> fields = [] {
    Fields<Cluster> f;
    f.options().text("kind", "says that the table describes a cluster").fallback("cluster");
    f.add("name", "what it is called", &Cluster::name);
    f.add("changed",
          "keys that are other than in the description of that name, as mw.cluster and --set note "
          "them",
          &Cluster::changed)
        .optional();
    f.add("nodes", "number of nodes", &Cluster::nodes).at_least(1).fallback(1);
    f.options()
        .table("device", "what one device can do")
        .table("node", "devices of a node, and what joins them")
        .table("network", "what joins the nodes")
        .optional()
        .table("torus", "what joins all devices, where there is no network of nodes")
        .optional()
        .table("host", "the link to a device's host")
        .optional()
        .list("slow",
              "nodes that are slower than described, or a device of each: { { node = 3, compute = "
              "1.3 }, … }")
        .fallback(Json::array())
        .list("kinds",
              "nodes with other devices or links, from the first node on: { { nodes = 4 }, { nodes "
              "= 4, device = { … } } }")
        .fallback(Json::array());
    return f;
  }();
  return fields;
}

const Fields<DeviceType>& device_fields() {
  static const Fields<DeviceType> fields = [] {
    Fields<DeviceType> f;
    using D = DeviceType;
    f.add("name", "what it is called", &D::name);
    f.add("fitted", "says that shares of the device and of its links were fitted to measured steps",
          &D::fitted)
        .fallback(false);
    rate(f.add("peak16", "dense operations a second of bf16 and fp16", &D::peak16));
    rate(f.add("peak8", "dense operations a second of fp8", &D::peak8)).optional();
    rate(f.add("peak32", "dense operations a second of fp32", &D::peak32)).optional();
    rate(f.add("peak64", "dense operations a second of fp64", &D::peak64)).optional();
    f.options()
        .list("lacks", "precisions that the device has no units for, as { \"bf16\" }")
        .fallback(Json::array());
    f.add("memory", "bytes of memory of a device", &D::memory).at_least(1);
    f.add("workspace", "bytes of a device's memory that the library of products keeps",
          &D::workspace)
        .fallback(0);
    f.add("context", "bytes of a device's memory that the driver keeps for a process", &D::context)
        .fallback(0);
    f.add("communicator", "bytes of a device's memory that each communicator keeps",
          &D::communicator)
        .fallback(0);
    rate(f.add("bandwidth", "bytes a second of a device's memory", &D::bandwidth));
    for (const auto& [key, value] :
         {std::pair{"peak16", "312e12"}, std::pair{"peak8", "1979e12"},
          std::pair{"peak32", "19.5e12"}, std::pair{"peak64", "9.7e12"},
          std::pair{"memory", "\"80GiB\""}, std::pair{"bandwidth", "2e12"}})
      f.example(key, value);
    share(f.add("bandwidth_share", "share of the memory's bandwidth that streaming kernels achieve",
                &D::bandwidth_share));
    share(f.add("gemm", "share of the peak that large matrix products reach", &D::gemm));
    f.add("power", "watts that a device is rated for", &D::power).range(1.0, 1e5).optional();
    f.add("power_limit", "limit of a device's power, in watts", &D::power_limit)
        .range(1.0, 1e5)
        .optional();
    f.add("units", "units (SMs) that the tiles of a product are spread over", &D::units)
        .range(1.0, 1e6)
        .optional();
    f.add("tile_k", "cost of beginning and ending a tile, in steps of k", &D::tile_k)
        .range(0.0, 1e6)
        .fallback(0.0);
    f.options()
        .list("tiles", "tiles of products: { rows, columns, share of the rate } of each")
        .fallback(Json::array());
    share(f.add("batched", "share of `gemm` that attention's products of each head reach",
                &D::batched))
        .fallback(1.0);
    seconds(f.add("kernel", "seconds that a kernel takes which does nothing", &D::kernel));
    f.options()
        .list("flash", "shares of the peak that flash attention 1, 2 and 3 reach")
        .fallback(Json::array());
    seconds(f.add("launch", "seconds of the host to launch one op", &D::launch));
    share(f.add("backward_launch", "how many times `launch` an op takes in backward",
                &D::backward_launch))
        .fallback(1.0);
    f.add("smooth", "how sharply the slower of host and device decides", &D::smooth)
        .range(1.0, 100.0)
        .fallback(4.5);
    f.add("slowed", "seconds that compute loses for each second of a collective beside it",
          &D::slowed)
        .range(0.0, 1.0)
        .fallback(0.0);
    f.add("straggle",
          "the slowest of several ranks takes 1 + straggle sqrt(2 ln ranks) times as long",
          &D::straggle)
        .range(0.0, 1.0)
        .fallback(0.0);
    seconds(f.add("optimizer", "seconds of each optimizer step beside those of its bytes",
                  &D::optimizer));
    return f;
  }();
  return fields;
}

const Fields<NodeLinks>& node_fields() {
  static const Fields<NodeLinks> fields = [] {
    Fields<NodeLinks> f;
    using N = NodeLinks;
    f.add("devices", "devices of a node", &N::devices).range(1, 65536);
    rate(f.add("bandwidth", "bytes a second that a device sends to the others of its node",
               &N::bandwidth))
        .optional();
    f.example("bandwidth", "300e9");
    share(f.add("share", "share of `bandwidth` that collectives without a measured curve achieve",
                &N::share))
        .fallback(0.78);
    seconds(f.add("latency", "seconds of a step of a ring inside a node", &N::latency));
    f.options()
        .list("curves",
              "measured collectives: { op = \"all-reduce\", ranks =, points = { { bytes, seconds "
              "}, … "
              "} }; op may be left out of an all-reduce")
        .fallback(Json::array());
    rate(
        f.add("curve_bandwidth",
              "bytes a second of the link that the curves were measured on: `bandwidth` over it is "
              "how much faster collectives are than measured",
              &N::curve_bandwidth))
        .optional();
    f.example("curve_bandwidth", "300e9");
    f.formerly("curve_scale", "curve_bandwidth, in bytes a second,");
    share(f.add("curve_share",
                "share of the measured collectives' speed that is left within a training step",
                &N::curve_share))
        .fallback(1.0);
    return f;
  }();
  return fields;
}

const Fields<Network>& network_fields() {
  static const Fields<Network> fields = [] {
    Fields<Network> f;
    using N = Network;
    rate(f.add("nic", "bytes a second of a node's NICs over its devices", &N::nic));
    f.example("nic", "25e9");
    share(f.add("share", "share of `nic` that is achieved", &N::share)).fallback(0.88);
    seconds(f.add("latency", "seconds from node to node", &N::latency));
    seconds(f.add("hop", "seconds of a step of a ring that crosses nodes", &N::hop));
    f.add("oversubscription", "bandwidth of a pod's NICs over the bandwidth of the tree above it",
          &N::oversubscription)
        .range(1.0, 1e3)
        .fallback(1.0);
    f.add("pod", "nodes that reach one another at full rate; 0: all", &N::pod)
        .at_least(0)
        .fallback(0);
    share(f.add("partial",
                "share of their NICs that groups of several ranks of a node, but not all, get",
                &N::partial))
        .fallback(1.0);
    f.options()
        .list("curves",
              "measured collectives among all devices of several nodes: { op =, nodes =, ranks =, "
              "points = { { bytes, seconds }, … } }")
        .fallback(Json::array());
    rate(f.add("curve_nic",
               "bytes a second of the NICs that the curves were measured on: `nic` over it is how "
               "much faster collectives are than measured",
               &N::curve_nic))
        .optional();
    f.example("curve_nic", "25e9");
    return f;
  }();
  return fields;
}

const Fields<Torus>& torus_fields() {
  static const Fields<Torus> fields = [] {
    Fields<Torus> f;
    using T = Torus;
    f.options().list("shape", "devices in each dim");
    rate(f.add("bandwidth", "bytes a second of a device to one neighbour", &T::bandwidth));
    f.example("bandwidth", "45e9");
    share(f.add("share", "share of `bandwidth` that is achieved", &T::share)).fallback(0.9);
    seconds(f.add("latency", "seconds of a hop", &T::latency));
    return f;
  }();
  return fields;
}

const Fields<SlowPart>& slow_fields() {
  static const Fields<SlowPart> fields = [] {
    Fields<SlowPart> f;
    f.options().any("node",
                    "the node, counted from 0; or the first and the last of several: { 4, 7 }");
    f.add("device", "one of the node's devices, counted from 0; all of them if left out",
          &SlowPart::device)
        .range(0, 65535)
        .optional();
    const auto times = [](Options& o) { o.range(1.0, 1e3).fallback(1.0); };
    times(f.options().number("compute", "how many times longer these devices compute"));
    times(f.options().number("link", "how many times longer their links inside the node take"));
    times(f.options().number("nic", "how many times longer their NICs take"));
    return f;
  }();
  return fields;
}

const Fields<Cluster>& kind_fields() {
  static const Fields<Cluster> fields = [] {
    Fields<Cluster> f;
    f.options().text("kind", "says that the table describes a cluster").optional();
    f.options().text("name", "what the kind is called").optional();
    f.options().text("changed", "as in a cluster").optional();
    f.add("nodes",
          "number of nodes of this kind; nodes that no kind has are as the cluster's own tables "
          "say",
          &Cluster::nodes)
        .at_least(1);
    f.options()
        .table("device",
               "keys of `device` that differ; a whole cluster, as mw.cluster gives it, has all of "
               "them")
        .optional()
        .table("node", "keys of `node` that differ, likewise")
        .optional()
        .table("network", "keys of `network` that differ, likewise")
        .optional()
        .table("host", "keys of `host` that differ, likewise")
        .optional();
    return f;
  }();
  return fields;
}

const Fields<Cluster>& host_fields() {
  static const Fields<Cluster> fields = [] {
    Fields<Cluster> f;
    rate(f.add("link", "bytes a second between a device and its host, each way",
               &Cluster::host_link));
    rate(f.add("node_link",
               "bytes a second between all devices of a node and their host, each way; left out: "
               "each has its link for itself",
               &Cluster::host_node_link))
        .optional();
    rate(f.add("bandwidth", "bytes a second of the host's memory, for each device",
               &Cluster::host_bandwidth));
    f.formerly("memory", "bandwidth");
    f.example("link", "25e9, or leave host out where devices have no way to host memory");
    f.example("node_link", "100e9, or leave it out where each device has its link for itself");
    f.example("bandwidth", "30e9");
    f.add("capacity", "bytes of host memory of a node; without it, host memory is not checked",
          &Cluster::host_capacity)
        .at_least(1)
        .optional();
    return f;
  }();
  return fields;
}

class Reader {
 public:
  Reader(std::string path, Problems& problems) : path_(std::move(path)), problems_(problems) {}

  Cluster run(const Json& table) {
    const auto values = cluster_fields().read(table, path_, problems_, cluster_);
    if (!values) return {};
    read_device(*values);
    read_node(*values);
    if (values->has("network")) read_network(values->at("network"));
    if (values->has("torus")) read_torus(values->at("torus"));
    if (values->has("host"))
      host_fields().read(values->at("host"), path_ + ".host", problems_, cluster_);
    check_links(*values);
    read_kinds(table, values->at("kinds"));
    read_slow(*values);
    return cluster_;
  }

 private:
  void wrong(const std::string& key, const std::string& message, const std::string& hint) {
    problems_.add(Stage::options, "cluster.value", path_ + "." + key,
                  path_ + "." + key + ": " + message, hint);
  }

  void read_device(const Values& cluster) {
    DeviceType& d = cluster_.device;
    const auto v = device_fields().read(cluster.at("device"), path_ + ".device", problems_, d);
    if (!v) return;
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
    for (const Json& name : v->at("lacks")) {
      static constexpr Dtype reals[] = {Dtype::fp64, Dtype::fp32, Dtype::bf16, Dtype::fp16};
      const auto found = std::find_if(std::begin(reals), std::end(reals),
                                      [&](Dtype one) { return name == name_of(one); });
      if (found == std::end(reals)) {
        wrong("device.lacks", fmt::format("got {}", describe(name)),
              "precisions, of \"bf16\", \"fp16\", \"fp32\" and \"fp64\"");
        return;
      }
      d.lacks.insert(*found);
    }
    hold_power(d);
  }

  // Power goes with a clock's frequency and its voltage's square, and voltage with frequency
  // (Hennessy and Patterson, "Computer Architecture", section 1.5): what the units reach goes with
  // the cube root of power, and memory has a clock of its own.
  void hold_power(DeviceType& d) {
    if (d.power_limit <= 0) return;
    if (d.power <= 0) {
      wrong("device.power", "is missing, and device.power_limit holds the device to less",
            "give the watts that it is rated for, or leave power_limit out");
      return;
    }
    const double clock = std::cbrt(std::min(d.power_limit / d.power, 1.0));
    d.gemm *= clock;
    for (double& share : d.flash) share *= clock;
  }

  // Reads a list of `count` positive numbers; empty, with a problem, for anything else.
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
    NodeLinks& node = cluster_.node;
    const auto v = node_fields().read(cluster.at("node"), path_ + ".node", problems_, node);
    if (!v) return;
    node.curves =
        read_curves(v->at("curves"), path_ + ".node.curves", /*over_nodes=*/false, problems_);
    if (!node.curves.empty() && node.curve_bandwidth == 0) {
      wrong("node.curve_bandwidth",
            "is missing: nothing says on what link node.curves were measured",
            fmt::format("node.curve_bandwidth = {}, where they are of this link",
                        format_number(node.bandwidth > 0 ? node.bandwidth : 300e9)));
    }
  }

  void read_network(const Json& table) {
    Network& network = cluster_.network;
    const auto v = network_fields().read(table, path_ + ".network", problems_, network);
    if (!v) return;
    network.curves =
        read_curves(v->at("curves"), path_ + ".network.curves", /*over_nodes=*/true, problems_);
    if (network.curves.empty() || network.curve_nic > 0) return;
    wrong("network.curve_nic", "is missing: nothing says on what NICs network.curves were measured",
          fmt::format("network.curve_nic = {}, where they are of these NICs",
                      format_number(network.nic > 0 ? network.nic : 25e9)));
  }

  void read_torus(const Json& table) {
    Torus& torus = cluster_.torus;
    const auto v = torus_fields().read(table, path_ + ".torus", problems_, torus);
    if (!v) return;
    std::int64_t all = 1;
    for (const Json& ways : v->at("shape")) {
      const auto whole = whole_number(ways);
      if (!whole || *whole < 1 || *whole > 65536) {
        wrong("torus.shape", fmt::format("got {}", describe(ways)), "whole numbers from 1 on");
        return;
      }
      torus.shape.push_back(static_cast<int>(*whole));
      if (all * *whole > most_devices) {
        wrong("torus.shape", fmt::format("more than {} devices in it", most_devices),
              "fewer devices in a dim");
        return;
      }
      all *= *whole;
    }
    if (all != cluster_.devices()) {
      wrong("torus.shape",
            fmt::format("{} devices in it, and {} in {} of {}", all, cluster_.devices(),
                        plural(cluster_.nodes, "node"), cluster_.node.devices),
            fmt::format("{}torus = {{ shape = {} }}",
                        all % cluster_.node.devices == 0
                            ? fmt::format("nodes = {}, or ", all / cluster_.node.devices)
                            : "",
                        shape_of(cluster_.devices(), torus.shape.size())));
    }
  }

  // A torus shape of `devices` devices in `dims` dims, as even as the factors allow: "{ 2, 4, 4 }".
  static std::string shape_of(std::int64_t devices, std::size_t dims) {
    std::vector<std::int64_t> factors, shape(std::max<std::size_t>(dims, 1), 1);
    for (std::int64_t f = 2; f * f <= devices; ++f)
      for (; devices % f == 0; devices /= f) factors.push_back(f);
    if (devices > 1) factors.push_back(devices);
    for (auto f = factors.rbegin(); f != factors.rend(); ++f)
      *std::min_element(shape.begin(), shape.end()) *= *f;
    std::sort(shape.begin(), shape.end());
    return fmt::format("{{ {} }}", fmt::join(shape, ", "));
  }

  // Each kind is read as a cluster of its own nodes. Its tables are the cluster's tables with the
  // keys that the kind changes; a kind that is a whole cluster has tables of its own.
  void read_kinds(const Json& table, const Json& kinds) {
    if (!problems_.empty()) return;  // kinds would repeat the problems of shared tables
    int number = 0;
    std::int64_t nodes = 0;
    for (const Json& given : kinds) {
      const std::string key = fmt::format("kinds[{}]", ++number);
      Cluster kind;
      const auto v = kind_fields().read(given, path_ + "." + key, problems_, kind);
      if (!v) continue;
      Json whole = {{"name", given.value("name", cluster_.name)}, {"nodes", kind.nodes}};
      for (const char* part : {"device", "node", "network", "host"}) {
        if (table.contains(part)) whole[part] = table[part];
        if (!given.contains(part)) continue;
        if (given.value("kind", "") == "cluster" || !whole.contains(part)) {
          whole[part] = given[part];
        } else {
          whole[part].merge_patch(given[part]);
        }
      }
      if (table.contains("torus") && !whole.contains("network"))
        whole["network"] = {{"nic", cluster_.torus.bandwidth}};  // no transfer uses it
      kind = Reader(path_ + "." + key, problems_).run(whole);
      if (kind.node.devices != cluster_.node.devices) {
        wrong(key + ".node.devices",
              fmt::format("{}, and the cluster's other nodes have {} devices", kind.node.devices,
                          cluster_.node.devices),
              fmt::format("nearest: devices = {}", cluster_.node.devices));
      }
      nodes += kind.nodes;
      cluster_.kinds.push_back(std::move(kind));
    }
    if (!kinds.empty() && !table.contains("nodes")) cluster_.nodes = static_cast<int>(nodes);
    if (nodes > cluster_.nodes) {
      wrong("kinds",
            fmt::format("{} in {}, and the cluster has {}", plural(nodes, "node"),
                        plural(number, "kind"), plural(cluster_.nodes, "node")),
            fmt::format("nearest: nodes = {}, or fewer nodes of a kind", nodes));
    }
  }

  void read_slow(const Values& cluster) {
    int number = 0;
    for (const Json& given : cluster.at("slow")) {
      const std::string key = fmt::format("slow[{}]", ++number);
      SlowPart part;
      const auto v = slow_fields().read(given, path_ + "." + key, problems_, part);
      if (!v) continue;
      const Json& node = v->at("node");
      const Json range = node.is_array() ? node : Json::array({node, node});
      const bool is_pair = range.size() == 2;
      const std::int64_t first = is_pair ? whole_number(range[0]).value_or(-1) : -1,
                         last = is_pair ? whole_number(range[1]).value_or(-1) : -1;
      if (first < 0 || last < first || last >= cluster_.nodes ||
          part.device >= cluster_.node.devices) {
        wrong(key,
              fmt::format("got node = {}{}, of {} of {} devices", lua_text(node),
                          part.device >= 0 ? fmt::format(", device = {}", part.device) : "",
                          plural(cluster_.nodes, "node"), cluster_.node.devices),
              fmt::format("nodes are 0 to {}, one or {{ first, last }}, and devices 0 to {}",
                          cluster_.nodes - 1, cluster_.node.devices - 1));
        continue;
      }
      part.first = static_cast<int>(first);
      part.last = static_cast<int>(last);
      part.by = {v->number("compute"), v->number("link"), v->number("nic")};
      cluster_.slow.push_back(part);
    }
  }

  // Checks that all ranks can reach one another.
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

std::vector<std::pair<std::string, const Options*>> cluster_keys() {
  return {{"", &cluster_fields().options()},     {"device", &device_fields().options()},
          {"node", &node_fields().options()},    {"network", &network_fields().options()},
          {"torus", &torus_fields().options()},  {"host", &host_fields().options()},
          {"slow[n]", &slow_fields().options()}, {"kinds[n]", &kind_fields().options()}};
}

std::vector<std::string_view> Cluster::changed_keys() const {
  std::vector<std::string_view> keys;
  for (std::string_view left = changed; !left.empty();) {
    keys.push_back(left.substr(0, left.find(", ")));
    left.remove_prefix(std::min(left.size(), keys.back().size() + 2));
  }
  return keys;
}

bool Cluster::changes(std::string_view prefix) const {
  return std::ranges::any_of(changed_keys(),
                             [&](std::string_view key) { return key.starts_with(prefix); });
}

Cluster read_cluster(const Json& table, const std::string& path, Problems& problems) {
  return Reader(path, problems).run(table);
}

}  // namespace mw
