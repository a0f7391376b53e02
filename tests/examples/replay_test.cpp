// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A fake rank's simulated time passes as its thread computes and as a calibration says; calibrations are checked.
#include <doctest/doctest.h>

#include <fstream>

#include <distx/distx.hpp>

#include "common/replay.hpp"
#include "temporary_folder.hpp"

namespace {

using namespace std::chrono_literals;
using examples::Calibration;
using examples::Replay;
using std::chrono::nanoseconds;

/// Two ranks: an all-reduce of 2000 bytes takes 20 us, started 30 us, and prolongs a computation by 12 us.
Calibration calibration_of_two() {
  Calibration result{"made", 2, false, {}};
  for (const auto* name : Calibration::operations) result.calls[name] = {{0, 1e-6, 2e-6, 0}};
  result.calls["all_reduce"] = {{1000, 10e-6, 20e-6, 8e-6}, {3000, 30e-6, 40e-6, 16e-6}};
  return result;
}

TEST_CASE("a replay passes the time that its thread computes, and the time of its calls") {
  nanoseconds thread{5us};
  Replay replay(0, 2, calibration_of_two(), 1.5, [&] { return thread; });
  std::vector<float> x(500);
  CHECK(replay.now() == 0us);
  thread += 100us;
  CHECK(replay.now() == 150us);
  distx::all_reduce(replay, x, distx::sum);
  CHECK(replay.now() == 170us);
  CHECK(replay.computed() == 150us);
}

TEST_CASE("a started call prolongs the computation that hides it, as far as it hides it") {
  nanoseconds thread{0};
  Replay replay(0, 2, calibration_of_two(), 1, [&] { return thread; });
  std::vector<float> x(500);
  const auto took = [&](nanoseconds computed) {
    const auto begin = replay.now();
    auto pending = distx::start_all_reduce(replay, x, distx::sum);
    thread += computed;
    pending.wait();
    return replay.now() - begin;
  };
  CHECK(took(0us) == 30us);
  CHECK(took(15us) == 30us + 6us);  // half of it is hidden
  CHECK(took(100us) == 112us);
  const auto begin = replay.now();
  { auto abandoned = distx::start_all_reduce(replay, x, distx::sum); }
  CHECK(replay.now() - begin == 30us);
}

TEST_CASE("the work of the fake rank itself takes no time") {
  nanoseconds thread{0};
  Replay replay(0, 2, calibration_of_two(), 1, [&] { return thread += 1us; });  // between any two looks
  std::vector<float> x(500);
  for (int i = 0; i < 10; ++i) distx::all_reduce(replay, x, distx::sum);
  CHECK(replay.computed() == 10us);
}

TEST_CASE("groups of a replay share its time, and one rank's calls take none") {
  nanoseconds thread{0};
  Replay replay(2, 4, calibration_of_two(), 1, [&] { return thread; });
  std::vector<float> x(500);
  auto pair = distx::groups(replay, {{0, 2}, {1, 3}});
  auto alone = distx::groups(replay, {{2}});
  const auto begin = replay.now();
  distx::all_reduce(pair, x, distx::sum);
  CHECK(replay.now() - begin == 20us);
  distx::all_reduce(alone, x, distx::sum);
  CHECK(replay.now() - begin == 20us);
}

TEST_CASE("times among more ranks grow with a ring's bytes and a tree's depth") {
  const auto calibration = calibration_of_two();
  std::vector<float> x(500);
  const distx::calls::AllReduce<float, distx::Sum> call{x, x, {}};
  const auto seconds = [&](int size) {
    return calibration.seconds(distx::calls::erase(call), size, &Calibration::Knot::blocking);
  };
  CHECK(seconds(2) == doctest::Approx(20e-6));
  CHECK(seconds(4) == doctest::Approx(30e-6 + 10e-6));  // 3/4 : 1/2 of the bytes, and once more the smallest call
}

TEST_CASE("replays of ranks that share memory map weights and update by operands") {
  Calibration calibration = calibration_of_two();
  calibration.shares_memory = true;
  for (const int stage : {1, 3}) {
    Replay replay(1, 2, calibration, 1);
    distx::AnyCommunicator<> comm(replay.share());
    std::vector<distx::Parameter<float>> layers;
    layers.emplace_back("weights", 10'000);
    auto& weights = layers.front();
    distx::DataParallel<distx::ZeRO<distx::Dynamic>> training(comm, layers, distx::SGD{}, {.stage = stage});
    for (int step = 0; step < 2; ++step) {
      {
        const auto whole = training.unshard(weights);
      }
      for (float& value : training.gradient(weights)) value = 1;
      training.ready(weights);
      training.step({.learning_rate = 1});
    }
    const auto whole = training.unshard(weights);
    CHECK(training.value(weights)[9'999] == -1);  // two steps of 1, averaged with the other rank's gradients of 0
  }
}

TEST_CASE("a collective of ranks that all replay begins when the last one has entered it and the link is free") {
  const auto memory = std::make_shared<examples::ReplayedTogether::Memory>();
  distx::spawn(2, [&](auto& self) {
    distx::ThreadCommunicator all(self);
    nanoseconds thread{0};
    Replay replay(
        self.rank(), 2, calibration_of_two(), 1, [&] { return thread; },
        std::make_shared<examples::ReplayedTogether>(all.share(), memory));
    std::vector<float> x(500), y(500);
    thread += self.rank() == 0 ? 10us : 50us;
    distx::all_reduce(replay, x, distx::sum);
    CHECK(replay.now() == 70us);
    auto first = distx::start_all_reduce(replay, x, distx::sum);
    thread += self.rank() == 0 ? 0us : 20us;
    auto second = distx::start_all_reduce(replay, y, distx::sum);  // entered at 70 and 90, begins at 100
    first.wait();
    second.wait();
    // Rank 1 has hidden 20 us of the first call, which took 8 us, and these 8 us of the second, which took 3.2.
    CHECK(replay.now() == (self.rank() == 0 ? 130us : 133'200ns));
  });
}

TEST_CASE("ranks that all replay map each other's weights and update by each other's operands") {
  if (std::thread::hardware_concurrency() < 2) {
    MESSAGE("skipped: one processor replays one rank at a time");
    return;
  }
  Calibration calibration = calibration_of_two();
  calibration.shares_memory = true;
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    examples::replay_neighbors(0, 2, calibration, [&](examples::Neighbor& neighbor) {
      distx::AnyCommunicator<> comm(neighbor.replay.share());
      std::vector<distx::Parameter<float>> layers;
      layers.emplace_back("weights", 10'000);
      auto& weights = layers.front();
      distx::DataParallel<distx::ZeRO<distx::Dynamic>> training(comm, layers, distx::SGD{}, {.stage = stage});
      for (float& value : training.gradient(weights)) value = comm.rank() == 0 ? 1 : 3;
      training.ready(weights);
      training.step({.learning_rate = 1});
      distx::barrier(neighbor.all);
      const auto whole = training.unshard(weights);
      const auto& values = training.value(weights);
      CHECK(values[comm.rank() == 0 ? 0 : 9'999] == -2);
      if (stage == 3) CHECK(values[comm.rank() == 0 ? 9'999 : 0] == -2);
    });
  }
}

TEST_CASE("buckets are the smallest that reach four fifths of the best rate") {
  auto calibration = calibration_of_two();
  calibration.calls["all_reduce"] = {{64, 0, 1e-6}, {4096, 0, 2e-6}};
  CHECK(calibration.bucket_bytes() == 4096);
  calibration.calls["all_reduce"] = {{64, 0, 0}, {1 << 20, 0, 1e-3}, {1 << 26, 0, 64e-3}};
  CHECK(calibration.bucket_bytes() == 1024);
}

TEST_CASE("a file that is not a calibration is a DataError that says why") {
  const examples::TemporaryFolder folder;
  const auto path = folder.path() / "calibration.json";
  const auto refused = [&](const std::string& text, const char* why) {
    std::ofstream(path) << text;
    CHECK_THROWS_WITH_AS(static_cast<void>(Calibration::read(path)), doctest::Contains(why), distx::DataError);
  };
  CHECK_THROWS_WITH_AS(static_cast<void>(Calibration::read(path)), doctest::Contains("cannot be read"),
                       distx::DataError);
  refused("", "parse error");
  refused("[]", "is not a calibration");
  const nlohmann::json whole = calibration_of_two();
  const auto changed = [&](const char* pointer, const nlohmann::json& value) {
    auto other = whole;
    other[nlohmann::json::json_pointer(pointer)] = value;
    return other.dump();
  };
  refused(changed("/ranks", 1), "1 ranks");
  refused(changed("/calls/barrier", nlohmann::json::array()), "no times of barrier");
  refused(changed("/calls/all_reduce/0/started", -1), "negative");
  refused(changed("/calls/all_reduce/1/bytes", 1000), "do not ascend");
  refused(changed("/calls/all_reduce/1", nlohmann::json::object()), "key 'bytes' not found");
  std::ofstream(path) << whole.dump();
  CHECK(nlohmann::json(Calibration::read(path)) == whole);
}

}  // namespace
