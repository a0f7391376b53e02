// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "conformance/suite.hpp"

#include "conformance/backend.hpp"

namespace {

struct Erased {
  static bool rank_order() { return conformance::backend().rank_order; }
  static bool one_process() { return conformance::backend().one_process; }
  static bool tags() { return conformance::backend().tags; }
  static bool compares() { return conformance::backend().compares; }
  static bool threads() { return conformance::backend().threads; }
  static bool keeps_nan() { return conformance::backend().keeps_nan; }
  static bool forks() { return conformance::backend().forks; }
  template <class Body>
  static void run(Body body) {
    conformance::backend().run([&](const conformance::Backend::Make& make) { body(make); });
  }
};

}  // namespace

DISTX_CONFORMANCE(Erased);
