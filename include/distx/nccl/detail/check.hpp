// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include <string>
#include <string_view>

#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"

// NCCL's return codes become distx errors here.
namespace distx::inline DISTX_ABI::nccl::detail {

/// ncclTimeout, which only newer headers name.
inline constexpr auto timeout_code = static_cast<ncclResult_t>(8);

/// "timed out after 600 s waiting for other ranks"
[[nodiscard]] inline std::string timed_out_after(const Timeout& limit) {
  return "timed out after " + limit.to_string() + " waiting for other ranks";
}

/// NCCL's text for a code, and the last message that it logged in this process, which may belong to an earlier call.
[[nodiscard]] inline std::string words_of(ncclResult_t code, ncclComm_t comm = nullptr) {
  std::string words = std::string(ncclGetErrorString(code)) + " (code " + std::to_string(static_cast<int>(code)) + ")";
  const char* const last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') words.append(", last error: ").append(last);
  return words;
}

/// What to do, where NCCL's text alone does not say so.
[[nodiscard]] inline std::string advice_for(const std::string& words) {
  if (words.find("Duplicate GPU") == std::string::npos) return "";
  return "two ranks use the same GPU, which NCCL refuses; call pick_device(connector) before making the communicator, "
         "and start at most one rank per GPU of a host: ";
}

/// @throws RankFailure or TimeoutError where NCCL reports one, else BackendError
[[noreturn]] inline void fail(ncclResult_t code, std::string_view routine, const ErrorContext& context,
                              ncclComm_t comm = nullptr) {
  const std::string words = words_of(code, comm);
  const std::string message = advice_for(words) + std::string(routine) + ": " + words;
  if (code == ncclRemoteError) throw RankFailure(message, -1, nullptr, context);
  if (code == timeout_code) throw TimeoutError(message, context, static_cast<int>(code));
  throw BackendError(message, context, static_cast<int>(code));
}

/// A call that is still in progress is not an error.
inline void check(ncclResult_t code, std::string_view routine, const ErrorContext& context, ncclComm_t comm = nullptr) {
  if (code != ncclSuccess && code != ncclInProgress) [[unlikely]]
    fail(code, routine, context, comm);
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
