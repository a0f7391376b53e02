// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <chrono>
#include <memory>
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

struct Effort {
  double seconds = 2;      ///< to be spent on one size, all subjects together
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
    std::vector<std::uint64_t> errors(able.size());
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < able.size(); ++i) time(c, *able[i], errors[i]);  // what is done once is done here
    const std::chrono::duration<double> warm = std::chrono::steady_clock::now() - begin;
    int rounds = static_cast<int>(std::clamp(effort_.seconds / std::max(warm.count(), 1e-6),
                                             static_cast<double>(effort_.least), static_cast<double>(effort_.most)));
    distx::broadcast(gate_, rounds, 0);
    std::vector<double> seconds(able.size() * static_cast<std::size_t>(rounds));
    for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round)
      for (std::size_t turn = 0; turn < able.size(); ++turn) {
        const std::size_t i = (turn + round) % able.size();
        seconds[i * static_cast<std::size_t>(rounds) + round] = time(c, *able[i], errors[i]);
      }
    // A call takes as long as it takes the rank that is longest in it.
    if (!able.empty()) {
      distx::all_reduce(gate_, seconds, distx::max);
      distx::all_reduce(gate_, errors, distx::sum);
    }
    std::vector<Row> rows;
    for (std::size_t i = 0; i < able.size(); ++i) {
      const auto from = seconds.begin() + static_cast<std::ptrdiff_t>(i) * rounds;
      std::sort(from, from + rounds);
      rows.push_back(row_of(c, *able[i], from[rounds / 2], from[0], rounds, errors[i]));
    }
    return rows;
  }

 private:
  /// Seconds of one call, on this rank. What is written before and looked at afterwards is not in it.
  double time(const Case& c, Subject& subject, std::uint64_t& errors) {
    const std::size_t calls = calls_in_a_batch(c.bytes()), stride = stride_of(c.bytes());
    batch_.clear();
    for (std::size_t i = 0; i < calls; ++i) batch_.push_back(subject.at(c, i * stride));
    turn_ += static_cast<std::uint32_t>(calls);
    for (std::size_t i = 0; i < calls; ++i) subject.prepare(c, batch_[i], turn_ + static_cast<std::uint32_t>(i));
    distx::barrier(gate_);
    distx::barrier(gate_);  // the first waits for the slowest, the second lets all go at nearly the same moment
    const auto begin = std::chrono::steady_clock::now();
    for (const Buffers& buffers : batch_) subject.call(c, buffers);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    distx::barrier(gate_);
    for (std::size_t i = 0; i < calls; ++i)
      errors += subject.errors(c, batch_[i], turn_ + static_cast<std::uint32_t>(i));
    return took.count() / static_cast<double>(calls);
  }

  distx::AnyCommunicator<> gate_;
  Effort effort_;
  std::vector<Buffers> batch_;
  std::uint32_t turn_ = 0;
};

}  // namespace timing
