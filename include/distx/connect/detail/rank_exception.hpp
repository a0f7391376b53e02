// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <string>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The exception with which a rank ended.
struct RankException {
  std::string message;
  bool is_consequence = false;  ///< of another rank's failure

  /// Returns the exception that is being handled.
  [[nodiscard]] static RankException current() {
    try {
      throw;
    } catch (const std::exception& error) {
      const bool is_consequence =
          dynamic_cast<const RevokedError*>(&error) != nullptr || dynamic_cast<const RankFailure*>(&error) != nullptr;
      return {error.what(), is_consequence};
    } catch (...) {
      return {unknown_exception};
    }
  }
};

}  // namespace distx::inline DISTX_ABI::detail
