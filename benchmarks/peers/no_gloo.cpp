// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// In place of gloo.cpp where Gloo is not installed.
#include "peers/peers.hpp"

namespace peers {

std::unique_ptr<timing::Subject> make_gloo(timing::Memory, std::string& missing) {
  missing = "this program was built without Gloo (install libgloo-dev)";
  return nullptr;
}

}  // namespace peers
