// expect: the third argument is not an optimizer; it must satisfy exactly one of ElementwiseOptimizer, NormOptimizer and MatrixOptimizer
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

/// Looks at the whole parameter as it likes, so that nobody can say how to cut it.
struct Opaque {
  static constexpr std::size_t states = 1;
  void update(std::vector<float>& weight, const std::vector<float>& gradient, std::vector<float>& state) const;
};

/// Updates element by element, and by norms: which is meant?
struct Two : distx::SGD {
  template <class T, class V>
  static constexpr V direction(const Coefficients<T>&, V, V gradient, V&) {
    return gradient;
  }
  static double trust(double, double) { return 1; }
  template <class T, class V>
  static constexpr void apply(const Coefficients<T>&, V& weight, V direction, V) {
    weight -= direction;
  }
};
static_assert(distx::ElementwiseOptimizer<Two> && distx::NormOptimizer<Two> && !distx::ShardableOptimizer<Two>);

void train(distx::ThreadCommunicator& comm, const std::vector<distx::Parameter<float>>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, Opaque{});
#endif
  distx::DataParallel<distx::ZeRO<3>> other(comm, parameters, distx::LAMB{});
  distx::DataParallel<distx::ZeRO<3>> third(comm, parameters, distx::Mixed{distx::Muon{}, distx::AdamW{}});
}
