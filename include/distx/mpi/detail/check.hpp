// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include <string>
#include <string_view>

#include "distx/core/error.hpp"

// Converts MPI's return codes to distx errors. Boost.MPI's check asserts before it throws, so calls that can fail use
// MPI's C interface.
namespace distx::inline DISTX_ABI::detail::mpi {

/// Returns MPI's description of an error code.
[[nodiscard]] inline std::string words_of(int code) {
  char words[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) return "unknown error";
  return std::string(words, static_cast<std::size_t>(length));
}

/// Throws MismatchError for a truncated message, otherwise BackendError with MPI's code and description.
[[noreturn]] inline void fail(int code, std::string_view routine, const ErrorContext& context) {
  int kind = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &kind);
  const std::string words = std::string(routine) + ": " + words_of(code);
  if (kind == MPI_ERR_TRUNCATE)
    throw MismatchError("another rank sends more elements than this rank receives (" + words + ")", context, code);
  throw BackendError(words + " (code " + std::to_string(code) + ")", context, code);
}

inline void check(int code, std::string_view routine, const ErrorContext& context) {
  if (code != MPI_SUCCESS) [[unlikely]]
    fail(code, routine, context);
}

/// Returns whether a request is complete, without completing it.
[[nodiscard]] inline bool is_complete(MPI_Request request) noexcept {
  int complete = 0;
  return MPI_Request_get_status(request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete != 0;
}
/// Completes a request if it can be; returns whether it has.
[[nodiscard]] inline bool try_complete(MPI_Request& request, const char* routine, const ErrorContext& context) {
  int complete = 0;
  check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), routine, context);
  return complete != 0;
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
