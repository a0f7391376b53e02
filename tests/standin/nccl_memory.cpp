// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// NCCL's memory, registrations and operators.
#include <cstring>
#include <map>

#include "standin/device.hpp"
#include "standin/memory.hpp"
#include "standin/nccl_comm.hpp"

namespace standin {

namespace {

struct Operator {
  ncclComm_t comm = nullptr;
  ncclDataType_t type = ncclFloat32;
  Scalar scalar{};
  const void* device_scalar = nullptr;
};

struct Registrations {
  std::mutex mutex;
  std::map<std::uintptr_t, ncclComm_t> registered;  ///< by handle
  std::map<int, Operator> operators;
  std::uintptr_t number = 0;
  int next_operator = ncclNumOps;
};

Registrations& all() {
  static auto* registrations = new Registrations;
  return *registrations;
}

void check_range(const void* memory, std::size_t bytes) {
  const Place where = place(memory);
  require(where.kind == Kind::device && where.left >= bytes && bytes > 0, ncclInvalidArgument);
}

std::uintptr_t add(ncclComm_t comm) {
  const std::lock_guard lock(all().mutex);
  const std::uintptr_t handle = std::uintptr_t{0xA0000000} + 16 * ++all().number;
  all().registered[handle] = comm;
  return handle;
}

void remove(std::uintptr_t handle, ncclComm_t comm) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().registered.find(handle);
  require(found != all().registered.end() && found->second == comm, ncclInvalidArgument);
  all().registered.erase(found);
}

constexpr std::size_t granularity = std::size_t{2} << 20;

}  // namespace

void set_operator(Op& op, ncclRedOp_t handle, ncclComm_t comm) {
  switch (handle) {
    case ncclSum:
      op.arithmetic = Arithmetic::sum;
      return;
    case ncclProd:
      op.arithmetic = Arithmetic::product;
      return;
    case ncclMax:
      op.arithmetic = Arithmetic::greatest;
      return;
    case ncclMin:
      op.arithmetic = Arithmetic::least;
      return;
    case ncclAvg:
      op.arithmetic = Arithmetic::average;
      return;
    default:
      break;
  }
  const std::lock_guard lock(all().mutex);
  const auto found = all().operators.find(static_cast<int>(handle));
  require(found != all().operators.end() && found->second.comm == comm && found->second.type == op.type,
          ncclInvalidArgument);
  op.arithmetic = Arithmetic::scaled_sum;
  op.scalar = found->second.scalar;
  op.device_scalar = found->second.device_scalar;
}

void drop_registrations(ncclComm_t comm) {
  const std::lock_guard lock(all().mutex);
  std::erase_if(all().registered, [comm](const auto& entry) { return entry.second == comm; });
}

std::size_t live_operators() {
  const std::lock_guard lock(all().mutex);
  return all().operators.size();
}
std::size_t live_windows() {
  const std::lock_guard lock(all().mutex);
  return all().registered.size();
}

}  // namespace standin

using namespace standin;

ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  return nccl_called("ncclMemAlloc", [&] {
    require(memory != nullptr && bytes > 0, ncclInvalidArgument);
    *memory = allocate(current_device(), (bytes + granularity - 1) / granularity * granularity,
                       NCCL_WIN_REQUIRED_ALIGNMENT, nullptr);
    require(*memory != nullptr, ncclUnhandledCudaError);
  });
}

ncclResult_t ncclMemFree(void* memory) {
  return nccl_called("ncclMemFree", [&] {
    if (memory == nullptr) return;
    const Place where = place(memory);
    require(where.kind == Kind::device && where.begin == memory && where.pool == nullptr, ncclInvalidArgument);
    release(memory, forget(memory));
  });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t handle, void* memory, size_t bytes, ncclWindow_t* window, int flags) {
  return said_early(nccl_called("ncclCommWindowRegister", [&] {
    require(window != nullptr && (flags == NCCL_WIN_DEFAULT || flags == NCCL_WIN_COLL_SYMMETRIC), ncclInvalidArgument);
    const auto comm = comm_of(handle);
    ensure_ready(*comm);
    check_range(memory, bytes);
    require(reinterpret_cast<std::uintptr_t>(memory) % NCCL_WIN_REQUIRED_ALIGNMENT == 0, ncclInvalidArgument);
    *window = nullptr;
    // Collective: all ranks join.
    const std::string key = "window " + std::to_string(comm->windows++);
    launch_job({comm}, [=] {
      const auto stopped = [&] { return comm->stopped.load(); };
      if (!comm->clique->gather(key, comm->rank, {}, comm->clique->size, stopped)) return ncclInternalError;
      *window = reinterpret_cast<ncclWindow_t>(add(handle));
      return ncclSuccess;
    });
  }));
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return nccl_called("ncclCommWindowDeregister", [&] {
    static_cast<void>(comm_of(comm));
    if (window != nullptr) remove(reinterpret_cast<std::uintptr_t>(window), comm);
  });
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* handle, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return nccl_called("ncclRedOpCreatePreMulSum", [&] {
    require(handle != nullptr && scalar != nullptr && bytes_of(type) > 0, ncclInvalidArgument);
    ensure_ready(*comm_of(comm));
    Operator made{comm, type, {}, nullptr};
    if (residence == ncclScalarHostImmediate)
      std::memcpy(made.scalar.data(), scalar, bytes_of(type));
    else
      made.device_scalar = scalar;
    const std::lock_guard lock(all().mutex);
    all().operators[all().next_operator] = made;
    *handle = static_cast<ncclRedOp_t>(all().next_operator++);
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t handle, ncclComm_t comm) {
  return nccl_called("ncclRedOpDestroy", [&] {
    const std::lock_guard lock(all().mutex);
    const auto found = all().operators.find(static_cast<int>(handle));
    require(found != all().operators.end() && found->second.comm == comm, ncclInvalidArgument);
    all().operators.erase(found);
  });
}
