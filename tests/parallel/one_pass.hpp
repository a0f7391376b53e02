// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/comm/decorators/decorator.hpp>

#include "toy.hpp"

// A model for steps that update weights while gradients are reduced, and a communicator that counts such reductions.
namespace one_pass {

struct Counts {
  int asked = 0;     // reductions with a consumer
  int consumed = 0;  // of these, those whose consumer was called
};

/// Counts the reductions that pass operands to a consumer; if not `passes`, behaves as a communicator that cannot.
template <distx::Communicator C>
class Watched : public distx::detail::Decorator<C> {
  using base = distx::detail::Decorator<C>;

  class Counter final : public distx::detail::OperandConsumer {
   public:
    explicit Counter(distx::detail::OperandConsumer& inner) : inner_(inner) {}
    void consume(std::size_t begin, std::span<const void* const> operands, std::size_t count) override {
      called = true;
      inner_.consume(begin, operands, count);
    }
    bool called = false;

   private:
    distx::detail::OperandConsumer& inner_;
  };

 public:
  Watched(C inner, bool passes, Counts& counts) : base(std::move(inner)), passes_(passes), counts_(&counts) {}

  [[nodiscard]] bool passes_operands() const { return passes_ && base::passes_operands(); }
  using Call = distx::calls::Call<typename C::space>;
  void execute(const Call& call) {
    if (call.consumer == nullptr) return this->inner().execute(call);
    Counter counter(*call.consumer);
    Call counted = call;
    counted.consumer = &counter;
    ++counts_->asked;
    this->inner().execute(counted);
    counts_->consumed += counter.called ? 1 : 0;
  }
  [[nodiscard]] auto start(const Call& call, typename C::space::stream after = {}) {
    return this->inner().start(call, after);
  }
  [[nodiscard]] Watched share() const { return Watched(this->inner().share(), passes_, *counts_); }
  [[nodiscard]] Watched split(int color, int key, std::source_location location = std::source_location::current()) {
    return Watched(this->split_inner(color, key, location), passes_, *counts_);
  }

 private:
  bool passes_;
  Counts* counts_;
};

/// Parameters with pieces that no lane divides, each with the gradient of a sample.
template <class T>
struct Model {
  static constexpr std::size_t sizes[] = {20001, 17, 9000, 1, 30011};
  std::vector<distx::Parameter<T>> parameters;

  Model() {
    for (std::size_t p = 0; p < std::size(sizes); ++p)
      parameters.emplace_back("layer" + std::to_string(p), sizes[p], [p](distx::Span<T> values) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = T(static_cast<float>(toy::first_weight(p, i)));
      });
  }
  /// @param unused  whether the second parameter has no gradient
  /// @param forward  whether gradients become ready in the order of the parameters, not in the reverse order
  template <class Training>
  void pass(Training& training, std::size_t sample, bool unused = false, bool forward = false) {
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const std::size_t p = forward ? k : parameters.size() - 1 - k;
      if (unused && p == 1) continue;
      auto& parameter = parameters[p];
      const auto gradient = training.gradient(parameter);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = T(static_cast<float>(gradient[i]) + static_cast<float>(toy::target(p, i, sample)));
      training.ready(parameter);
    }
  }
  /// The bytes of all weights.
  template <class Training>
  [[nodiscard]] std::vector<std::byte> weights(Training& training) {
    std::vector<std::byte> all;
    training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
      const auto* const bytes = static_cast<const std::byte*>(values.data());
      all.insert(all.end(), bytes, bytes + values.size_bytes());
    });
    return all;
  }
};

}  // namespace one_pass
