// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/optim/schedule.hpp>

#include <functional>
#include <limits>
#include <string>

namespace {

std::string refused_schedule(const std::function<void()>& make) {
  try {
    make();
  } catch (const distx::InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

static_assert(distx::schedules::Schedule<decltype(distx::schedules::constant(1))>);
static_assert(distx::schedules::Schedule<decltype(distx::schedules::warm_up(1, distx::schedules::cosine(1, 1)))>);
static_assert(!distx::schedules::Schedule<double>);

constexpr double no_rate = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite_rate = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("constant, linear and cosine reach their last rate and keep it") {
  const auto constant = distx::schedules::constant(0.25);
  const auto linear = distx::schedules::linear(1, 10, 0.5);
  const auto cosine = distx::schedules::cosine(1, 10, 0.5);
  CHECK(constant(0) == 0.25);
  CHECK(constant(1'000'000) == 0.25);
  CHECK(linear(0) == 1);
  CHECK(linear(2) == doctest::Approx(0.9).epsilon(1e-15));
  CHECK(cosine(0) == 1);
  CHECK(cosine(5) == doctest::Approx(0.75).epsilon(1e-15));
  CHECK(cosine(2) == doctest::Approx(0.5 + 0.25 * (1 + 0.80901699437494742)).epsilon(1e-15));
  for (const std::uint64_t step : {10u, 11u, 1000u}) {
    CHECK(linear(step) == 0.5);
    CHECK(cosine(step) == 0.5);
  }
  for (std::uint64_t step = 1; step <= 10; ++step) {
    CHECK(linear(step) < linear(step - 1));
    CHECK(cosine(step) < cosine(step - 1));
  }
  CHECK(distx::schedules::linear(0, 4, 1)(3) == 0.75);
  CHECK(distx::schedules::cosine(1, 3)(3) == 0);
}

TEST_CASE("warm_up rises to the first rate of its schedule, then follows it") {
  const auto schedule = distx::schedules::warm_up(100, distx::schedules::cosine(3e-4, 10000, 3e-5));
  CHECK(schedule(0) == doctest::Approx(3e-6).epsilon(1e-12));
  CHECK(schedule(49) == doctest::Approx(1.5e-4).epsilon(1e-12));
  CHECK(schedule(99) == doctest::Approx(3e-4).epsilon(1e-12));
  CHECK(schedule(100) == 3e-4);
  CHECK(schedule(5100) == doctest::Approx(1.65e-4).epsilon(1e-12));
  CHECK(schedule(10100) == 3e-5);
  CHECK(distx::schedules::warm_up(0, distx::schedules::constant(2))(0) == 2);
  const auto own = distx::schedules::warm_up(2, [](std::uint64_t step) { return 8.0 / static_cast<double>(step + 1); });
  CHECK(own(0) == 4);
  CHECK(own(2) == 8);
  CHECK(own(3) == 4);
}

TEST_CASE("invalid rates and lengths throw InvalidArgument") {
  for (const double bad : {-1.0, infinite_rate, -infinite_rate, no_rate}) {
    CHECK(refused_schedule([=] { distx::schedules::constant(bad)(0); }).find("constant: invalid learning rate") !=
          std::string::npos);
    CHECK(refused_schedule([=] { distx::schedules::linear(bad, 5)(0); }).find("linear: invalid first rate") !=
          std::string::npos);
    CHECK(refused_schedule([=] { distx::schedules::linear(1, 5, bad)(0); }).find("linear: invalid last rate") !=
          std::string::npos);
    CHECK(refused_schedule([=] { distx::schedules::cosine(bad, 5)(0); }).find("cosine: invalid first rate") !=
          std::string::npos);
    CHECK(refused_schedule([=] { distx::schedules::cosine(1, 5, bad)(0); }).find("cosine: invalid last rate") !=
          std::string::npos);
  }
  CHECK(refused_schedule([] { distx::schedules::linear(1, 0)(0); }).find("linear: invalid steps 0") !=
        std::string::npos);
  CHECK(refused_schedule([] { distx::schedules::cosine(1, 0)(0); }).find("cosine: invalid steps 0") !=
        std::string::npos);
  CHECK(refused_schedule([] { distx::schedules::constant(0)(0); }) == "accepted");
}
