// Turns the timed actions of ranks into slices and arrows of the Trace Event Format, one event a
// line.
#include "app/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

std::int64_t nanoseconds(double seconds) {
  return std::llround(1e9 * seconds);
}

// The quotient is the double nearest to a number with three decimals.
double microseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1000;
}

// An event with its sort keys: the time, then `order`. A slice comes before what lies in it.
struct Event {
  std::int64_t at = 0;
  // at equal times: slices, flow ends, flow starts, ends after their start, counters
  int order = 0;
  Json json;
};

constexpr int lanes_of_a_rank = 256, first_lane = 1 << 24;

// The thread of a row's works (lane 0), or of a lane of its groups, which counts down from the
// rank's last; lanes of ops and axes count up from 1.
int track_of(const TraceRow& row, int lane) {
  return lane == 0 ? row.rank : first_lane + row.rank * lanes_of_a_rank + lanes_of_a_rank - lane;
}

bool is_work(const TimedAction& action) {
  return action.name == "F" || action.name == "B" || action.name == "I" || action.name == "W";
}

class Writer {
 public:
  explicit Writer(const std::vector<TraceProcess>& processes) {
    for (std::size_t p = 0; p < processes.size(); ++p) {
      process_ = static_cast<int>(p) + 1;
      name(processes[p]);
      for (const TraceRow& row : processes[p].rows)
        for (const TimedAction& action : row.actions) slice(row, action);
      flows(processes[p]);
      lanes(processes[p]);
      counters(processes[p]);
    }
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
      return std::tie(a.at, a.order) < std::tie(b.at, b.order);
    });
  }

  // An event a line: such a file can be read, and compared line by line.
  std::string text(const Json& about) const {
    std::string out =
        "{\"displayTimeUnit\":\"ms\",\"otherData\":" + json_text(about) + ",\n\"traceEvents\":[";
    const char* separator = "\n";
    for (const auto* list : {&names_, &events_}) {
      for (const Event& event : *list) {
        out += separator + json_text(event.json);
        separator = ",\n";
      }
    }
    return out + "\n]}\n";
  }

 private:
  Json base(const char* phase, int row) const {
    return {{"ph", phase}, {"pid", process_}, {"tid", row}};
  }

  void name(const TraceProcess& process) {
    const auto add = [&](const char* what, int row, const Json& arguments) {
      Json json = base("M", row);
      json["name"] = what;
      json["args"] = arguments;
      names_.push_back({0, 0, std::move(json)});
    };
    add("process_name", 0, {{"name", process.name}});
    add("process_sort_index", 0, {{"sort_index", process_}});
    for (const TraceRow& row : process.rows) {
      add("thread_name", row.rank, {{"name", row.name}});
      add("thread_sort_index", row.rank, {{"sort_index", row.rank * lanes_of_a_rank}});
      int lanes = 1;
      for (const TimedAction& action : row.actions) lanes = std::max(lanes, action.lanes);
      for (int lane = 1; lane < lanes; ++lane) {
        const int track = track_of(row, lane);
        add("thread_name", track, {{"name", row.name + ", work " + std::to_string(lane + 1)}});
        add("thread_sort_index", track, {{"sort_index", row.rank * lanes_of_a_rank}});
      }
    }
  }

  // Slices of one track must not overlap: each goes to the first lane that is free.
  void lanes(const TraceProcess& process) {
    std::map<int, int> used;  // lanes of each rank so far
    for (const TraceLane& lane : process.lanes) {
      std::vector<const TraceSlice*> slices;
      for (const TraceSlice& slice : lane.slices) slices.push_back(&slice);
      std::stable_sort(slices.begin(), slices.end(), [](const auto* a, const auto* b) {
        return nanoseconds(a->start) < nanoseconds(b->start);
      });
      std::vector<std::int64_t> free;  // time from which each lane is free
      std::vector<int> tracks;
      for (const TraceSlice* slice : slices) {
        const std::int64_t start = nanoseconds(slice->start), end = nanoseconds(slice->end);
        std::size_t n = 0;
        while (n < free.size() && free[n] > start) ++n;
        if (n == free.size()) {
          free.push_back(0);
          tracks.push_back(open_lane(lane, ++used[lane.rank], n));
        }
        free[n] = std::max(end, start);
        Json json = base("X", tracks[n]);
        json["name"] = slice->name;
        json["cat"] = slice->kind;
        json["ts"] = microseconds(start);
        json["dur"] = microseconds(end - start);
        json["args"] = slice->about.is_null() ? Json::object() : slice->about;
        events_.push_back({start, 0, std::move(json)});
      }
    }
  }

  int open_lane(const TraceLane& lane, int number, std::size_t beside) {
    const int track = first_lane + lane.rank * lanes_of_a_rank + number;
    for (const char* what : {"thread_name", "thread_sort_index"}) {
      Json json = base("M", track);
      json["name"] = what;
      if (std::string_view(what) == "thread_name") {
        json["args"] = {{"name", "rank " + std::to_string(lane.rank) + " " + lane.name +
                                     (beside > 0 ? " " + std::to_string(beside + 1) : "")}};
      } else {
        json["args"] = {{"sort_index", lane.rank * lanes_of_a_rank + number}};
      }
      names_.push_back({0, 0, std::move(json)});
    }
    return track;
  }

  void counters(const TraceProcess& process) {
    for (const TraceCounter& counter : process.counters) {
      const std::int64_t at = nanoseconds(counter.time);
      Json json = base("C", counter.rank);
      json["name"] = "rank " + std::to_string(counter.rank) + " memory";
      json["ts"] = microseconds(at);
      json["args"] = counter.values;
      events_.push_back({at, 4, std::move(json)});
    }
  }

  void slice(const TraceRow& row, const TimedAction& action) {
    const std::int64_t start = nanoseconds(action.start), end = nanoseconds(action.end);
    Json json = base("X", track_of(row, action.lane));
    json["name"] = action.name;
    if (is_work(action) && action.vstage >= 0) {
      const Work works[] = {Work::forward, Work::backward, Work::dgrad, Work::wgrad};
      for (const Work work : works) {
        if (letter_of(work) != action.name[0]) continue;
        json["name"] = to_string(Action{action.vstage, work, action.microbatch});
      }
    }
    json["cat"] = action.name;
    json["ts"] = microseconds(start);
    json["dur"] = microseconds(end - start);
    json["args"] = {{"stage", action.stage}, {"chunk", action.chunk}};
    if (action.vstage >= 0) json["args"]["vstage"] = action.vstage;
    if (action.microbatch >= 0) json["args"]["microbatch"] = action.microbatch;
    events_.push_back({start, 0, std::move(json)});
  }

  void flows(const TraceProcess& process) {
    struct Place {
      int track, rank;
      const TimedAction* action;
    };
    // Works by the row's place among the rows of its stage, virtual stage, gradient or not, and
    // microbatch.
    std::map<std::tuple<int, int, bool, int>, Place> places;
    std::map<int, int> seen;  // rows of each stage so far
    for (const TraceRow& row : process.rows) {
      const int place = seen[row.stage]++;
      for (const TimedAction& action : row.actions) {
        if (!is_work(action) || action.name == "W" || action.vstage < 0) continue;
        places[{place, action.vstage, action.name != "F", action.microbatch}] = {
            track_of(row, action.lane), row.rank, &action};
      }
    }
    for (const auto& [key, to] : places) {
      const auto& [place, vstage, gradient, microbatch] = key;
      const auto from = places.find({place, vstage + (gradient ? 1 : -1), gradient, microbatch});
      if (from != places.end() && from->second.rank != to.rank)
        flow(from->second.track, *from->second.action, to.track, *to.action);
    }
  }

  // Viewers bind a flow to the slice that is open at its time, and want its start before its end: a
  // result may be there a moment before its sender's clock says that the work is over.
  void flow(int from_row, const TimedAction& from, int to_row, const TimedAction& to) {
    const std::int64_t arrival = nanoseconds(to.start), begun = nanoseconds(from.start);
    const std::int64_t leave = std::max(begun, std::min(nanoseconds(from.end), arrival) - 1);
    Json start = base("s", from_row), end = base("f", to_row);
    end["bp"] = "e";
    start["ts"] = microseconds(leave);
    end["ts"] = microseconds(std::max(leave, arrival));
    ++flows_;
    for (Json* json : {&start, &end}) {
      (*json)["id"] = flows_;
      (*json)["name"] = from.name == "F" ? "activation" : "gradient";
      (*json)["cat"] = "transfer";
    }
    events_.push_back({leave, 2, std::move(start)});
    events_.push_back({std::max(leave, arrival), leave < arrival ? 1 : 3, std::move(end)});
  }

  int process_ = 1, flows_ = 0;
  std::vector<Event> names_, events_;
};

}  // namespace

std::string chrome_trace(const std::vector<TraceProcess>& processes, const Json& about) {
  return Writer(processes).text(about);
}

}  // namespace mw
