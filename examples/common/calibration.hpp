// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <distx/comm/calls/collectives.hpp>
#include <distx/core/error.hpp>

namespace examples {

/// The measured time of a backend's calls by bytes, as benchmarks/calibrate writes it.
struct Calibration {
  /// The seconds of a call. Bytes are those of its larger buffer.
  struct Knot {
    double bytes = 0;
    double blocking = 0;
    double started = 0;  ///< from its start to its end, if the caller waits for it at once
    double taken = 0;    ///< by which it prolongs a computation that takes longer than the call
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(Knot, bytes, blocking, started, taken)
  };
  using Column = double Knot::*;

  std::string backend;
  int ranks = 0;
  bool shares_memory = false;  ///< the ranks read each other's memory
  std::map<std::string, std::vector<Knot>, std::less<>> calls;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Calibration, backend, ranks, shares_memory, calls)

  static constexpr const char* operations[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"};

  /// @throws distx::DataError if the file is absent or is not a calibration
  [[nodiscard]] static Calibration read(const std::filesystem::path& path) {
    const auto fail = [&](const std::string& why) {
      return distx::DataError("'" + path.string() + "' is not a calibration: " + why +
                              "; write one with benchmarks/calibrate --json FILE");
    };
    Calibration calibration;
    try {
      std::ifstream file(path);
      if (!file) throw fail("it cannot be read");
      calibration = nlohmann::json::parse(file).get<Calibration>();
    } catch (const nlohmann::json::exception& error) {
      throw fail(error.what());
    }
    if (calibration.ranks < 2) throw fail("it has " + std::to_string(calibration.ranks) + " ranks, not several");
    for (const std::string name : operations) {
      const auto& knots = calibration.calls[name];
      if (knots.empty()) throw fail("it has no times of " + name);
      for (std::size_t i = 0; i < knots.size(); ++i) {
        const auto& knot = knots[i];
        for (const double value : {knot.bytes, knot.blocking, knot.started, knot.taken})
          if (!std::isfinite(value) || value < 0) throw fail("a number of " + name + " is negative or not finite");
        if (i > 0 && !(knot.bytes > knots[i - 1].bytes)) throw fail("the bytes of " + name + " do not ascend");
      }
    }
    return calibration;
  }

  /// Returns the seconds of a call among `size` ranks.
  ///
  /// Among more ranks than were measured, the bytes grow as those of a ring, and the time of the smallest call as the
  /// depth of a tree.
  [[nodiscard]] double seconds(const distx::calls::Call<>& call, int size, Column column) const {
    const auto& knots = calls.find(measured(call.kind))->second;
    const auto ring = [](int n) { return 1 - 1.0 / n; };
    const double bytes = static_cast<double>(std::max(call.send.size_bytes(), call.receive.size_bytes()));
    return interpolate(knots, bytes * ring(size) / ring(ranks), column) +
           knots.front().*column * (std::log2(size) / std::log2(ranks) - 1);
  }
  /// Returns the smallest power of two for which an all-reduce reaches 0.8 of the highest rate of bytes.
  [[nodiscard]] std::size_t bucket_bytes() const {
    const auto& knots = calls.find("all_reduce")->second;
    const auto rate = [&](double bytes) { return bytes / std::max(interpolate(knots, bytes, &Knot::started), 1e-9); };
    double best = 0;
    const double most = knots.back().bytes;
    for (double bytes = 1024; bytes <= most; bytes *= 2) best = std::max(best, rate(bytes));
    double bytes = 1024;
    while (bytes < most && rate(bytes) < 0.8 * best) bytes *= 2;
    return static_cast<std::size_t>(bytes);
  }

 private:
  /// Returns the measured operation that is most like another.
  [[nodiscard]] static std::string_view measured(distx::calls::CollectiveKind kind) {
    using enum distx::calls::CollectiveKind;
    if (kind == reduce) return "all_reduce";
    if (kind == all_to_all || kind == gather || kind == scatter) return "all_gather";
    if (kind == send || kind == receive || kind == send_receive) return "broadcast";
    return distx::calls::name_of(kind);
  }
  /// Interpolates linearly, and continues the last two knots beyond them.
  [[nodiscard]] static double interpolate(const std::vector<Knot>& knots, double bytes, Column column) {
    if (knots.size() == 1 || bytes <= knots.front().bytes) return knots.front().*column;
    std::size_t i = 1;
    while (i + 1 < knots.size() && knots[i].bytes < bytes) ++i;
    const Knot &a = knots[i - 1], &b = knots[i];
    return a.*column + (b.*column - a.*column) * (bytes - a.bytes) / (b.bytes - a.bytes);
  }
};

}  // namespace examples
