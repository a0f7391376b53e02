// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "distx/comm/memory.hpp"
#include "distx/nccl/detail/backend.hpp"

// Memory that NCCL moves without a copy: allocated by NCCL, with a window of each communicator on it.
namespace distx::inline DISTX_ABI::nccl::detail {

/// Owns memory of ncclMemAlloc and its windows, and a share of the communicator. @pre HasWindows<Comm>
template <class Comm>
class WindowedMemory {
 public:
  /// Collective; `bytes` is the same on every rank.
  WindowedMemory(std::shared_ptr<NcclBackend::State> state, std::size_t bytes, const ErrorContext& context)
      : state_(std::move(state)) {
    void* const memory = allocated(bytes, context);
    memory_ = unique_memory<Comm>::from_native_handle(memory);
    const CudaStreamRef stream = state_->backend.comms.blocking.stream;
    cuda::detail::check(cudaMemsetAsync(memory, 0, bytes, stream.native_handle()), "cudaMemsetAsync", context);
    state_->backend.wait([&] { return stream.done(); }, context);
    for (std::size_t i = 0; i < 2; ++i) {
      CommStream& on = comm_stream(i);
      const auto use = state_->backend.comms.use(on, context);
      const Comm comm = on.comm();
      auto slot = std::make_unique<ncclWindow_vidmem*>(nullptr);
      try {
        on.complete(ncclCommWindowRegister(comm, memory, bytes, slot.get(), window_flags), "ncclCommWindowRegister",
                    context);
        on.settle_early_success("ncclCommWindowRegister", context);
      } catch (...) {
        // NCCL may still write there, and is being aborted by another thread.
        static_cast<void>(slot.release());
        static_cast<void>(windows_[0].release());
        static_cast<void>(memory_.release());
        throw;
      }
      // A machine without windows gives none; the memory is usable all the same.
      if (*slot != nullptr) windows_[i] = unique_window<Comm>::from_native_handle({comm, *slot});
    }
  }
  WindowedMemory(const WindowedMemory&) = delete;
  WindowedMemory& operator=(const WindowedMemory&) = delete;
  ~WindowedMemory() {
    try {  // unlike cudaFree, ncclMemFree does not wait for kernels that use the memory
      const cuda::DeviceGuard guard(state_->backend.device);
      CudaStreamRef::synchronize_all();
    } catch (const Error&) {  // a GPU that has failed does nothing more
    }
    // Only now: aborting a call that never completes needs the lock.
    const auto lock = state_->backend.comms.locked();
    for (std::size_t i = 0; i < 2; ++i) {
      if (comm_stream(i).comm() == nullptr) static_cast<void>(windows_[i].release());  // freed with its communicator
      windows_[i].reset();
    }
  }

  [[nodiscard]] void* data() const noexcept { return memory_.native_handle(); }

 private:
  [[nodiscard]] static void* allocated(std::size_t bytes, const ErrorContext& context) {
    void* memory = nullptr;
    ncclResult_t code = ncclMemAlloc(&memory, bytes);
    if (code == ncclUnhandledCudaError) {
      cuda::detail::reclaim_memory();
      code = ncclMemAlloc(&memory, bytes);
    }
    if (code == ncclUnhandledCudaError)
      throw MemoryError("no GPU memory for " + std::to_string(bytes) + " bytes: ncclMemAlloc: " + words_of(code),
                        context, static_cast<int>(code));
    check(code, "ncclMemAlloc", context);
    return memory;
  }
  [[nodiscard]] CommStream& comm_stream(std::size_t number) noexcept {
    return number == 0 ? state_->backend.comms.blocking : state_->backend.comms.started;
  }

  std::shared_ptr<NcclBackend::State> state_;
  unique_memory<Comm> memory_;
  std::array<unique_window<Comm>, 2> windows_;
};

/// Allocates zeros. Collective.
/// @throws MismatchError if the ranks ask for different sizes; MemoryError
template <class Comm = ncclComm_t>
[[nodiscard]] CommunicatorMemory<std::byte, Cuda> allocate(const std::shared_ptr<NcclBackend::State>& state,
                                                           std::size_t size, std::size_t element_bytes,
                                                           const std::source_location& location) {
  const calls::RankOf& self = state->backend.self();
  const ErrorContext context{
      .operation = "allocate", .backend = self.backend, .rank = self.rank, .size = self.size, .location = location};
  struct AllocationRequest {
    std::uint64_t size, bytes;
  };
  const auto requests = state->backend.gathered(AllocationRequest{size, element_bytes}, "allocate", location);
  return state->guarded([&]() -> CommunicatorMemory<std::byte, Cuda> {
    for (std::size_t rank = 0; rank < requests.size(); ++rank)
      if (requests[rank].size != size || requests[rank].bytes != element_bytes)
        throw MismatchError("rank " + std::to_string(rank) + " asks for " + std::to_string(requests[rank].size) +
                                " elements of " + std::to_string(requests[rank].bytes) + " bytes, this rank for " +
                                std::to_string(size) + " of " + std::to_string(element_bytes),
                            context);
    if (size > std::numeric_limits<std::ptrdiff_t>::max() / element_bytes)
      throw MemoryError(
          "no GPU memory for " + std::to_string(size) + " elements of " + std::to_string(element_bytes) + " bytes",
          context);
    if (size == 0) return {};
    const cuda::DeviceGuard guard(state->backend.device);
    if constexpr (HasWindows<Comm>) {
      auto owner = std::make_shared<WindowedMemory<Comm>>(state, size * element_bytes, context);
      return {Span<std::byte, Cuda>(static_cast<std::byte*>(owner->data()), size * element_bytes), owner};
    } else {
      auto owner = std::make_shared<Buffer<std::byte, Cuda>>(size * element_bytes);
      return {owner->span(), owner};
    }
  });
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
