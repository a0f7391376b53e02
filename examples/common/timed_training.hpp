// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <distx/checkpoint.hpp>
#include <distx/comm/any_communicator.hpp>
#include <distx/observe/memory_ledger.hpp>
#include <distx/training.hpp>

namespace examples {

/// The time of one rank's steps by part, in seconds.
struct StepTimes {
  double compute = 0;
  double communication = 0;  ///< exposed: the computation waits for it
  double update = 0;
};

/// Wraps a training with any policies and measures the time of its steps.
///
/// The model is compiled once for all policies.
/// @tparam P the model's parameters: distx::Parameter, or distx::ParameterRef if the model owns its arrays
template <class Weight, class Clock = std::chrono::steady_clock, class P = distx::Parameter<Weight>>
class TimedTraining {
 public:
  using Parameter = P;
  using Scope = std::shared_ptr<void>;

  template <class Training>
  explicit TimedTraining(Training training) : self_(std::make_unique<Model<Training>>(std::move(training))) {}

  /// Starts the clock of a step.
  void begin_step() { last_ = Clock::now(); }

  template <class... Ps>
  [[nodiscard]] Scope unshard(const Ps&... parameters) {
    const Parameter* all[] = {&parameters...};
    charge(times_.compute);
    auto scope = self_->unshard(all);
    charge(times_.communication);
    return scope;
  }
  template <class... Ps>
  void ready(const Ps&... parameters) {
    const Parameter* all[] = {&parameters...};
    charge(times_.compute);
    self_->ready(all);
    charge(times_.communication);
  }
  /// Until the scope ends, gradients are those of one of several micro-batches.
  /// @pre `which.count` is 1, where the training has no policy for several
  [[nodiscard]] Scope micro_batch(const distx::MicroBatchIndex& which) {
    charge(times_.compute);
    auto scope = self_->micro_batch(which);
    charge(times_.communication);
    return scope;
  }
  /// Until the scope ends, weights are used without gradients.
  [[nodiscard]] Scope evaluate() { return self_->evaluate(); }

  void step(const distx::StepOptions& options) {
    charge(times_.compute);
    self_->reduce_gradients();
    charge(times_.communication);
    self_->update_weights(options);
    charge(times_.update);
    self_->gather_weights();
    charge(times_.communication);
  }

  /// Returns the sums over all steps.
  [[nodiscard]] const StepTimes& times() const { return times_; }
  /// Returns the bytes that this rank holds.
  [[nodiscard]] distx::observe::MemoryLedger memory() const { return self_->memory(); }
  /// Saves a checkpoint; the time belongs to no step. Collective.
  void save(const std::filesystem::path& directory, const distx::checkpoint::SaveOptions& options) {
    self_->save(directory, options);
  }
  /// Loads a checkpoint. Collective.
  distx::checkpoint::Loaded load(const std::filesystem::path& folder) { return self_->load(folder); }
  /// Continues on the surviving ranks; returns the number of steps that count. Collective.
  /// @pre the training has the policy Replicate
  std::uint64_t recover(distx::AnyCommunicator<>& comm) { return self_->recover(comm); }
  /// Loads weights alone. Collective.
  void load_weights(const std::filesystem::path& path, const distx::checkpoint::WeightOptions& options) {
    self_->load_weights(path, options);
  }

 private:
  using Parameters = std::span<const Parameter* const>;

  struct Interface {
    virtual ~Interface() = default;
    virtual Scope unshard(Parameters) = 0;
    virtual void ready(Parameters) = 0;
    virtual Scope micro_batch(const distx::MicroBatchIndex&) = 0;
    virtual Scope evaluate() = 0;
    virtual void reduce_gradients() = 0;
    virtual void update_weights(const distx::StepOptions&) = 0;
    virtual void gather_weights() = 0;
    [[nodiscard]] virtual distx::observe::MemoryLedger memory() const = 0;
    virtual void save(const std::filesystem::path&, const distx::checkpoint::SaveOptions&) = 0;
    virtual distx::checkpoint::Loaded load(const std::filesystem::path&) = 0;
    virtual std::uint64_t recover(distx::AnyCommunicator<>&) = 0;
    virtual void load_weights(const std::filesystem::path&, const distx::checkpoint::WeightOptions&) = 0;
  };

  template <class Training>
  struct Model final : Interface {
    explicit Model(Training inner) : training(std::move(inner)) {}

    Scope unshard(Parameters parameters) override {
      std::vector<decltype(training.unshard(*parameters[0]))> scopes;
      for (const auto* parameter : parameters) scopes.push_back(training.unshard(*parameter));
      return std::make_shared<decltype(scopes)>(std::move(scopes));
    }
    void ready(Parameters parameters) override {
      for (const auto* parameter : parameters) training.ready(*parameter);
    }
    Scope micro_batch(const distx::MicroBatchIndex& which) override {
      if constexpr (requires { requires Training::accumulates; }) {
        return std::make_shared<decltype(training.micro_batch(which))>(training.micro_batch(which));
      } else {
        return nullptr;
      }
    }
    Scope evaluate() override { return std::make_shared<decltype(training.evaluate())>(training.evaluate()); }
    void reduce_gradients() override { training.reduce_gradients(); }
    void update_weights(const distx::StepOptions& options) override { training.update_weights(options); }
    void gather_weights() override { training.gather_weights(); }
    [[nodiscard]] distx::observe::MemoryLedger memory() const override { return training.memory(); }
    void save(const std::filesystem::path& directory, const distx::checkpoint::SaveOptions& options) override {
      if constexpr (requires { training.state(); }) distx::checkpoint::save(directory, training, options);
    }
    distx::checkpoint::Loaded load(const std::filesystem::path& folder) override {
      if constexpr (requires { training.state(); })
        return distx::checkpoint::load(folder, training);
      else
        return {};
    }
    std::uint64_t recover([[maybe_unused]] distx::AnyCommunicator<>& comm) override {
      if constexpr (requires { requires Training::replicates; }) return training.recover(comm);
      return 0;
    }
    void load_weights(const std::filesystem::path& path, const distx::checkpoint::WeightOptions& options) override {
      if constexpr (requires { training.state(); }) distx::checkpoint::load_weights(path, training, options);
    }

    Training training;
  };

  void charge(double& account) {
    const auto now = Clock::now();
    account += std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

  std::unique_ptr<Interface> self_;
  typename Clock::time_point last_ = Clock::now();
  StepTimes times_;
};

}  // namespace examples
