// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <mpi.h>

#include "peers/peers.hpp"

namespace peers {

namespace {

using timing::Buffers;
using timing::Case;
using timing::Operation;
using timing::root;

/// Gloo over TCP on the loopback device.
class Gloo final : public timing::Subject {
 public:
  Gloo(timing::Memory memory, std::shared_ptr<gloo::Context> context)
      : Subject("gloo", std::move(memory)), context_(std::move(context)) {}

  // Its reduce-scatter wants its own buffers, and it has nothing in place but the all-reduce, reduce and broadcast.
  [[nodiscard]] bool can(const Case& c) const override {
    if (c.operation == Operation::reduce_scatter) return false;
    return !c.in_place || c.operation == Operation::all_reduce || c.operation == Operation::broadcast;
  }

  void call(const Case& c, const Buffers& b) override {
    const bool at_root = c.rank == root;
    const auto sum = static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>);
    switch (c.operation) {
      case Operation::all_reduce: {
        gloo::AllreduceOptions options(context_);
        if (!c.in_place) options.setInput(b.send, c.whole);
        options.setOutput(b.receive, c.whole);
        options.setReduceFunction(sum);
        gloo::allreduce(options);
        break;
      }
      case Operation::reduce: {
        // Every rank gives an output; elsewhere than at the root it is where partial sums go.
        gloo::ReduceOptions options(context_);
        options.setInput(b.send, c.whole);
        options.setOutput(b.receive, c.whole);
        options.setReduceFunction(sum);
        options.setRoot(root);
        gloo::reduce(options);
        break;
      }
      case Operation::broadcast: {
        gloo::BroadcastOptions options(context_);
        options.setOutput(b.receive, c.whole);
        options.setRoot(root);
        gloo::broadcast(options);
        break;
      }
      case Operation::all_gather: {
        gloo::AllgatherOptions options(context_);
        options.setInput(b.send, c.block());
        options.setOutput(b.receive, c.whole);
        gloo::allgather(options);
        break;
      }
      case Operation::gather: {
        gloo::GatherOptions options(context_);
        options.setInput(b.send, c.block());
        if (at_root) options.setOutput(b.receive, c.whole);
        options.setRoot(root);
        gloo::gather(options);
        break;
      }
      case Operation::scatter: {
        gloo::ScatterOptions options(context_);
        if (at_root) {
          std::vector<float*> blocks;
          for (int r = 0; r < c.ranks; ++r) blocks.push_back(b.send + static_cast<std::size_t>(r) * c.block());
          options.setInputs(blocks, c.block());
        }
        options.setOutput(b.receive, c.block());
        options.setRoot(root);
        gloo::scatter(options);
        break;
      }
      case Operation::all_to_all: {
        gloo::AlltoallOptions options(context_);
        options.setInput(b.send, c.whole);
        options.setOutput(b.receive, c.whole);
        gloo::alltoall(options);
        break;
      }
      case Operation::send_recv: {
        const auto send = context_->createUnboundBuffer(b.send, c.bytes());
        const auto receive = context_->createUnboundBuffer(b.receive, c.bytes());
        receive->recv(c.from(), slot);
        send->send(c.to(), slot);
        receive->waitRecv();
        send->waitSend();
        break;
      }
      case Operation::reduce_scatter:
        break;
    }
  }

 private:
  static constexpr std::uint64_t slot = 0x10000;
  std::shared_ptr<gloo::Context> context_;
};

}  // namespace

std::unique_ptr<timing::Subject> make_gloo(timing::Memory memory, std::string& missing) {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char folder[] = "/tmp/collectives-XXXXXX";  // where the ranks leave their addresses for each other
  int fine = rank != 0 || mkdtemp(folder) != nullptr;
  MPI_Allreduce(MPI_IN_PLACE, &fine, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (fine == 0) {
    missing = "there is no folder to be made in /tmp";
    return nullptr;
  }
  MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
  std::shared_ptr<gloo::rendezvous::Context> context;
  try {
    context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    gloo::rendezvous::FileStore store(folder);
    auto loopback = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    context->connectFullMesh(store, loopback);
  } catch (const std::exception& error) {
    missing = error.what();
    fine = 0;
  }
  MPI_Allreduce(MPI_IN_PLACE, &fine, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  std::error_code ignored;
  if (rank == 0) std::filesystem::remove_all(folder, ignored);
  if (fine == 0) {
    if (missing.empty()) missing = "another rank could not connect";
    return nullptr;
  }
  return std::make_unique<Gloo>(std::move(memory), std::move(context));
}

}  // namespace peers
