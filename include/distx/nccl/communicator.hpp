// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <numeric>

#include "distx/nccl/detail/allocation.hpp"
#include "distx/nccl/detail/make.hpp"
#include "distx/nccl/detail/pending.hpp"

namespace distx {

/// Moves and reduces memory of GPUs among ranks that have one GPU each, by NCCL.
///
/// Everything is enqueued on streams. A blocking call comes after what is enqueued on CUDA's legacy default stream (or
/// `NcclOptions::stream`) and returns when it is done; a started one comes after what is enqueued on the stream that it
/// is given. NCCL does sums, products, minima, maxima and averages; 16-bit integers and ops of the user's go by way of
/// the host, in rank order, and so do 8-bit floats where a rank's GPU is below compute capability 9.0. It compares
/// nothing: ranks that disagree about a call's sizes or types wait until the deadline. There are no tags; messages that
/// are started one after another begin together, when one of them is waited for or tested, or a send is among them and
/// another call is made. Once begun they hold up later ones until the other side has come: what passes each other is
/// started before either is waited for, or is a send_receive or in an NcclGroup. Messages, started collectives and
/// blocking calls are communicators of NCCL's own, so that a collective may pass a message that is under way; where
/// CUDA runs one kernel at a time (CUDA_LAUNCH_BLOCKING=1, or NCCL_LAUNCH_ORDER_IMPLICIT=1 on CUDA before 12.3) it
/// must not. What fails on one rank is told to the others by the connector's notices; over a connector that has none
/// each rank finds out by its deadline. Letting one go waits for the other processes of the machine to do the same, but
/// not for long.
class NcclCommunicator {
 public:
  using space = Cuda;

  /// Among the ranks of any connector. Collective.
  /// @throws ConnectError, on every rank, where a rank has no GPU, has one that another rank uses, or NCCL fails
  template <class C>
    requires(!std::same_as<std::remove_cv_t<C>, NcclCommunicator>) && Connector<C>
  explicit NcclCommunicator(C& connector, const NcclOptions& options = {})
      : member_(nccl::connect(connector, options)) {}
  NcclCommunicator(NcclCommunicator&&) noexcept = default;
  NcclCommunicator& operator=(NcclCommunicator&&) noexcept = default;

  /// Among the ranks of `comm`, on which nothing is under way, and out of which NCCL makes its own; it stays the
  /// caller's, who uses it for nothing else meanwhile. Its ranks have no notices: each finds a failure by NCCL, or by
  /// its deadline. Collective.
  [[nodiscard]] static NcclCommunicator from_native_handle(ncclComm_t comm, NcclOptions options = {}) {
    RankOf self{0, 1, "nccl"};
    const ErrorContext context{.operation = "NcclCommunicator", .backend = "nccl"};
    nccl::refuse_making_in_group(context);
    if (comm == nullptr) throw ConnectError("the communicator is null", context);
    int device = 0;
    nccl::check(ncclCommUserRank(comm, &self.rank), "ncclCommUserRank", context);
    nccl::check(ncclCommCount(comm, &self.size), "ncclCommCount", context);
    nccl::check(ncclCommCuDevice(comm, &device), "ncclCommCuDevice", context);
    options.device = device;
    cuda::detail::Pools::all().share(device);
    const DeviceGuard guard(device);
    auto comms = nccl::split_three(comm, 0, self.rank, options, context, [] { return false; });
    auto member = std::make_shared<nccl::Member>(self, device, options, std::move(comms), nullptr, 0);
    member->set_capability(std::ranges::min(
        member->gathered(compute_capability(device), context.operation, std::source_location::current())));
    return NcclCommunicator(std::move(member));
  }
  /// The communicator that blocking calls use; it stays this one's. Null after a failure.
  [[nodiscard]] ncclComm_t native_handle() const noexcept { return member_->blocking.comm(); }

  [[nodiscard]] int rank() const noexcept { return member_->self.rank; }
  [[nodiscard]] int size() const noexcept { return member_->self.size; }
  [[nodiscard]] std::string_view backend() const noexcept { return member_->self.backend; }
  /// The number of the GPU in this process.
  [[nodiscard]] int device() const noexcept { return member_->device; }
  /// The stream that started collectives are enqueued on; work that is started after it costs no event.
  [[nodiscard]] CudaStreamRef stream() const noexcept { return member_->started.stream; }
  [[nodiscard]] NcclCommunicator share() const noexcept { return NcclCommunicator(member_); }
  /// Whether both are handles on one communicator.
  friend bool operator==(const NcclCommunicator&, const NcclCommunicator&) noexcept = default;

  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Cuda>
  void execute(const Call& call) {
    member_->execute(erase(call));
  }
  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Cuda>
  [[nodiscard]] NcclPending start(const Call& call, CudaStreamRef after = {}) {
    const auto erased = erase(call);
    return NcclPending(member_, member_->start(erased, after), member_->self.context(erased));
  }

  /// Collective; keys that are equal leave the order of ranks. Any colours, negative ones too.
  [[nodiscard]] NcclCommunicator split(int color, int key,
                                       std::source_location location = std::source_location::current()) {
    struct Wish {
      int color, key, rank;
    };
    const auto wishes = member_->gathered(Wish{color, key, rank()}, "split", location);
    std::vector<Wish> group;
    std::copy_if(wishes.begin(), wishes.end(), std::back_inserter(group),
                 [&](const Wish& other) { return other.color == color; });
    // NCCL takes no negative colours: a group has the number of its lowest rank.
    const int first = group.front().rank;
    std::stable_sort(group.begin(), group.end(), [](const Wish& a, const Wish& b) { return a.key < b.key; });
    const auto here = std::find_if(group.begin(), group.end(), [&](const Wish& w) { return w.rank == rank(); });
    const RankOf self{static_cast<int>(here - group.begin()), static_cast<int>(group.size()), backend()};
    const auto identity = nccl::identity_of(member_->ending.identity(), member_->children++, first);
    return made(self, identity, context("split", location), [&](const auto& options, const auto& where, auto&& stop) {
      const auto lock = member_->locked();
      member_->ready(where);
      return nccl::split_three(native_handle(), first, self.rank, options, where, stop);
    });
  }

  /// The communicator of the ranks that are not named, in their order; this one is of no use any more. Collective
  /// over those that stay; waits for the calls that this rank has started. After a failure it needs
  /// `NcclOptions::shrinkable`.
  /// @throws MismatchError for a rank that is none or this one; Error where this NCCL cannot
  [[nodiscard]] NcclCommunicator shrink(std::vector<int> without,
                                        std::source_location location = std::source_location::current()) {
    const auto where = context("shrink", location);
    std::sort(without.begin(), without.end());
    without.erase(std::unique(without.begin(), without.end()), without.end());
    for (const int gone : without) {
      if (gone < 0 || gone >= size())
        throw MismatchError("rank " + std::to_string(gone) + " is none: ranks are 0 to " + std::to_string(size() - 1),
                            where);
      if (gone == rank()) throw MismatchError("this rank is to stay, and is named among those that go", where);
    }
    if (without.empty()) return split(0, rank(), location);  // of which NCCL makes none smaller
    const auto below = std::lower_bound(without.begin(), without.end(), rank()) - without.begin();
    const RankOf self{rank() - static_cast<int>(below), size() - static_cast<int>(without.size()), backend()};
    std::uint64_t gone = 0;
    for (const int rank : without) gone = nccl::identity_of(gone, rank);
    const auto identity = nccl::identity_of(member_->ending.identity(), gone, self.size);
    return shrunk(native_handle(), self, identity, where, without);
  }

  /// Memory of NCCL's, with windows where it has them (NCCL 2.27). Collective; zeros.
  /// @throws MismatchError where the ranks ask for different sizes; MemoryError
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, Cuda> allocate(std::size_t size,
                                                     std::source_location location = std::source_location::current()) {
    return nccl::allocate<T>(member_, size, location);
  }
  [[nodiscard]] Span<std::byte, Cuda> scratch(std::size_t bytes) { return member_->scratch(bytes); }
  [[nodiscard]] GroupCache& group_cache() noexcept { return member_->groups; }
  void revoke(const std::string& reason) noexcept { member_->revoke(reason); }

 private:
  explicit NcclCommunicator(std::shared_ptr<nccl::Member> member) noexcept : member_(std::move(member)) {}

  [[nodiscard]] ErrorContext context(std::string_view operation, const std::source_location& location) const noexcept {
    return {.operation = operation, .backend = backend(), .rank = rank(), .size = size(), .location = location};
  }

  /// A communicator of what `make` gives, of the ranks that stay within reach of the same notices.
  template <class Make>
  NcclCommunicator made(const RankOf& self, std::uint64_t identity, const ErrorContext& where, Make&& make) {
    const auto& notices = member_->ending.failure_channel();
    NcclOptions options = member_->options;
    const DeviceGuard guard(member_->device);
    return member_->guarded([&] {
      auto comms = make(options, where, [this] { return member_->ending.hear(), member_->ending.ended(); });
      auto member = std::make_shared<nccl::Member>(self, member_->device, options, std::move(comms), notices, identity);
      member->set_capability(member_->capability());
      return NcclCommunicator(std::move(member));
    });
  }

  template <class Comm>
  NcclCommunicator shrunk(Comm comm, const RankOf& self, std::uint64_t identity, const ErrorContext& where,
                          std::vector<int>& without) {
    if constexpr (nccl::HasShrink<Comm>) {
      const bool failed = member_->ending.ended();
      if (comm == nullptr)
        throw Error("NCCL has aborted this communicator, and makes no smaller one of it: set NcclOptions::shrinkable",
                    where);
      nccl::refuse_making_in_group(where);
      // NCCL may hang where it makes a smaller communicator of one whose operations are under way.
      if (!failed) member_->settle(where);
      const DeviceGuard guard(member_->device);
      nccl::Comms comms;
      {
        const auto lock = member_->locked();
        for (const auto& [channel, made] :
             {std::pair(&member_->blocking, &comms.blocking), std::pair(&member_->started, &comms.started),
              std::pair(&member_->messages, &comms.messages)}) {
          auto config = nccl::config_of(member_->options, member_->options.blocking, where);
          nccl::Making making;
          const Comm parent = channel->comm();
          const auto code =
              ncclCommShrink(parent, without.empty() ? nullptr : without.data(), static_cast<int>(without.size()),
                             making.slot(), &config, failed ? nccl::shrink_abort : nccl::shrink_default);
          *made = making.finish(code, "ncclCommShrink", channel->comm(), member_->options.deadline, where,
                                [] { return false; });
        }
      }
      auto smaller = std::make_shared<nccl::Member>(self, member_->device, member_->options, std::move(comms),
                                                    member_->ending.failure_channel(), identity);
      smaller->set_capability(member_->capability());
      return NcclCommunicator(std::move(smaller));
    } else {
      throw Error("NCCL " + nccl::version_words() + " makes no smaller communicator of one: that needs NCCL 2.27",
                  where);
    }
  }

  std::shared_ptr<nccl::Member> member_;
};

static_assert(Communicator<NcclCommunicator>);

}  // namespace distx
