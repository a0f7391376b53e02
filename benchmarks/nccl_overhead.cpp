// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Times a blocking all-reduce of distx against NCCL's own and a wait for it, in alternating batches on one rank, so
// that nothing is sent. Without a GPU it exits with status 77.
#include <iostream>
#include <vector>

#include <distx/cuda.hpp>
#include <distx/distx.hpp>
#include <distx/nccl.hpp>
#include <distx/nccl/detail/handles.hpp>

#include "timing/on_gpu.hpp"
#include "timing/samples.hpp"

namespace {

constexpr int calls = 2000;  // in a batch
constexpr int batches = 41;  // of each kind

template <class F>
double seconds(F&& call) {
  const auto begin = timing::clock::now();
  for (int i = 0; i < calls; ++i) call();
  return timing::since(begin);
}

void compare(distx::NcclCommunicator& comm, ncclComm_t plain, std::size_t bytes) {
  const distx::Buffer<float, distx::Cuda> send(bytes / sizeof(float)), receive(send.size());
  const std::vector<float> ones(send.size(), 1.0F);
  distx::copy(distx::CudaStreamRef(), send.span(), distx::Span<const float>(ones));
  const distx::CudaStreamRef stream;  // CUDA's legacy default stream, which blocking calls use
  const auto raw = [&] {
    distx::nccl::detail::check(
        ncclAllReduce(send.data(), receive.data(), send.size(), ncclFloat, ncclSum, plain, stream.native_handle()),
        "ncclAllReduce", {});
    stream.synchronize();
  };
  const auto wrapped = [&] { distx::all_reduce(comm, send, receive, distx::sum); };
  for (int warm = 0; warm < 3; ++warm) seconds(raw), seconds(wrapped);
  std::vector<double> raws, ratios;
  for (int batch = 0; batch < batches; ++batch) {
    // They alternate in going first, so that neither always finds the caches warm.
    const double first = batch % 2 == 0 ? seconds(raw) : seconds(wrapped);
    const double second = batch % 2 == 0 ? seconds(wrapped) : seconds(raw);
    raws.push_back(batch % 2 == 0 ? first : second);
    ratios.push_back(batch % 2 == 0 ? second / first : first / second);
  }
  std::vector<float> sums(send.size());
  distx::copy(stream, distx::Span<float>(sums), receive.span());
  stream.synchronize();
  if (sums != ones) throw distx::Error("the sums are wrong", {.operation = "all_reduce", .backend = "nccl"});
  std::cout << bytes << " B on " << comm.size() << " rank, NCCL itself and a wait "
            << timing::median(raws) * 1e6 / calls << " us a call: median of ratios " << timing::median(ratios) << '\n';
}

int run() {
  distx::SelfConnector self;
  distx::NcclCommunicator comm(self);
  // One that blocks, as NCCL makes them where nothing else is asked for.
  ncclUniqueId id{};
  ncclComm_t plain = nullptr;
  distx::nccl::detail::check(ncclGetUniqueId(&id), "ncclGetUniqueId", {});
  distx::nccl::detail::check(ncclCommInitRank(&plain, 1, id, 0), "ncclCommInitRank", {});
  const auto owner = distx::nccl::detail::nccl_unique_comm::from_native_handle(plain);
  for (const std::size_t bytes : {8U, 1024U, 1048576U}) compare(comm, plain, bytes);
  return 0;
}

}  // namespace

int main() { return timing::on_gpu(run); }
