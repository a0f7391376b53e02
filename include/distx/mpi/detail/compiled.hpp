// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of mpi/ in the compiled part of the library. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/any_communicator.hpp"
#include "distx/mpi/communicator.hpp"
#include "distx/mpi/detail/launcher.hpp"

namespace distx {

DISTX_COMPILED template MpiCommunicator::MpiCommunicator(AnyConnector&, const MpiOptions&);
DISTX_COMPILED template MpiCommunicator::MpiCommunicator(MpiConnector&, const MpiOptions&);

}  // namespace distx

namespace distx::detail {

DISTX_COMPILED template AnyConnector mpi::connect_by_mpi<MpiConnector>(int&, char**&);

using MpiBase = BasicCommunicator<MpiCommunicator, mpi::Backend>;
DISTX_COMPILED template void MpiBase::execute(const AllReduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void MpiBase::execute(const Reduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void MpiBase::execute(const Broadcast<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const AllGather<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const ReduceScatter<AnyElement, AnyOp>&);
DISTX_COMPILED template void MpiBase::execute(const AllToAll<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const Gather<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const Scatter<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const Send<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const Receive<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const SendReceive<AnyElement>&);
DISTX_COMPILED template void MpiBase::execute(const Barrier<Host>&);
DISTX_COMPILED template Pending<Host> MpiBase::start(const AllReduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const Reduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const Broadcast<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const AllGather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const ReduceScatter<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const AllToAll<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const Gather<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const Scatter<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const Send<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const Receive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const SendReceive<AnyElement>&, HostStream);
DISTX_COMPILED template Pending<Host> MpiBase::start(const Barrier<Host>&, HostStream);
DISTX_COMPILED template class BasicCommunicator<MpiCommunicator, mpi::Backend>;
DISTX_COMPILED template class CommunicatorModel<MpiCommunicator>;

}  // namespace distx::detail
