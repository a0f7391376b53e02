// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "distx/comm/memory.hpp"
#include "distx/nccl/detail/member.hpp"

// Memory that NCCL moves without a copy: made by NCCL and known to the communicators, each of which has a window on it.
namespace distx::nccl {

/// Memory of ncclMemAlloc with its windows; keeps the communicator. @pre HasWindows<Comm>
template <class Comm>
class WindowedMemory {
 public:
  /// Collective, with as many bytes on every rank.
  WindowedMemory(std::shared_ptr<Member> member, std::size_t bytes, const ErrorContext& context)
      : member_(std::move(member)) {
    void* const memory = allocated(bytes, context);
    memory_ = unique_memory<Comm>::from_native_handle(memory);
    cuda::detail::check(cudaMemsetAsync(memory, 0, bytes, member_->blocking.stream.native_handle()), "cudaMemsetAsync",
                        context);
    member_->wait([&] { return member_->blocking.stream.done(); }, context);
    const auto lock = member_->locked();
    member_->ready(context);
    for (std::size_t i = 0; i < 2; ++i) {
      const Comm comm = channel(i).comm();
      auto slot = std::make_unique<ncclWindow_vidmem*>(nullptr);
      try {
        channel(i).complete(ncclCommWindowRegister(comm, memory, bytes, slot.get(), window_flags),
                            "ncclCommWindowRegister", context);
        channel(i).settle("ncclCommWindowRegister", context);  // success is said while it still goes on
      } catch (...) {
        // NCCL may still write there, and is being aborted by another thread: what it knows of is left to it.
        static_cast<void>(slot.release());
        static_cast<void>(windows_[0].release());
        static_cast<void>(memory_.release());
        throw;
      }
      // Where the machine has no windows there is none; the memory is as good as any.
      if (*slot != nullptr) windows_[i] = unique_window<Comm>::from_native_handle({comm, *slot});
    }
  }
  WindowedMemory(const WindowedMemory&) = delete;
  WindowedMemory& operator=(const WindowedMemory&) = delete;
  ~WindowedMemory() {
    try {  // unlike cudaFree, NCCL waits for nothing that uses the memory
      const DeviceGuard guard(member_->device);
      CudaStreamRef::synchronize_all();
    } catch (const Error&) {  // a GPU that has failed does nothing more
    }
    // Not before: whoever ends what never comes to its end needs the lock.
    const auto lock = member_->locked();
    for (std::size_t i = 0; i < 2; ++i) {
      if (channel(i).comm() == nullptr) static_cast<void>(windows_[i].release());  // it went with its communicator
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
  [[nodiscard]] Channel& channel(std::size_t number) noexcept {
    return number == 0 ? member_->blocking : member_->started;
  }

  std::shared_ptr<Member> member_;
  unique_memory<Comm> memory_;
  std::array<unique_window<Comm>, 2> windows_;
};

/// Zeros. Collective.
/// @throws MismatchError where the ranks ask for different sizes; MemoryError
template <class T, class Comm = ncclComm_t>
[[nodiscard]] CommunicatorMemory<T, Cuda> allocate(const std::shared_ptr<Member>& member, std::size_t size,
                                                   const std::source_location& location) {
  static_assert(std::is_trivially_copyable_v<T>, "distx::allocate: elements are moved as bytes");
  const RankOf& self = member->self;
  const ErrorContext context{
      .operation = "allocate", .backend = self.backend, .rank = self.rank, .size = self.size, .location = location};
  struct Request {
    std::uint64_t size, bytes;
  };
  const auto requests = member->gathered(Request{size, sizeof(T)}, "allocate", location);
  return member->guarded([&]() -> CommunicatorMemory<T, Cuda> {
    for (std::size_t rank = 0; rank < requests.size(); ++rank)
      if (requests[rank].size != size || requests[rank].bytes != sizeof(T))
        throw MismatchError("rank " + std::to_string(rank) + " asks for " + std::to_string(requests[rank].size) +
                                " elements of " + std::to_string(requests[rank].bytes) + " bytes, this rank for " +
                                std::to_string(size) + " of " + std::to_string(sizeof(T)),
                            context);
    if (size > std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T))
      throw MemoryError(
          "no GPU memory for " + std::to_string(size) + " elements of " + std::to_string(sizeof(T)) + " bytes",
          context);
    if (size == 0) return {};
    const DeviceGuard guard(member->device);
    if constexpr (HasWindows<Comm>) {
      auto owner = std::make_shared<WindowedMemory<Comm>>(member, size * sizeof(T), context);
      return {Span<T, Cuda>(static_cast<T*>(owner->data()), size), owner};
    } else {
      auto owner = std::make_shared<Buffer<T, Cuda>>(size);
      return {owner->span(), owner};
    }
  });
}

}  // namespace distx::nccl
