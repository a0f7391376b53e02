// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdio>

#include "distx/observe/flight_recorder.hpp"

// NVTX ranges of host threads, for profilers. Without a tool that listens, a range is the test of a pointer.
#if __has_include(<nvtx3/nvToolsExt.h>)  // some packages of the CUDA Toolkit lack it
#include <nvtx3/nvToolsExt.h>

namespace distx::inline DISTX_ABI::nccl::detail {

/// Returns distx's domain, which is null if no tool listens.
[[nodiscard]] inline nvtxDomainHandle_t profiler_domain() noexcept {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("distx");
  return domain;
}
inline void begin_profiler_range(const char* name) noexcept {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;  // the tool copies it
  static_cast<void>(nvtxDomainRangePushEx(profiler_domain(), &attributes));
}
inline void end_profiler_range() noexcept { static_cast<void>(nvtxDomainRangePop(profiler_domain())); }

}  // namespace distx::inline DISTX_ABI::nccl::detail
#else
namespace distx::inline DISTX_ABI::nccl::detail {

[[nodiscard]] constexpr std::nullptr_t profiler_domain() noexcept { return nullptr; }
inline void begin_profiler_range(const char*) noexcept {}
inline void end_profiler_range() noexcept {}

}  // namespace distx::inline DISTX_ABI::nccl::detail
#endif

namespace distx::inline DISTX_ABI::nccl::detail {

/// Shows the labels of trainings and of users: "reduce, bucket 2: head.weight".
inline void show_label(const distx::detail::FlightContext* label) noexcept {
  if (label == nullptr) return end_profiler_range();
  if (label->bucket < 0) return begin_profiler_range(label->phase);
  char name[128];
  std::snprintf(name, sizeof name, "%s, bucket %lld: %s", label->phase, static_cast<long long>(label->bucket),
                label->parameter);
  begin_profiler_range(name);
}

/// The range of a call.
class ProfilerRange {
 public:
  explicit ProfilerRange(std::string_view literal) noexcept {
    if (profiler_domain() != nullptr) begin_profiler_range(literal.data());
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  ~ProfilerRange() {
    if (profiler_domain() != nullptr) end_profiler_range();
  }
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
