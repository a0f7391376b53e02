// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NCCL's collectives and messages.
#include <algorithm>

#include "standin/memory.hpp"
#include "standin/nccl_comm.hpp"

namespace standin {

namespace {

using What = Op::What;

/// The sizes that a rank of a collective reads and writes, in blocks of `count` elements.
struct Blocks {
  std::size_t sent = 0;
  std::size_t received = 0;
};

Blocks blocks_of(const Op& op, const Comm& comm) {
  const std::size_t size = comm.clique->size;
  const bool is_root = op.root == comm.rank;
  switch (op.what) {
    case What::all_reduce:
      return {1, 1};
    case What::reduce:
      return {1, is_root ? 1U : 0U};
    case What::broadcast:
      return {is_root ? 1U : 0U, 1};
    case What::all_gather:
      return {1, size};
    case What::reduce_scatter:
      return {size, 1};
    case What::all_to_all:
      return {size, size};
    case What::gather:
      return {1, is_root ? size : 0};
    case What::scatter:
      return {is_root ? size : 0, 1};
    case What::send:
      return {1, 0};
    case What::receive:
      return {0, 1};
  }
  return {};
}

/// A GPU must be able to reach all of it; and of one process, as these ranks are, each other rank's, where NCCL itself
/// would not look and end in an illegal access.
void check_memory(const void* memory, std::size_t bytes, Comm& comm) {
  if (bytes == 0) return;
  const Place where = place(memory);
  require(where.kind == Kind::device || where.kind == Kind::pinned, ncclInvalidArgument);
  require(where.left >= bytes, ncclInvalidArgument);
  if (where.pool == nullptr) return;
  const std::uint64_t others = comm.clique->gpus() & ~(std::uint64_t{1} << where.device);
  require((others & ~where.pool->reached_by) == 0, ncclUnhandledCudaError);
}

/// The elements that NCCL before 2.29.7 multiplies where there is one rank: it cuts them into equal parts of up to 32
/// blocks, rounded down, and then up to 16 bytes.
std::size_t multiplied_of_one_rank(std::size_t count, std::size_t element_bytes) {
  const std::size_t pack = 16 / element_bytes;
  const std::size_t blocks = std::clamp<std::size_t>((count * element_bytes + 16383) / 16384, 1, 32);
  const std::size_t of_block = (count / blocks + pack - 1) / pack * pack;
  return std::min(count, blocks * of_block);
}

ncclResult_t issue(const char* function, Op op, ncclComm_t handle, cudaStream_t stream,
                   ncclRedOp_t reduction = ncclSum) {
  const ncclResult_t code = nccl_called(function, [&] {
    const auto comm = comm_of(handle);
    ensure_ready(*comm);
    require(bytes_of(op.type) > 0, ncclInvalidArgument);
    require(op.root >= 0 && static_cast<std::size_t>(op.root) < comm->clique->size, ncclInvalidArgument);
    set_operator(op, reduction, handle);
    const bool reduces = op.what == What::all_reduce || op.what == What::reduce || op.what == What::reduce_scatter;
    const bool float8 = op.type == ncclFloat8e4m3 || op.type == ncclFloat8e5m2;
    require(!reduces || !float8 || comm->clique->capability() >= 90, ncclInvalidArgument);
    // NCCL 2.28's kernel of one rank, which multiplies, has no 8-bit floats.
    const bool multiplies = op.arithmetic == Arithmetic::average || op.arithmetic == Arithmetic::scaled_sum;
    require(!reduces || !float8 || !multiplies || comm->clique->size > 1, ncclInvalidArgument);
    const Blocks blocks = blocks_of(op, *comm);
    const std::size_t bytes = op.count * bytes_of(op.type);
    check_memory(op.send, blocks.sent * bytes, *comm);
    check_memory(op.receive, blocks.received * bytes, *comm);
    if (reduces && multiplies && comm->clique->size == 1)
      op.count = multiplied_of_one_rank(op.count, bytes_of(op.type));
    // A rank that has nothing to do still meets the others; where nobody has, there is nothing to enqueue.
    if (op.count == 0) return;
    launch(comm, stream, op);
  });
  if (code != ncclSuccess) note_in_group(code);
  return code;
}

}  // namespace

}  // namespace standin

using namespace standin;

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclAllReduce",
               {.what = What::all_reduce, .send = send, .receive = receive, .count = count, .type = type}, comm, stream,
               op);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclReduce",
               {.what = What::reduce, .send = send, .receive = receive, .count = count, .type = type, .root = root},
               comm, stream, op);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclBroadcast",
               {.what = What::broadcast, .send = send, .receive = receive, .count = count, .type = type, .root = root},
               comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return issue("ncclReduceScatter",
               {.what = What::reduce_scatter, .send = send, .receive = receive, .count = count, .type = type}, comm,
               stream, op);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return issue("ncclAllGather",
               {.what = What::all_gather, .send = send, .receive = receive, .count = count, .type = type}, comm,
               stream);
}

ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return issue("ncclAlltoAll",
               {.what = What::all_to_all, .send = send, .receive = receive, .count = count, .type = type}, comm,
               stream);
}

ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return issue("ncclGather",
               {.what = What::gather, .send = send, .receive = receive, .count = count, .type = type, .root = root},
               comm, stream);
}

ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return issue("ncclScatter",
               {.what = What::scatter, .send = send, .receive = receive, .count = count, .type = type, .root = root},
               comm, stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue("ncclSend", {.what = What::send, .send = send, .count = count, .type = type, .root = peer}, comm,
               stream);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue("ncclRecv", {.what = What::receive, .receive = receive, .count = count, .type = type, .root = peer},
               comm, stream);
}
