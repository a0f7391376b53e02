// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Collectives on tensors of Python's libraries, and tensors for them: peers.py calls these functions.
#include <atomic>
#include <memory>
#include <string>
#include <tuple>

#include <distx/dlpack.hpp>
#include <distx/threads.hpp>

namespace dlpack = distx::dlpack;

namespace {

std::atomic<int> alive_buffers;

/// Memory that says whether it is alive, for 2 x 3 floats.
struct Counted {
  distx::Buffer<float> values{6};
  Counted() { ++alive_buffers; }
  ~Counted() { --alive_buffers; }
  Counted(Counted&&) = delete;
};

template <class T>
dlpack::Imported<T, distx::Host> imported(void* managed, bool versioned) {
  if (versioned) return dlpack::from_dlpack<T>(static_cast<dlpack::DLManagedTensorVersioned*>(managed));
  return dlpack::from_dlpack<T>(static_cast<dlpack::DLManagedTensor*>(managed));
}

}  // namespace

extern "C" {

/// Takes a tensor of floats and frees it. Returns why it is refused, or null; valid until the next call.
const char* refusal(void* managed, bool versioned, bool writable) {
  static std::string words;
  try {
    if (writable)
      std::ignore = imported<float>(managed, versioned);
    else
      std::ignore = imported<const float>(managed, versioned);
  } catch (const distx::InvalidArgument& error) {
    words = error.what();
    return words.c_str();
  }
  return nullptr;
}

/// Sums two tensors of floats into both, as two ranks do.
void all_reduce(void* first, void* second, bool versioned) {
  const dlpack::Imported<float, distx::Host> tensors[] = {imported<float>(first, versioned),
                                                          imported<float>(second, versioned)};
  distx::spawn(distx::threads(2), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    distx::all_reduce(comm, tensors[comm.rank()].span(), distx::sum);
  });
}

/// Returns the sum of two tensors of 2 x 3 floats, in memory of distx at `address`.
void* sum_of(void* first, void* second, bool versioned, bool result_versioned, bool read_only, void** address) {
  const dlpack::Imported<const float, distx::Host> tensors[] = {imported<const float>(first, versioned),
                                                                imported<const float>(second, versioned)};
  const auto sum = std::make_shared<Counted>();
  distx::spawn(distx::threads(2), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    const auto received = comm.rank() == 0 ? sum->values.span() : distx::Span<float>();
    distx::reduce(comm, tensors[comm.rank()].span(), received, distx::sum, 0);
  });
  *address = sum->values.data();
  const auto& shape = tensors[0].shape();
  if (!result_versioned) return dlpack::to_dlpack<dlpack::DLManagedTensor>(sum->values.span(), shape, sum).release();
  const distx::Span<const float> constant = sum->values.span();
  if (read_only) return dlpack::to_dlpack(constant, shape, sum).release();
  return dlpack::to_dlpack(sum->values.span(), shape, sum).release();
}

/// Returns the number of results of `sum_of` that are not freed.
int alive() { return alive_buffers; }

}  // extern "C"
