// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of gloo/ in the compiled part of the library. DISTX_COMPILED is `extern` where they are declared,
// and nothing where they are defined.
#include "distx/comm/any_communicator.hpp"
#include "distx/gloo/communicator.hpp"

namespace distx {

DISTX_COMPILED template GlooCommunicator::GlooCommunicator(AnyConnector&, const Options&);

}  // namespace distx

namespace distx::detail {

DISTX_COMPILED template void GlooBackend::execute(const AllReduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void GlooBackend::execute(const Reduce<AnyElement, AnyOp>&);
DISTX_COMPILED template void GlooBackend::execute(const Broadcast<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const AllGather<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const ReduceScatter<AnyElement, AnyOp>&);
DISTX_COMPILED template void GlooBackend::execute(const AllToAll<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const Gather<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const Scatter<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const Send<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const Receive<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const SendReceive<AnyElement>&);
DISTX_COMPILED template void GlooBackend::execute(const Barrier<Host>&);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const AllReduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const Reduce<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const Broadcast<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const AllGather<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const ReduceScatter<AnyElement, AnyOp>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const AllToAll<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const Gather<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const Scatter<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const Send<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const Receive<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const SendReceive<AnyElement>&, HostStream);
DISTX_COMPILED template std::shared_ptr<Operation<Host>> GlooBackend::start(
    const std::shared_ptr<CommunicatorState<GlooBackend>>&, const Barrier<Host>&, HostStream);

DISTX_COMPILED template class BasicCommunicator<GlooCommunicator, GlooBackend>;
DISTX_COMPILED template class CommunicatorModel<GlooCommunicator>;

}  // namespace distx::detail
