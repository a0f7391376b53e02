// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <distx/distx.hpp>

#include "timing/row.hpp"
#include "timing/subject.hpp"

namespace timing {

using Subjects = std::vector<std::unique_ptr<Subject>>;

/// Bytes that a batch of small calls may go through, so that they stay where a cache has them.
inline constexpr std::size_t batch_bytes = 64 * 1024;
inline constexpr std::size_t most_calls_in_a_batch = 256;

/// How many calls are timed together: small ones take less time than a clock and a barrier do.
constexpr std::size_t calls_in_a_batch(std::size_t bytes) {
  const std::size_t stride = (bytes + 63) / 64 * 64;
  return std::clamp<std::size_t>(batch_bytes / std::max<std::size_t>(stride, 64), 1, most_calls_in_a_batch);
}

/// Elements from one call of a batch to the next.
constexpr std::size_t stride_of(std::size_t bytes) { return std::max<std::size_t>((bytes + 63) / 64 * 64, 64) / 4; }

/// The size in bytes up to which a cache may keep data from one call to the next.
inline constexpr std::size_t warm_bytes = 64 * 1024 * 1024;
/// Seconds after which a batch is long enough, however few its calls are.
inline constexpr double longest_batch = 2e-3;

template <class F>
double seconds_of(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Effort {
  double seconds = 2;         ///< to be spent on one size, all subjects together
  int least = 5, most = 200;  ///< rounds
};

/// Times all subjects on one case: round by round each has its turn, so that what else the machine does hits all alike.
class Measurement {
 public:
  /// `gate` is there for barriers and for the results; nothing of it is timed.
  template <class C>
  Measurement(C gate, const Effort& effort) : gate_(std::move(gate)), effort_(effort) {}

  [[nodiscard]] std::vector<Row> run(const Case& c, const Subjects& subjects) {
    std::vector<Subject*> able;
    for (const auto& subject : subjects)
      if (subject->can(c)) able.push_back(subject.get());
    if (able.empty()) return {};
    std::vector<std::uint64_t> errors(able.size());
    // The first call does what is done once. The second says how many are timed together, and how many rounds there is
    // time for: as the slowest rank sees it, so that all agree.
    std::vector<std::size_t> calls(able.size(), 1);
    std::vector<double> alone(able.size());
    for (std::size_t i = 0; i < able.size(); ++i) {
      time(c, *able[i], 1, errors[i]);
      alone[i] = time(c, *able[i], 1, errors[i]);
    }
    distx::all_reduce(gate_, alone, distx::max);
    for (std::size_t i = 0; i < able.size(); ++i)
      calls[i] = std::clamp<std::size_t>(static_cast<std::size_t>(longest_batch / std::max(alone[i], 1e-9)), 1,
                                         calls_in_a_batch(c.bytes()));
    double round_seconds = seconds_of([&] {
      for (std::size_t i = 0; i < able.size(); ++i) time(c, *able[i], calls[i], errors[i]);
    });
    distx::all_reduce(gate_, round_seconds, distx::max);
    if (c.bytes() <= warm_bytes) round_seconds *= 2;
    const int rounds = static_cast<int>(std::clamp(effort_.seconds / round_seconds, static_cast<double>(effort_.least),
                                                   static_cast<double>(effort_.most)));
    std::vector<double> seconds(able.size() * static_cast<std::size_t>(rounds));
    std::vector<std::size_t> turns(able.size());
    std::iota(turns.begin(), turns.end(), std::size_t{0});
    std::mt19937 shuffle(1);  // the same on all ranks
    for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
      // Not one after the other: a subject whose memory the one before has used finds it in caches.
      std::shuffle(turns.begin(), turns.end(), shuffle);
      for (const std::size_t i : turns) {
        // A library's own memory is cached as its own last call left it, not as another library's call did.
        if (c.bytes() <= warm_bytes) time(c, *able[i], calls[i], errors[i]);
        seconds[i * static_cast<std::size_t>(rounds) + round] = time(c, *able[i], calls[i], errors[i]);
      }
    }
    // A call takes as long as it takes the rank that is longest in it.
    distx::all_reduce(gate_, seconds, distx::max);
    distx::all_reduce(gate_, errors, distx::sum);
    std::vector<Row> rows;
    for (std::size_t i = 0; i < able.size(); ++i) {
      const auto from = seconds.begin() + static_cast<std::ptrdiff_t>(i) * rounds;
      std::sort(from, from + rounds);
      rows.push_back(row_of(c, *able[i], from[rounds / 2], from[0], rounds, errors[i]));
    }
    return rows;
  }

 private:
  /// Returns the seconds of one call on this rank, without writing the data before and checking it after.
  double time(const Case& c, Subject& subject, std::size_t calls, std::uint64_t& errors) {
    const std::size_t stride = stride_of(c.bytes());
    batch_.clear();
    for (std::size_t i = 0; i < calls; ++i) batch_.push_back(subject.at(c, i * stride));
    turn_ += static_cast<std::uint32_t>(calls);
    for (std::size_t i = 0; i < calls; ++i) subject.prepare(c, batch_[i], turn_ + static_cast<std::uint32_t>(i));
    distx::barrier(gate_);
    distx::barrier(gate_);  // the first waits for the slowest rank, the second starts all ranks almost at once
    const double took = seconds_of([&] {
      for (const Buffers& buffers : batch_) subject.call(c, buffers);
    });
    distx::barrier(gate_);
    for (std::size_t i = 0; i < calls; ++i)
      errors += subject.errors(c, batch_[i], turn_ + static_cast<std::uint32_t>(i));
    return took / static_cast<double>(calls);
  }

  distx::AnyCommunicator<> gate_;
  Effort effort_;
  std::vector<Buffers> batch_;
  std::uint32_t turn_ = 0;
};

}  // namespace timing
