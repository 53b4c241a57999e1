// CSV, text and drawings.
#include "schedules.h"

using namespace mw;
using Catch::Contains;

namespace {

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from < text.size(); from = text.find('\n', from) + 1)
    lines.push_back(text.substr(from, text.find('\n', from) - from));
  return lines;
}

}  // namespace

TEST_CASE("Every schedule comes back from CSV and from text") {
  for (const auto& scheduler : schedulers()) {
    const auto request = request_for(scheduler->name(), 3, 7);
    const auto schedule = scheduler->make(request);
    for (const auto& back : {schedule_from_csv(to_csv(schedule), "back"),
                             schedule_from_text(to_text(schedule), "back")}) {
      CHECK(back.name == "back");
      CHECK(back.microbatches == 7);
      CHECK(back.stage_of == schedule.stage_of);
      CHECK((back.order == schedule.order));  // Catch2 cannot print an Action
      CHECK(to_text(back) == to_text(schedule));
    }
  }
}

TEST_CASE(
    "The published form of compute actions is read: idle cells, overlapped pairs, line ends") {
  const auto schedule = schedule_from_csv(
      "0F0,0F1,,3F0,3I0,3W0,(3F1;0B0)OVERLAP_F_B,3B1,0I1,0W1,\r\n"
      ",1F0, 2F0 ,1F1,,2I0,(2F1;1B0)OVERLAP_F_B,2B1,\"2W0\",1B1\r\n\r\n",
      "own");
  CHECK(schedule.stages() == 2);
  CHECK(schedule.microbatches == 2);
  CHECK(schedule.stage_of == std::vector<int>{0, 1, 1, 0});
  CHECK(to_text(schedule) ==
        "0F0 0F1 3F0 3I0 3W0 3F1+0B0 3B1 0I1 0W1\n1F0 2F0 1F1 2I0 2F1+1B0 2B1 2W0 1B1\n");
  CHECK(faults(schedule, request_of(2, 2, 2)) == "none");
}

TEST_CASE("Cells that are no work are refused by row and cell") {
  const auto refused = [](const std::string& text) {
    return test::thrown([&] { schedule_from_csv(text, "own"); });
  };
  CHECK(refused("0F0,0B0\n1F0,1SEND_B0") == "schedule.cell schedule[2][2]");
  for (const char* cell : {"0X0", "0F", "F0", "-1F0", "0F99999999999", "(0F1;0B0)UNSHARD",
                           "(0F1;)OVERLAP_F_B", "(0F1"}) {
    CHECK(refused(std::string("0F0,") + cell) == "schedule.cell schedule[1][2]");
  }
  CHECK(refused("0F0,1F0\n0B0,1B0") == "schedule.home schedule[2][1]");
  CHECK(refused("0F0,0B0\n2F0,2B0") == "schedule.range schedule");
  CHECK(refused("0F0,0B0\n,,\n1F0,1B0") == "schedule.empty schedule[2]");
  CHECK(refused("") == "schedule.empty schedule");
  CHECK(test::thrown([] { schedule_from_text("0F0 0B0 0F1;", "own"); }) ==
        "schedule.cell schedule[1][3]");
}

TEST_CASE("The grid in characters shows who does what when") {
  const auto request = request_of(2, 1, 3);
  const auto schedule = made("1f1b", request);
  const auto timeline = simulate(schedule, request);
  const auto lines = lines_of(draw_text(schedule, timeline, 26, false));
  REQUIRE(lines.size() >= 3);
  CHECK(lines[0] == "0|F0F1····B0--F2B1--··B2--");
  CHECK(lines[1] == "1|··F0B0--F1B1--F2B2--····");
  CHECK_THAT(lines[2], Contains("F forward") && Contains("B backward") && !Contains("W weight"));
  CHECK_THAT(draw_text(schedule, timeline, 26, true), Contains("\x1b[48;5;"));
}

TEST_CASE("Where cells are narrow, numbers have a line of their own and lose their tens") {
  const auto request = request_of(2, 1, 12);
  const auto schedule = made("1f1b", request);
  const auto lines = lines_of(draw_text(schedule, simulate(schedule, request), 45, false));
  REQUIRE(lines.size() >= 5);
  CHECK(lines[0] == "0|FF··BBFBBFBBFBBFBBFBBFBBFBBFBBFBBFBB·BB");
  CHECK(lines[1] == " |01  0 21 32 43 54 65 76 87 98 09 110 11");
  CHECK_THAT(lines[4] + lines[5], Contains("last digit"));
}

TEST_CASE("The grid keeps to its columns, from small to too many") {
  for (const auto& [stages, microbatches, columns] :
       {std::tuple{8, 24, 120}, {8, 24, 80}, {3, 2, 120}, {12, 300, 100}, {2, 1, 1}}) {
    for (const auto& scheduler : schedulers()) {
      INFO(scheduler->name() << " " << stages << " x " << microbatches << " in " << columns);
      const auto request = request_for(scheduler->name(), stages, microbatches);
      const auto schedule = scheduler->make(request);
      const auto lines = lines_of(draw_text(schedule, simulate(schedule, request), columns, false));
      CHECK(static_cast<int>(lines.size()) > stages);
      for (const std::string& line : lines) {
        const auto width =
            std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; });
        CHECK(width <= std::max(columns, 46));  // the longest part of the legend
      }
    }
  }
  // Every microbatch of 8 x 24 has a cell of its own in 120 columns.
  const auto request = request_of(8, 1, 24);
  const auto schedule = made("1f1b", request);
  const auto text = draw_text(schedule, simulate(schedule, request), 120, false);
  CHECK(count_of(text.substr(0, text.find('\n')), "F") == 24);
  CHECK(count_of(text.substr(0, text.find('\n')), "B") == 48);
}

TEST_CASE("The SVG stands alone: a cell for each work, numbers, legend, both colour schemes") {
  const auto request = request_of(4, 2, 8);
  const auto schedule = made("zbv", request);
  const auto timeline = simulate(schedule, request);
  const auto svg = draw_svg(timeline.stages, {"a<b", "stage 1", "stage 2", "stage 3"},
                            "zbv & \"co\"", "one\ntwo");
  CHECK(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0) == 0);
  CHECK_THAT(svg, Contains("prefers-color-scheme:dark") && Contains("a&lt;b") &&
                      Contains("zbv &amp; &quot;co&quot;") && Contains(">two</text>") &&
                      Contains("F forward") && Contains("one shade a chunk"));
  CHECK_THAT(svg, !Contains("href") && !Contains("<script"));
  CHECK(count_of(svg, "</title></rect>") == 4 * 2 * 3 * 8);
  CHECK(count_of(svg, "class=\"n ") == 4 * 2 * 3 * 8);
  CHECK(count_of(svg, "<text") == count_of(svg, "</text>"));
}

TEST_CASE("A measured timeline is drawn with its transfers, whatever its rows") {
  TimedAction work, send, end;
  work.name = "F";
  work.microbatch = 0;
  work.start = 10.5;
  work.end = 11;
  send.name = "send F";
  send.microbatch = 0;
  send.start = 10.75;
  send.end = 11.25;
  end.name = "finish";
  end.start = 11.25;
  end.end = 11.5;
  const auto svg = draw_svg({{work, send, end}, {}}, {"rank 0"}, "measured", "");
  CHECK_THAT(svg, Contains("class=\"move\"") && Contains("class=\"other\"") &&
                      Contains("send F of microbatch 0: 0.25 to 0.75"));
  CHECK_THAT(draw_svg({}, {}, "nothing", ""), Contains("</svg>"));
}
