// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cublas_api.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>

// What tests may ask of what stands in for CUDA, NCCL and cuBLAS, and how they make it fail. The library under test
// knows none of this. Any thread may call any of these.
//
// The environment sets what a program starts with:
//   DISTX_STANDIN_DEVICES   how many GPUs there are (8)
//   DISTX_STANDIN_MEMORY    bytes of memory of each (4 GiB)
//   DISTX_STANDIN_DELAY_US  microseconds that each stream waits before each operation; without it, some wait a little,
//                           by numbers that are the same in every run
//   DISTX_STANDIN_UNGUARDED lets the host read and write the memory of GPUs
namespace standin {

/// How many GPUs there are from now on; none: as on a machine with CUDA and without a GPU.
void devices(int count);
/// The compute capability of a GPU from now on, as 90 for 9.0, which is every GPU's at first. NCCL's, too.
void compute_capability(int device, int capability);
/// From now on two GPUs have the same UUID, as two ranks that share one see it.
void same_uuid(int device, int other);
/// The bytes of memory that each GPU has from now on.
void memory(std::size_t bytes);
/// The most bytes that each allocation of page-locked memory by this thread may have from now on.
void page_locked(std::size_t bytes);
/// Each stream waits this long before each operation; negative: a little, now and then.
void delay(int microseconds);

/// The next call of a function (after the first few) does nothing and returns this.
/// @{
void fail_next(const char* function, cudaError_t code, int after = 0);
void fail_next(const char* function, ncclResult_t code, int after = 0);
void fail_next(const char* function, cublasStatus_t code, int after = 0);
/// @}
/// Every call of a function does so, until `fail_never`.
/// @{
void fail_always(const char* function, cudaError_t code);
void fail_always(const char* function, ncclResult_t code);
/// @}
/// No call fails any more by what was asked for above.
void fail_never();

/// Makes calls of a function block until `hang_no_more`.
/// @{
void hang(const char* function);
void hang_no_more();
/// @}
/// Sets whether cudaGetLastError reports the cudaErrorNotReady of a query of unfinished work, as it does at first.
void keeps_not_ready(bool keeps);

/// How often a function was called.
[[nodiscard]] std::size_t calls(const char* function);

/// How often this thread called it.
[[nodiscard]] std::size_t calls_here(const char* function);
/// How often this thread called functions of CUDA, other than for errors.
[[nodiscard]] std::size_t cuda_calls_here();

/// How often the host waited for a stream, an event or a device, in whichever function.
[[nodiscard]] std::size_t host_waits();

/// Whether a call of any thread has made a context on a GPU, which takes half a gigabyte there: from the start, or
/// since `forget_contexts`. As in CUDA, a thread's GPU is number 0 until it sets another.
[[nodiscard]] bool has_context(int device);
void forget_contexts();

/// The numbers of objects that are alive; tests compare them before and after.
struct Live {
  std::size_t device_allocations = 0;
  std::size_t host_allocations = 0;
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t graphs = 0;
  std::size_t communicators = 0;
  std::size_t windows = 0;  ///< and other registrations of NCCL's
  std::size_t operators = 0;
  std::size_t cublas_handles = 0;

  friend bool operator==(const Live&, const Live&) = default;
};
/// Returns the current numbers. Destroyed streams count until their work is done; this waits at most 1 s for each.
[[nodiscard]] Live live();
/// How many allocations of the GPUs were found, when they were freed, to be written to beyond their end.
[[nodiscard]] std::size_t overruns();
/// Whether code of the host that reads or writes memory of a GPU ends in SIGSEGV, for which the processor needs
/// protection keys.
[[nodiscard]] bool guards_memory();

/// Sets the error that ncclCommGetAsyncError returns for a communicator; its operations do not complete any more.
void async_error(ncclComm_t communicator, ncclResult_t code);
/// Sets it on one rank, for each communicator of that rank that has had operations.
void async_error(int rank, ncclResult_t code);
/// What ncclGetVersion says from now on.
void nccl_version(int code);
/// This rank's operations do not start any more, as if its GPU had stopped; with false they do again.
void never_arrives(int rank, bool never = true);

}  // namespace standin
