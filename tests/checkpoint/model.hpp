// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/checkpoint.hpp>
#include <distx/checkpoint/detail/folders.hpp>
#include <distx/checkpoint/detail/shard_index.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/threads.hpp>

#include <chrono>
#include <cmath>
#include <map>
#include <mutex>

#include <doctest/doctest.h>

#include "examples/temporary_folder.hpp"

// A small model whose shares begin and end inside rows, trained and saved by every test of checkpoints.
namespace model {

using Folder = examples::TemporaryFolder;
using Any = distx::DataParallel<distx::ZeRO<distx::Dynamic>>;

/// An optimizer as a user writes it.
struct Signs {
  static constexpr std::size_t states = 1;
  template <class T>
  [[nodiscard]] constexpr T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate / static_cast<double>(step.number));
  }
  template <class T, class V>
  static constexpr void update(const T& rate, V& weight, V gradient, V& sum) {
    sum += gradient;
    weight -= rate * sum;
  }
};

struct Shape {
  const char* name;
  std::size_t rows, size;
};
inline constexpr Shape shapes[] = {{"a.weight", 7, 91},  {"a.bias", 0, 7}, {"b.weight", 3, 150},  {"b.frozen", 5, 45},
                                   {"c.weight", 40, 40}, {"c.bias", 0, 1}, {"head.weight", 2, 66}};

/// A training of the model on one rank, with all that it borrows.
template <class Training = Any, class T = float>
class Trainer {
 public:
  /// @param offset  of the first weights
  template <class C, class Optimizer>
  Trainer(C& comm, const Optimizer& optimizer, distx::DataParallelOptions options, float offset = 0)
      : rank_(comm.rank()),
        mean_{0.5 + offset, 1.5, -1},
        parameters_(make(offset)),
        training_(comm, list(), optimizer, options) {}

  /// Makes a step whose gradients depend on weights, step and rank.
  void step(std::uint64_t number, double rate = 0.01) {
    for (std::size_t p = parameters_.size(); p-- > 0;) {
      const auto& parameter = parameters_[p];
      if (!parameter.options().trainable) continue;
      const auto whole = training_.unshard(parameter);
      const auto value = training_.value(parameter);
      const auto gradient = training_.gradient(parameter);
      for (std::size_t i = 0; i < value.size(); ++i)
        gradient[i] = static_cast<T>(static_cast<float>(value[i]) -
                                     std::cos(0.3f * static_cast<float>(p) + 0.01f * static_cast<float>(i) +
                                              1.7f * static_cast<float>(number) + static_cast<float>(rank_)));
      training_.ready(parameter);
    }
    training_.step({.learning_rate = rate});
  }
  [[nodiscard]] Training& training() { return training_; }
  /// Continues on fewer ranks.
  template <class C>
  std::uint64_t recover(C& comm) {
    rank_ = comm.rank();
    return training_.recover(comm);
  }

 private:
  static std::vector<distx::Parameter<T>> make(float offset) {
    std::vector<distx::Parameter<T>> all;
    for (std::size_t p = 0; p < std::size(shapes); ++p)
      all.emplace_back(
          shapes[p].name, shapes[p].size,
          [p, offset](distx::Span<T> values) {
            for (std::size_t i = 0; i < values.size(); ++i)
              values[i] = static_cast<T>(std::sin(static_cast<float>(p) + 0.1f * static_cast<float>(i)) + offset);
          },
          distx::ParameterOptions{.trainable = std::string_view(shapes[p].name) != "b.frozen", .rows = shapes[p].rows});
    return all;
  }
  distx::ParameterList<> list() {
    distx::ParameterList<> all(parameters_);
    all.add(distx::buffer_ref("mean", mean_));
    return all;
  }

  int rank_;
  std::vector<double> mean_;
  std::vector<distx::Parameter<T>> parameters_;
  Training training_;
};

template <class F>
void on_ranks(int ranks, F&& f) {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 20s);
    f(comm);
  });
}

/// The bytes of all arrays of a state, whole, and its counters, collected from all ranks.
class WholeState {
 public:
  /// Adds what one rank holds; what several ranks hold must agree.
  template <class Space>
  void add(const distx::TrainingState<Space>& state) {
    const std::lock_guard lock(mutex_);
    for (const auto& array : state.arrays) {
      const std::size_t width = array.values.element_bytes();
      std::size_t bytes = width;
      for (const auto extent : array.shape) bytes *= extent;
      auto& whole = arrays_[array.name];
      whole.resize(bytes, std::nullopt);
      for (std::size_t i = 0; i < array.values.size(); ++i) {
        std::size_t at = 0, stride = 1, left = array.offset + i;
        for (std::size_t d = array.shape.size(); d-- > 0; left /= array.part_shape[d], stride *= array.shape[d])
          at += (array.part_begin[d] + left % array.part_shape[d]) * stride;
        for (std::size_t k = 0; k < width; ++k) {
          const std::byte now = array.values.bytes()[i * width + k];
          auto& byte = whole[at * width + k];
          if (byte && *byte != now) agrees_ = false;
          byte = now;
        }
      }
    }
    for (const auto& [name, updates] : state.counters.updates)
      if (updates_.emplace(name, updates).first->second != updates) agrees_ = false;
    numbers_ = {state.counters.loss_scale, static_cast<double>(state.counters.finite_steps),
                static_cast<double>(state.counters.skipped_steps)};
  }
  /// Whether every byte of every array was on some rank.
  [[nodiscard]] bool complete() const {
    for (const auto& [name, whole] : arrays_)
      for (const auto& byte : whole)
        if (!byte) return false;
    return true;
  }
  friend bool operator==(const WholeState& a, const WholeState& b) {
    return a.agrees_ && b.agrees_ && a.complete() && a.arrays_ == b.arrays_ && a.updates_ == b.updates_ &&
           a.numbers_ == b.numbers_;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::optional<std::byte>>> arrays_;
  std::map<std::string, std::uint64_t> updates_;
  std::array<double, 3> numbers_{};
  bool agrees_ = true;
};

}  // namespace model
