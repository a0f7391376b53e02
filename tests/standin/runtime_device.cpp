// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA runtime's functions on devices.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "standin/device.hpp"
#include "standin/memory.hpp"
#include "standin/runtime.hpp"
#include "standin/standin.hpp"

namespace standin {

namespace {

std::atomic<int>& count() {
  static auto* devices = [] {
    const char* text = std::getenv("DISTX_STANDIN_DEVICES");
    return new std::atomic<int>(text == nullptr ? 8 : std::clamp(std::atoi(text), 0, static_cast<int>(most_devices)));
  }();
  return *devices;
}

/// The number in a GPU's UUID.
std::atomic<int>& identity(int device) {
  static auto* identities = [] {
    auto* numbers = new std::array<std::atomic<int>, most_devices>;
    for (std::size_t i = 0; i < most_devices; ++i) (*numbers)[i] = static_cast<int>(i);
    return numbers;
  }();
  return (*identities)[static_cast<std::size_t>(device)];
}

std::atomic<int>& capability(int device) {
  static auto* capabilities = [] {
    auto* numbers = new std::array<std::atomic<int>, most_devices>;
    for (auto& number : *numbers) number = 90;
    return numbers;
  }();
  return (*capabilities)[static_cast<std::size_t>(device)];
}

thread_local int current = 0;

std::array<std::atomic<bool>, most_devices> contexts{};

constexpr std::size_t shared_bytes = 48 << 10;

}  // namespace

void devices(int number) { count() = std::clamp(number, 0, static_cast<int>(most_devices)); }
void compute_capability(int device, int value) { capability(device) = value; }
int capability_of(int device) { return capability(device); }
void same_uuid(int device, int other) { identity(device) = identity(other).load(); }
bool same_device(int device, int other) { return identity(device) == identity(other); }

int device_count() { return count(); }
int current_device() {
  require(count() > 0, cudaErrorNoDevice);
  return current;
}
void check_device(int device) {
  require(count() > 0, cudaErrorNoDevice);
  require(device >= 0 && device < count(), cudaErrorInvalidDevice);
}

void use_context(const char* function) noexcept {
  for (const std::string_view asks : {"cudaGetDevice", "cudaGetDeviceCount", "cudaGetDeviceProperties",
                                      "cudaDeviceGetAttribute", "cudaDeviceCanAccessPeer"})
    if (function == asks) return;
  contexts[static_cast<std::size_t>(current)] = true;
}
bool has_context(int device) { return contexts[static_cast<std::size_t>(device)]; }
void forget_contexts() {
  for (auto& context : contexts) context = false;
}

OnDevice::OnDevice(int device) : before_(std::exchange(current, device)) {}
OnDevice::~OnDevice() { current = before_; }

}  // namespace standin

using namespace standin;

cudaError_t cudaGetDeviceCount(int* result) {
  return runtime_called("cudaGetDeviceCount", [&] {
    require(result != nullptr, cudaErrorInvalidValue);
    require(device_count() > 0, cudaErrorNoDevice);
    *result = device_count();
  });
}

cudaError_t cudaSetDevice(int device) {
  return runtime_called("cudaSetDevice", [&] {
    check_device(device);
    current = device;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return runtime_called("cudaGetDevice", [&] {
    require(device != nullptr, cudaErrorInvalidValue);
    *device = current_device();
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return runtime_called("cudaGetDeviceProperties", [&] {
    require(properties != nullptr, cudaErrorInvalidValue);
    check_device(device);
    *properties = cudaDeviceProp{};
    std::snprintf(properties->name, sizeof properties->name, "stand-in %d", device);
    std::memset(properties->uuid.bytes, 0x5D, sizeof properties->uuid.bytes);
    properties->uuid.bytes[15] = static_cast<char>(identity(device).load());
    properties->totalGlobalMem = total_bytes();
    properties->sharedMemPerBlock = shared_bytes;
    properties->regsPerBlock = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->major = capability(device) / 10;
    properties->minor = capability(device) % 10;
    properties->multiProcessorCount = 4;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->concurrentKernels = 1;
    properties->unifiedAddressing = 1;
    properties->canMapHostMemory = 1;
    properties->asyncEngineCount = 2;
    properties->streamPrioritiesSupported = 1;
    properties->memoryPoolsSupported = 1;
    properties->pciBusID = device + 1;
    properties->l2CacheSize = 1 << 20;
    properties->memoryBusWidth = 64;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return runtime_called("cudaDeviceGetAttribute", [&] {
    require(value != nullptr, cudaErrorInvalidValue);
    check_device(device);
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return;
      case cudaDevAttrMaxBlockDimX:
        *value = 1024;
        return;
      case cudaDevAttrMaxGridDimX:
        *value = 2147483647;
        return;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = shared_bytes;
        return;
      case cudaDevAttrWarpSize:
        *value = 32;
        return;
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2048;
        return;
      case cudaDevAttrMaxBlocksPerMultiprocessor:
        *value = 32;
        return;
      case cudaDevAttrConcurrentKernels:
        *value = 1;
        return;
      case cudaDevAttrUnifiedAddressing:
        *value = 1;
        return;
      case cudaDevAttrCanMapHostMemory:
        *value = 1;
        return;
      case cudaDevAttrComputeCapabilityMajor:
        *value = capability(device) / 10;
        return;
      case cudaDevAttrComputeCapabilityMinor:
        *value = capability(device) % 10;
        return;
      case cudaDevAttrStreamPrioritiesSupported:
        *value = 1;
        return;
      case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        return;
      case cudaDevAttrPciBusId:
        *value = device + 1;
        return;
      case cudaDevAttrPciDeviceId:
        *value = 0;
        return;
      case cudaDevAttrPciDomainId:
        *value = 0;
        return;
      case cudaDevAttrManagedMemory:
        *value = 0;
        return;
      case cudaDevAttrCooperativeLaunch:
        *value = 0;
        return;
      case cudaDevAttrL2CacheSize:
        *value = 1 << 20;
        return;
      case cudaDevAttrGlobalMemoryBusWidth:
        *value = 64;
        return;
      case cudaDevAttrPageableMemoryAccess:
        *value = 0;
        return;
      default:
        fail(cudaErrorNotSupported);  // not known here, which a test should see
    }
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return runtime_called("cudaDeviceCanAccessPeer", [&] {
    require(can != nullptr, cudaErrorInvalidValue);
    check_device(device);
    check_device(peer);
    *can = device != peer ? 1 : 0;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return runtime_called("cudaDeviceSynchronize", [] {
    const int device = current_device();
    require(!capturing_on(device), cudaErrorStreamCaptureUnsupported);
    wait_for_device(device);
  });
}
