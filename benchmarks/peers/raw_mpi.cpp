// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <mpi.h>

#include "peers/peers.hpp"

namespace peers {

namespace {

using timing::Buffers;
using timing::Case;
using timing::Operation;
using timing::root;

bool is_open_mpi() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  return std::string_view(text, static_cast<std::size_t>(length)).find("Open MPI") != std::string_view::npos;
}

/// Sets one of Open MPI's integer settings, for the communicators that are made from now on.
bool set(const char* name, int value) {
  int index = 0, count = 0;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return false;
  if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return false;
  const bool done = MPI_T_cvar_write(handle, &value) == MPI_SUCCESS;
  MPI_T_cvar_handle_free(&handle);
  return done;
}

class RawMpi final : public timing::Subject {
 public:
  RawMpi(std::string backend, timing::Memory memory, bool only_all_reduce)
      : Subject(std::move(backend), std::move(memory)), only_all_reduce_(only_all_reduce) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  }
  ~RawMpi() override {
    int over = 0;
    MPI_Finalized(&over);
    if (over == 0) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] bool can(const Case& c) const override {
    return !only_all_reduce_ || c.operation == Operation::all_reduce;
  }

  void call(const Case& c, const Buffers& b) override {
    const bool at_root = c.rank == root;
    const int whole = static_cast<int>(c.whole), block = static_cast<int>(c.block());
    const void* const send = c.in_place ? MPI_IN_PLACE : b.send;
    switch (c.operation) {
      case Operation::all_reduce:
        MPI_Allreduce(send, b.receive, whole, MPI_FLOAT, MPI_SUM, comm_);
        break;
      case Operation::reduce:
        MPI_Reduce(at_root ? send : b.send, b.receive, whole, MPI_FLOAT, MPI_SUM, root, comm_);
        break;
      case Operation::broadcast:
        MPI_Bcast(b.receive, whole, MPI_FLOAT, root, comm_);
        break;
      case Operation::all_gather:
        MPI_Allgather(send, block, MPI_FLOAT, b.receive, block, MPI_FLOAT, comm_);
        break;
      case Operation::reduce_scatter:
        MPI_Reduce_scatter_block(send, c.in_place ? b.send : b.receive, block, MPI_FLOAT, MPI_SUM, comm_);
        break;
      case Operation::gather:
        MPI_Gather(at_root ? send : b.send, block, MPI_FLOAT, b.receive, block, MPI_FLOAT, root, comm_);
        break;
      case Operation::scatter:
        MPI_Scatter(b.send, block, MPI_FLOAT, at_root && c.in_place ? MPI_IN_PLACE : b.receive, block, MPI_FLOAT, root,
                    comm_);
        break;
      case Operation::all_to_all:
        MPI_Alltoall(send, block, MPI_FLOAT, b.receive, block, MPI_FLOAT, comm_);
        break;
      case Operation::send_recv:
        MPI_Sendrecv(b.send, whole, MPI_FLOAT, c.to(), 0, b.receive, whole, MPI_FLOAT, c.from(), 0, comm_,
                     MPI_STATUS_IGNORE);
        break;
    }
  }

  [[nodiscard]] std::size_t errors(const Case& c, const Buffers& b, std::uint32_t turn) const override {
    // In place MPI leaves the reduced block at the beginning of the buffer, and not where the block lay.
    const bool first = c.in_place && c.operation == Operation::reduce_scatter;
    return timing::check(c, first ? b.send : b.receive, turn);
  }

 private:
  bool only_all_reduce_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

void allow_tuning() {
  // Without it Open MPI never looks at the algorithm that is asked for; with it and none asked for, it chooses as ever.
  setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 0);
}

std::unique_ptr<timing::Subject> make_mpi(timing::Memory memory) {
  return std::make_unique<RawMpi>(is_open_mpi() ? "openmpi" : "raw_mpi", std::move(memory), false);
}

std::unique_ptr<timing::Subject> make_openmpi_ring(timing::Memory memory, std::string& missing) {
  if (!is_open_mpi()) {
    missing = "this MPI is not Open MPI";
    return nullptr;
  }
  int provided = 0;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  const bool set_all =
      set("coll_tuned_allreduce_algorithm_segmentsize", 1 << 20) && set("coll_tuned_allreduce_algorithm", 5);
  std::unique_ptr<timing::Subject> ring;
  if (set_all)
    ring = std::make_unique<RawMpi>("openmpi-ring", std::move(memory), true);
  else
    missing = "this Open MPI does not let a program choose the algorithm";
  set("coll_tuned_allreduce_algorithm", 0);
  MPI_T_finalize();
  return ring;
}

}  // namespace peers
