// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include <string>
#include <string_view>

#include "distx/core/error.hpp"

// NCCL's return codes become distx errors here.
namespace distx::nccl {

/// NCCL's words for a code, and what it said last of its own accord, which may belong to an earlier call.
[[nodiscard]] inline std::string words_of(ncclResult_t code, ncclComm_t comm = nullptr) {
  std::string words = std::string(ncclGetErrorString(code)) + " (code " + std::to_string(static_cast<int>(code)) + ")";
  const char* const last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') words.append(", last error: ").append(last);
  return words;
}

/// What to do, where NCCL's words alone do not say so.
[[nodiscard]] inline std::string advice_for(const std::string& words) {
  if (words.find("Duplicate GPU") == std::string::npos) return "";
  return "two ranks use the same GPU, which NCCL refuses: call pick_device(connector) before the communicator is made, "
         "and start at most as many ranks on a machine as it has GPUs; ";
}

/// @throws RankFailure where NCCL has lost another rank, else Error; with NCCL's code and words
[[noreturn]] inline void fail(ncclResult_t code, std::string_view routine, const ErrorContext& context,
                              ncclComm_t comm = nullptr) {
  const std::string words = words_of(code, comm);
  const std::string sentence = advice_for(words) + std::string(routine) + ": " + words;
  if (code == ncclRemoteError) throw RankFailure(sentence, -1, nullptr, context);
  throw Error(sentence, context, static_cast<int>(code));
}

/// Calls that are still in progress are no errors.
inline void check(ncclResult_t code, std::string_view routine, const ErrorContext& context, ncclComm_t comm = nullptr) {
  if (code != ncclSuccess && code != ncclInProgress) [[unlikely]]
    fail(code, routine, context, comm);
}

}  // namespace distx::nccl
