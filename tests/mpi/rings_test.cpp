// The rings between processes, as two threads use them.
#include "rings.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace mpi;  // NOLINT

TEST_CASE("Frames of any size come out of a ring as they went in, whoever is slower") {
  constexpr std::int64_t capacity = 4096;
  const auto name = SharedArea::create(2, capacity);
  REQUIRE(!name.empty());
  const SharedArea area(name, 2, capacity);
  REQUIRE(area.valid());
  SharedArea::remove_name(name);
  CHECK(!SharedArea(name, 2, capacity).valid());
  constexpr int frames = 3000;
  const auto size_of = [](int frame) { return static_cast<std::int64_t>(frame * 37 % 1000); };
  std::thread writer([&] {
    Ring& ring = area.ring(0, 1);
    std::vector<std::byte> bytes(1000);
    for (int f = 0; f < frames; ++f) {
      const auto size = size_of(f);
      std::memset(bytes.data(), f & 0xff, bytes.size());
      for (;;) {
        const auto seen = area.doorbell(0).seen();
        if (ring.room(size) >= size) break;
        area.doorbell(0).prepare();
        area.doorbell(0).sleep(seen, std::chrono::seconds(10));
      }
      ring.write(
          {static_cast<std::uint32_t>(size), FrameType::data, static_cast<std::uint32_t>(f), 1},
          bytes.data());
      area.doorbell(1).ring();
    }
  });
  Ring& ring = area.ring(0, 1);
  int wrong = 0;
  for (int f = 0; f < frames; ++f) {
    for (;;) {
      const auto seen = area.doorbell(1).seen();
      if (!ring.empty()) break;
      area.doorbell(1).prepare();
      area.doorbell(1).sleep(seen, std::chrono::seconds(10));
    }
    const auto head = ring.front();
    if (head.bytes != size_of(f) || head.handle != static_cast<std::uint32_t>(f)) ++wrong;
    std::vector<std::byte> bytes(head.bytes);
    ring.copy(0, bytes.data(), head.bytes);
    for (const auto byte : bytes) wrong += byte != static_cast<std::byte>(f & 0xff);
    if (ring.pop()) area.doorbell(0).ring();
  }
  writer.join();
  CHECK(wrong == 0);
  CHECK(ring.empty());
}

TEST_CASE("Rings of many processes stay small") {
  CHECK(SharedArea::capacity_for(2) == 512 * 1024);
  for (const int processes : {1, 2, 8, 64, 256}) {
    CHECK(SharedArea::capacity_for(processes) % 16 == 0);
    CHECK(SharedArea::capacity_for(processes) >= 16 * 1024);
  }
  CHECK(SharedArea::capacity_for(8) * 56 <= 48 * 1024 * 1024);
}
