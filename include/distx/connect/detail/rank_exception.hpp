// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <string>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The exception with which a rank ended.
struct RankException {
  enum class Kind : char { cause, rank_failure, revoked };

  std::string message;
  Kind kind = Kind::cause;

  /// Returns the exception that is being handled.
  [[nodiscard]] static RankException current() {
    try {
      throw;
    } catch (const std::exception& error) {
      return {error.what(), dynamic_cast<const RevokedError*>(&error) != nullptr  ? Kind::revoked
                            : dynamic_cast<const RankFailure*>(&error) != nullptr ? Kind::rank_failure
                                                                                  : Kind::cause};
    } catch (...) {
      return {unknown_exception};
    }
  }
};

}  // namespace distx::inline DISTX_ABI::detail
