// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The ranges that a profiler sees, by a tool for NVTX that is linked into this program.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>

// A tool that is linked in defines this pointer, which NVTX's headers call.
extern "C" int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(std::uint32_t));  // NOLINT: NVTX's name
#define NVTX_STATIC_INJECTION_IMPL
#include <nvtx3/nvToolsExt.h>

#include "distx/distx.hpp"
#include "distx/observe/flight_recorder.hpp"
#include "nccl/ranks.hpp"

using distx::Cuda;

namespace {

/// The ranges that this thread has begun in distx's domain.
struct Ranges {
  std::set<std::string> names;
  int open = 0;
};
thread_local Ranges* ranges = nullptr;
int some_domain;

nvtxDomainHandle_t create(const char* name) {
  return std::string(name) == "distx" ? reinterpret_cast<nvtxDomainHandle_t>(&some_domain) : nullptr;
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  if (ranges == nullptr || domain == nullptr) return 0;
  ranges->names.insert(attributes->message.ascii);
  return ranges->open++;
}
int pop(nvtxDomainHandle_t domain) {
  if (ranges == nullptr || domain == nullptr) return 0;
  return --ranges->open;
}

template <class F>
void set(NvtxFunctionTable table, std::size_t number, F* function) {
  *table[number] = reinterpret_cast<NvtxFunctionPointer>(function);
}
int attach(NvtxGetExportTableFunc_t get) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, nullptr) == 0) return 0;
  set(table, NVTX_CBID_CORE2_DomainCreateA, create);
  set(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  set(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  return 1;
}

}  // namespace

int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(std::uint32_t)) = attach;

TEST_CASE("a profiler sees the phases of a step, its buckets and its collectives") {
  nccl_test::on_ranks(2, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    const distx::CudaStream stream;
    std::vector<distx::Parameter<float, Cuda>> parameters;
    for (const char* name : {"first", "second"}) parameters.emplace_back(name, 500);
    distx::DataParallel<distx::ZeRO<2>, distx::On<Cuda>> training(comm, parameters, distx::AdamW{},
                                                                  {.bucket_bytes = 2000});
    Ranges seen;
    ranges = &seen;
    for (auto& parameter : parameters) static_cast<void>(training.gradient(parameter, stream));
    training.ready_after(stream, parameters);
    training.step({.learning_rate = 0.1}, stream);
    {
      const distx::flight::Label label({.phase = "evaluation"});
      distx::all_reduce(comm, parameters[0].gradient(), distx::sum);
    }
    ranges = nullptr;
    CHECK(seen.open == 0);
    for (const char* name : {"ready", "step", "reduce, bucket 0: second", "reduce, bucket 1: first", "evaluation",
                             "reduce_scatter", "all_gather", "all_reduce"}) {
      CAPTURE(name);
      CHECK(seen.names.contains(name));
    }
    stream.synchronize();
  });
}
