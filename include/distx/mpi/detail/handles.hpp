// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include <boost/mpi/environment.hpp>

#include <span>
#include <string>
#include <string_view>

#include "distx/core/error.hpp"
#include "distx/core/unique_handle.hpp"

// Owns MPI's handles, and converts its return codes to distx errors. Boost.MPI's check asserts before it throws, so
// calls that can fail use MPI's C interface.
namespace distx::inline DISTX_ABI::detail::mpi {

/// Returns whether MPI is initialized and not finalized; handles can be freed only then.
[[nodiscard]] inline bool is_up() noexcept {
  return boost::mpi::environment::initialized() && !boost::mpi::environment::finalized();
}

/// Returns whether MPI was initialized with MPI_THREAD_MULTIPLE.
[[nodiscard]] inline bool serves_threads() {
  return boost::mpi::environment::thread_level() == boost::mpi::threading::level::multiple;
}

/// The traits of a handle that `Free` frees while MPI is up. `Null` returns the null handle, which is not a constant.
template <auto Null, auto Free>
struct mpi_handle_traits {
  using handle_type = decltype(Null());
  static handle_type null() noexcept { return Null(); }
  static void close(handle_type handle) noexcept {
    if (is_up()) Free(&handle);
  }
};

inline MPI_Comm no_comm() noexcept { return MPI_COMM_NULL; }
inline MPI_Datatype no_datatype() noexcept { return MPI_DATATYPE_NULL; }

/// Frees the local side only: in Open MPI and MPICH, MPI_Comm_free does not communicate.
using mpi_unique_comm = unique_handle<mpi_handle_traits<no_comm, MPI_Comm_free>>;
using unique_datatype = unique_handle<mpi_handle_traits<no_datatype, MPI_Type_free>>;

/// Throws MismatchError for a truncated message, otherwise BackendError with MPI's code and description.
[[noreturn]] inline void fail(int code, std::string_view routine, const ErrorContext& context) {
  int kind = MPI_ERR_UNKNOWN, length = 0;
  char description[MPI_MAX_ERROR_STRING] = "unknown error";
  MPI_Error_class(code, &kind);
  MPI_Error_string(code, description, &length);
  const std::string words = std::string(routine) + ": " + description;
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
/// Completes requests if all can be; returns whether they have, after an error `if_failed`.
[[nodiscard]] inline bool are_complete(std::span<MPI_Request> requests, bool if_failed) noexcept {
  int complete = 0;
  const int code = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &complete, MPI_STATUSES_IGNORE);
  return code == MPI_SUCCESS ? complete != 0 : if_failed;
}
/// Completes a request if it can be; returns whether it has.
[[nodiscard]] inline bool try_complete(MPI_Request& request, const char* routine, const ErrorContext& context) {
  int complete = 0;
  check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), routine, context);
  return complete != 0;
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
