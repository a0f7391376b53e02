// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <pmix.h>

#include <algorithm>
#include <string>

#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail::pmix {

/// Throws the error for a status of PMIx.
[[noreturn]] inline void raise(const char* call, pmix_status_t status, const ErrorContext& context) {
  const std::string message = std::string(call) + " failed: " + PMIx_Error_string(status);
  if (status == PMIX_ERR_TIMEOUT) throw TimeoutError(message + ": not all ranks have joined", context, status);
  throw ConnectError(message, context, status);
}

/// The connection of this process to the PMIx server of its launcher, until it is destroyed.
class PmixSession {
 public:
  /// @throws ConnectError if no launcher serves this process
  explicit PmixSession(const ErrorContext& context) : context_(context) {
    if (const auto status = PMIx_Init(&self_, nullptr, 0); status != PMIX_SUCCESS) raise("PMIx_Init", status, context);
  }
  PmixSession(const PmixSession&) = delete;
  PmixSession& operator=(const PmixSession&) = delete;
  ~PmixSession() { PMIx_Finalize(nullptr, 0); }

  [[nodiscard]] int rank() const noexcept { return static_cast<int>(self_.rank); }
  [[nodiscard]] int size() const { return number(PMIX_JOB_SIZE); }
  /// Returns the number of ranks on this host.
  [[nodiscard]] int local_size() const { return number(PMIX_LOCAL_SIZE); }

  /// Publishes a text of this rank; the others read it after the next fence.
  void put(const char* key, const std::string& text) const {
    std::string copy = text;
    pmix_value_t value{};
    value.type = PMIX_STRING;
    value.data.string = copy.data();
    auto status = PMIx_Put(PMIX_GLOBAL, key, &value);
    if (status == PMIX_SUCCESS) status = PMIx_Commit();
    if (status != PMIX_SUCCESS) raise("PMIx_Put", status, context_);
  }
  /// Blocks until all ranks have entered it, up to the deadline. Collective.
  /// @throws TimeoutError
  void fence(const Timeout& deadline) const {
    const pmix_proc_t all = process(PMIX_RANK_WILDCARD);
    bool collect = true;
    // In whole seconds; 0 stands for no limit.
    const double limit = std::chrono::duration<double>(deadline.limit()).count();
    int seconds = deadline.unlimited() ? 0 : static_cast<int>(std::clamp(limit, 1.0, 1e9));
    pmix_info_t info[2];
    PMIX_INFO_LOAD(&info[0], PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    if (const auto status = PMIx_Fence(&all, 1, info, 2); status != PMIX_SUCCESS) raise("PMIx_Fence", status, context_);
  }
  /// Returns the text that a rank has published before the last fence.
  [[nodiscard]] std::string get(const char* key, int rank) const {
    const pmix_proc_t owner = process(static_cast<pmix_rank_t>(rank));
    pmix_value_t* value = nullptr;
    if (const auto status = PMIx_Get(&owner, key, nullptr, 0, &value); status != PMIX_SUCCESS)
      raise("PMIx_Get", status, context_);
    std::string text = value->type == PMIX_STRING && value->data.string != nullptr ? value->data.string : "";
    PMIX_VALUE_RELEASE(value);
    return text;
  }

 private:
  [[nodiscard]] pmix_proc_t process(pmix_rank_t rank) const noexcept {
    pmix_proc_t process = self_;
    process.rank = rank;
    return process;
  }
  /// Returns a number of the job.
  [[nodiscard]] int number(const char* key) const {
    const pmix_proc_t job = process(PMIX_RANK_WILDCARD);
    pmix_value_t* value = nullptr;
    if (const auto status = PMIx_Get(&job, key, nullptr, 0, &value); status != PMIX_SUCCESS)
      raise("PMIx_Get", status, context_);
    const auto result = value->type == PMIX_UINT32 ? value->data.uint32 : value->data.uint16;
    PMIX_VALUE_RELEASE(value);
    return static_cast<int>(result);
  }

  pmix_proc_t self_{};
  ErrorContext context_;
};

}  // namespace distx::inline DISTX_ABI::detail::pmix
