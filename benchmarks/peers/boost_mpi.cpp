// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <functional>
#include <utility>

#include <boost/mpi.hpp>

#include "peers/peers.hpp"

namespace peers {

namespace {

namespace mpi = boost::mpi;
using timing::Buffers;
using timing::Case;
using timing::Operation;
using timing::root;

class BoostMpi final : public timing::Subject {
 public:
  explicit BoostMpi(timing::Memory memory)
      : Subject("boost_mpi", std::move(memory)), comm_(MPI_COMM_WORLD, mpi::comm_duplicate) {}

  // It has no reduce-scatter; and nothing in place but the all-reduce and the broadcast.
  [[nodiscard]] bool can(const Case& c) const override {
    if (c.operation == Operation::reduce_scatter) return false;
    return !c.in_place || c.operation == Operation::all_reduce || c.operation == Operation::broadcast;
  }

  void call(const Case& c, const Buffers& b) override {
    const bool at_root = c.rank == root;
    const int whole = static_cast<int>(c.whole), block = static_cast<int>(c.block());
    const std::plus<float> plus;
    switch (c.operation) {
      case Operation::all_reduce:
        if (c.in_place)
          mpi::all_reduce(comm_, mpi::inplace(b.receive), whole, plus);
        else
          mpi::all_reduce(comm_, b.send, whole, b.receive, plus);
        break;
      case Operation::reduce:
        if (at_root)
          mpi::reduce(comm_, b.send, whole, b.receive, plus, root);
        else
          mpi::reduce(comm_, b.send, whole, plus, root);
        break;
      case Operation::broadcast:
        mpi::broadcast(comm_, b.receive, whole, root);
        break;
      case Operation::all_gather:
        mpi::all_gather(comm_, b.send, block, b.receive);
        break;
      case Operation::gather:
        if (at_root)
          mpi::gather(comm_, b.send, block, b.receive, root);
        else
          mpi::gather(comm_, b.send, block, root);
        break;
      case Operation::scatter:
        if (at_root)
          mpi::scatter(comm_, b.send, b.receive, block, root);
        else
          mpi::scatter(comm_, b.receive, block, root);
        break;
      case Operation::all_to_all:
        mpi::all_to_all(comm_, b.send, block, b.receive);
        break;
      case Operation::send_recv: {
        mpi::request both[] = {comm_.irecv(c.from(), 0, b.receive, whole), comm_.isend(c.to(), 0, b.send, whole)};
        mpi::wait_all(both, both + 2);
        break;
      }
      case Operation::reduce_scatter:
        break;
    }
  }

 private:
  mpi::communicator comm_;
};

}  // namespace

std::unique_ptr<timing::Subject> make_boost_mpi(timing::Memory memory) {
  return std::make_unique<BoostMpi>(std::move(memory));
}

}  // namespace peers
