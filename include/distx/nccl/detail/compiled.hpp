// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of nccl/ in the compiled form. DISTX_COMPILED is `extern` where they are declared, and nothing where
// they are defined.
#include "distx/comm/any_communicator.hpp"
#include "distx/nccl/communicator.hpp"

namespace distx::inline DISTX_ABI::detail {

// Not the class, which needs `split` of a backend: NcclCommunicator defines `split` and `allocate` itself.
#define DISTX_MEMBERS_OF BasicCommunicator<NcclCommunicator, nccl::detail::NcclBackend>
DISTX_COMPILED template const RankOf& DISTX_MEMBERS_OF::self() const noexcept;
DISTX_COMPILED template void DISTX_MEMBERS_OF::execute(const Call<Cuda>&);
DISTX_COMPILED template Pending<Cuda> DISTX_MEMBERS_OF::start(const Call<Cuda>&, CudaStreamRef);
DISTX_COMPILED template bool DISTX_MEMBERS_OF::passes_operands() const noexcept;
DISTX_COMPILED template void DISTX_MEMBERS_OF::revoke(const std::string&) noexcept;
DISTX_COMPILED template std::function<void(const std::string&)> DISTX_MEMBERS_OF::revoker() const;
DISTX_COMPILED template Span<std::byte, Cuda> DISTX_MEMBERS_OF::scratch(std::size_t);
DISTX_COMPILED template GroupCache& DISTX_MEMBERS_OF::group_cache() noexcept;
DISTX_COMPILED template std::optional<CommonMemory<Cuda>> DISTX_MEMBERS_OF::allocate_common(
    std::size_t, const std::vector<ByteRange>&, std::source_location);
DISTX_COMPILED template std::optional<CommonMemory<Cuda>> DISTX_MEMBERS_OF::allocate_for_host(std::size_t,
                                                                                              std::source_location);
#undef DISTX_MEMBERS_OF
DISTX_COMPILED template class CommunicatorModel<NcclCommunicator>;
DISTX_COMPILED template std::shared_ptr<VirtualCommunicator<Cuda>> make_model(NcclCommunicator);

}  // namespace distx::inline DISTX_ABI::detail
