// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <chrono>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "conformance/either_way.hpp"
#include "conformance/findings.hpp"
#include "distx/distx.hpp"

// Calls that differ between ranks: every rank throws MismatchError, whether the calls block or are asynchronous, and
// regardless of their size. On shared memory, a rank that needs nothing more of the others, such as the root of a small
// broadcast, may return first; then its next call throws. Where a communicator compares nothing, each call ends, with
// any of distx's errors or without.
namespace conformance {

/// The table of calls of which one rank, the last one, makes a different one.
/// @tparam Make  returns a communicator of all ranks; it is called once for each row
template <class Make>
class MismatchTable {
  using C = std::invoke_result_t<Make&>;
  using Clock = std::chrono::steady_clock;
  /// Parts of the error's message: on the ranks that make the usual call, and on the one that makes another.
  using Words = std::array<std::string, 2>;

 public:
  struct Setting {
    bool compares;
    std::size_t n;  ///< elements of an operand
    bool asynchronous;
    std::chrono::nanoseconds longest;  ///< in which every row ends
  };

  MismatchTable(Make& make, Findings& findings, const Setting& setting)
      : make_(make),
        findings_(findings),
        compares_(setting.compares),
        n_(setting.n),
        longest_(setting.longest),
        way_{setting.asynchronous} {
    const C comm = make();
    size_ = comm.size();
    ranks_ = static_cast<std::size_t>(size_);
    odd_ = comm.rank() == size_ - 1;
    may_return_first_ = n_ == 2 && comm.backend() != "mpi" && comm.backend() != "gloo";
    between_hosts_ = comm.backend().ends_with("+gloo");
  }

  void check() {
    check_order();
    check_elements();
    check_ops();
    check_roots();
    check_counts();
    check_blocks();
    check_lists();
    check_messages();
    for (const auto& memory : kept())
      findings_.expect(memory.intact(), "memory after an operand was written after the call had thrown");
  }

 private:
  /// Where a mismatch is thrown. Of several asynchronous calls, one throws it, and the others a RevokedError.
  enum class At { call, call_or_next, one_of_several };

  /// The sum of two, with a state that must be the same on all ranks.
  struct Scaled {
    float factor;
    float operator()(float a, float b) const { return factor * (a + b); }
  };
  struct Narrow {
    char bytes[2];
  };
  struct Wide {
    char bytes[3];
  };

  /// Makes the calls of one row, `call(comm, memory)`, on a new communicator.
  template <class Call>
  void row(const std::string& what, const Words& words, Call&& call, At at = At::call) {
    C comm = make_();
    GuardedMemory memory;
    const std::string where =
        what + (way_.asynchronous ? ", asynchronous, " : ", blocking, ") + std::to_string(n_) + " elements: ";
    const auto start = Clock::now();
    bool returned = false;
    try {
      call(comm, memory);
      if (compares_ && at == At::call_or_next && may_return_first_) way_.any_call(comm);
      returned = true;
      findings_.expect(!compares_, where + "nothing was thrown");
    } catch (const distx::MismatchError& error) {
      if (compares_) check_words(where, words, error.what(), at);
    } catch (const distx::RevokedError& error) {
      findings_.expect(!compares_ || at == At::one_of_several || may_fail_otherwise(), where + error.what());
      if (compares_ && at == At::one_of_several) check_words(where, words, error.what(), at);
    } catch (const distx::RankFailure& error) {
      findings_.expect(!compares_ || may_fail_otherwise(), where + error.what());
    } catch (const distx::Error& error) {
      findings_.expect(!compares_, where + error.what());
    } catch (const std::exception& error) {
      findings_.expect(false, where + error.what());
    }
    findings_.expect(Clock::now() - start <= longest_, where + "it ended too late");
    findings_.expect(memory.intact(), where + "memory after an operand was written");
    if (!returned && !compares_) kept().push_back(std::move(memory));
  }
  /// Memory that MPI may still access, because nothing ends its own collectives.
  [[nodiscard]] static std::deque<GuardedMemory>& kept() {
    static std::deque<GuardedMemory> all;
    return all;
  }
  void check_words(const std::string& where, const Words& words, const std::string& message, At at) {
    const auto says = [&](const std::string& part) { return message.find(part) != std::string::npos; };
    const bool of_another_rank = says("revoked the communicator: ");  // then these are its words
    const bool as_expected = says(words[odd_ ? 1 : 0]) || (of_another_rank && (says(words[0]) || says(words[1])));
    const bool of_earlier_call = at == At::call_or_next && may_return_first_ && says("an earlier call of rank ");
    // Over MPI, the data of an asynchronous message may be there before its header has been read.
    const bool of_size =
        messages_ && way_.asynchronous && says(words[1].substr(0, words[1].find(" of ")) + ", rank 0 sends ");
    findings_.expect(as_expected || of_earlier_call || of_size,
                     where + "it says '" + message + "', not '" + words[odd_ ? 1 : 0] + "'");
  }
  /// Between hosts over Gloo, ranks that a message does not concern may find a connection closed before they read why.
  [[nodiscard]] bool may_fail_otherwise() const { return messages_ && between_hosts_ && !odd_; }

  /// @name Words
  /// The usual ranks' error names the last rank; the last rank's names any of the others.
  /// @{
  [[nodiscard]] Words pair(const std::string& of_odd, const std::string& of_usual) const {
    return {"rank " + std::to_string(size_ - 1) + " " + of_odd, of_usual};
  }
  [[nodiscard]] Words calls(const std::string& odd, const std::string& usual) const {
    return pair("calls " + odd + ", this rank " + usual, "calls " + usual + ", this rank " + odd);
  }
  [[nodiscard]] Words passes(const std::string& odd, const std::string& usual) const {
    return pair("passes " + odd + " elements, this rank " + usual, "passes " + usual + " elements, this rank " + odd);
  }
  [[nodiscard]] Words passes(std::size_t odd, std::size_t usual) const {
    return passes(std::to_string(odd), std::to_string(usual));
  }
  [[nodiscard]] Words other_counts() const {
    const std::string others = "passes other counts, or a list of other lengths or in another order, than this rank";
    return pair(others, others);
  }
  /// The words of a block of other sizes at its two ends, the same on every rank.
  [[nodiscard]] static Words block(int from, std::size_t sent, int to, std::size_t received) {
    const std::string words = "rank " + std::to_string(from) + " sends " + std::to_string(sent) + " elements to rank " +
                              std::to_string(to) + ", which receives " + std::to_string(received);
    return {words, words};
  }
  /// @}

  template <class T>
  void sum(C& comm, GuardedMemory& memory, std::size_t count) {
    way_.all_reduce(comm, memory.make<T>(count, 1), memory.make<T>(count), distx::sum);
  }
  void broadcast(C& comm, GuardedMemory& memory, std::size_t count, int root = 0) {
    way_.broadcast(comm, memory.make<float>(count), root);
  }

  void check_order() {
    row("another operation", calls("broadcast", "all_reduce"),
        [&](C& comm, auto& memory) { odd_ ? broadcast(comm, memory, n_) : sum<float>(comm, memory, n_); });
    row("a missing call", calls("broadcast", "all_reduce"), [&](C& comm, auto& memory) {
      if (!odd_) sum<float>(comm, memory, n_);
      broadcast(comm, memory, n_);
    });
    row("calls in another order", calls("broadcast", "all_reduce"), [&](C& comm, auto& memory) {
      if (odd_) broadcast(comm, memory, n_);
      sum<float>(comm, memory, n_);
      if (!odd_) broadcast(comm, memory, n_);
    });
    if (way_.asynchronous)
      row(
          "calls started in another order", calls("broadcast", "all_reduce"),
          [&](C& comm, auto& memory) {
            const auto values = memory.template make<float>(n_), told = memory.template make<float>(n_);
            auto first =
                odd_ ? distx::start_broadcast(comm, told, 0) : distx::start_all_reduce(comm, values, distx::sum);
            auto second =
                odd_ ? distx::start_all_reduce(comm, values, distx::sum) : distx::start_broadcast(comm, told, 0);
            if (odd_) std::swap(first, second);
            first.wait();
            second.wait();
          },
          At::one_of_several);
    row(
        "a barrier", calls("barrier", "broadcast"),
        [&](C& comm, auto& memory) { odd_ ? way_.barrier(comm) : broadcast(comm, memory, n_); }, At::call_or_next);
  }

  void check_elements() {
    row(
        "a broadcast of another length", passes(n_ - 1, n_),
        [&](C& comm, auto& memory) { broadcast(comm, memory, odd_ ? n_ - 1 : n_); }, At::call_or_next);
    row("another length", passes(n_ - 1, n_),
        [&](C& comm, auto& memory) { sum<float>(comm, memory, odd_ ? n_ - 1 : n_); });
    row("no elements", passes(0, n_), [&](C& comm, auto& memory) { sum<float>(comm, memory, odd_ ? 0 : n_); });
    row("another element type", passes("int32", "float32"),
        [&](C& comm, auto& memory) { odd_ ? sum<int>(comm, memory, n_) : sum<float>(comm, memory, n_); });
    row("a type of another width", passes("float64", "float32"), [&](C& comm, auto& memory) {
      odd_ ? sum<double>(comm, memory, n_ / 2) : sum<float>(comm, memory, n_);  // of the same size in bytes
    });
  }

  void check_ops() {
    const std::string another = "reduces with another op, or with other values in it, than this rank";
    const Words words = pair(another, another);
    const auto send = [&](auto& memory) { return memory.template make<float>(n_, 1); };
    row("another op", words, [&](C& comm, auto& memory) {
      odd_ ? way_.all_reduce(comm, send(memory), send(memory), distx::max)
           : way_.all_reduce(comm, send(memory), send(memory), distx::sum);
    });
    row("another state of the op", words,
        [&](C& comm, auto& memory) { way_.all_reduce(comm, send(memory), send(memory), Scaled{odd_ ? 2.0f : 1.0f}); });
    row(
        "another op of a reduce", words,
        [&](C& comm, auto& memory) {
          odd_ ? way_.reduce(comm, send(memory), send(memory), distx::max, 0)
               : way_.reduce(comm, send(memory), send(memory), distx::sum, 0);
        },
        At::call_or_next);
    row("another op of a reduce_scatter", words, [&](C& comm, auto& memory) {
      const auto all = memory.template make<float>(n_ * ranks_, 1);
      odd_ ? way_.reduce_scatter(comm, all, send(memory), distx::max)
           : way_.reduce_scatter(comm, all, send(memory), distx::sum);
    });
  }

  void check_roots() {
    const Words roots = pair("names rank 1 as root, this rank 0", "names rank 0 as root, this rank 1");
    const int root = odd_ ? 1 : 0;
    row("another root", roots, [&](C& comm, auto& memory) { broadcast(comm, memory, n_, root); }, At::call_or_next);
    row(
        "another root of a reduce", roots,
        [&](C& comm, auto& memory) {
          way_.reduce(comm, memory.template make<float>(n_, 1), memory.template make<float>(n_), distx::sum, root);
        },
        At::call_or_next);
    row(
        "another root of a gather", roots,
        [&](C& comm, auto& memory) {
          way_.gather(comm, memory.template make<float>(n_, 1), memory.template make<float>(n_ * ranks_), root);
        },
        At::call_or_next);
    row(
        "another root of a scatter", roots,
        [&](C& comm, auto& memory) {
          way_.scatter(comm, memory.template make<float>(n_ * ranks_, 1), memory.template make<float>(n_), root);
        },
        At::call_or_next);
  }

  void check_counts() {
    const Words words = other_counts();
    std::vector<std::size_t> counts(ranks_, n_);
    if (odd_) --counts[0], ++counts[1];
    const std::size_t equal = odd_ ? n_ - 1 : n_;
    row("other counts of an all_gather", words, [&](C& comm, auto& memory) {
      way_.all_gather(comm, memory.template make<float>(counts[static_cast<std::size_t>(comm.rank())], 1),
                      memory.template make<float>(n_ * ranks_), counts);
    });
    row("other counts of a reduce_scatter", words, [&](C& comm, auto& memory) {
      way_.reduce_scatter(comm, memory.template make<float>(n_ * ranks_, 1),
                          memory.template make<float>(counts[static_cast<std::size_t>(comm.rank())]), distx::sum,
                          counts);
    });
    row("another length of an all_gather", passes(n_ - 1, n_), [&](C& comm, auto& memory) {
      way_.all_gather(comm, memory.template make<float>(equal, 1), memory.template make<float>(equal * ranks_));
    });
    row("another length of a reduce_scatter", passes(n_ - 1, n_), [&](C& comm, auto& memory) {
      way_.reduce_scatter(comm, memory.template make<float>(equal * ranks_, 1), memory.template make<float>(equal),
                          distx::sum);
    });
    row("another length of an all_to_all", passes((n_ - 1) * ranks_, n_ * ranks_), [&](C& comm, auto& memory) {
      way_.all_to_all(comm, memory.template make<float>(equal * ranks_, 1),
                      memory.template make<float>(equal * ranks_));
    });
  }

  void check_blocks() {
    const int last = size_ - 1;
    row(
        "a longer block than the root of gather expects", block(last, n_ + 1, 0, n_),
        [&](C& comm, auto& memory) {
          way_.gather(comm, memory.template make<float>(odd_ ? n_ + 1 : n_, 1),
                      memory.template make<float>(n_ * ranks_), 0, std::vector<std::size_t>(ranks_, n_));
        },
        At::call_or_next);
    row("a block that its receiver believes empty", block(0, n_, last, 0), [&](C& comm, auto& memory) {
      std::vector<std::size_t> to(ranks_, n_), from(ranks_, n_);
      if (odd_) from[0] = 0;
      way_.all_to_all(comm, memory.template make<float>(n_ * ranks_, 1),
                      memory.template make<float>(odd_ ? n_ * (ranks_ - 1) : n_ * ranks_), to, from);
    });
    row("a block that its sender believes empty", block(last, 0, 0, n_), [&](C& comm, auto& memory) {
      std::vector<std::size_t> to(ranks_, n_), from(ranks_, n_);
      if (odd_) to[0] = 0;
      way_.all_to_all(comm, memory.template make<float>(odd_ ? n_ * (ranks_ - 1) : n_ * ranks_, 1),
                      memory.template make<float>(n_ * ranks_), to, from);
    });
    row(
        "a shorter block than the root scatters", block(0, n_, last, n_ - 1),
        [&](C& comm, auto& memory) {
          way_.scatter(comm, memory.template make<float>(n_ * ranks_, 1),
                       memory.template make<float>(odd_ ? n_ - 1 : n_), 0);
        },
        At::call_or_next);
  }

  using List = std::vector<distx::Span<float>>;
  [[nodiscard]] static List list(GuardedMemory& memory, std::size_t first, std::size_t second) {
    return {memory.make<float>(first, 1), memory.make<float>(second, 1)};
  }
  void sum_list(C& comm, List send, List receive) {
    if (way_.asynchronous)
      distx::start_all_reduce(comm, send, receive, distx::sum).wait();
    else
      distx::all_reduce(comm, send, receive, distx::sum);
  }
  void check_lists() {
    // Large items are transferred one by one.
    row("a list of other lengths", n_ == 2 ? other_counts() : passes(n_ + 1, n_), [&](C& comm, auto& memory) {
      const std::size_t first = odd_ ? n_ + 1 : n_, second = odd_ ? n_ : n_ + 1;
      sum_list(comm, list(memory, first, second), list(memory, first, second));
    });
    row("a list of fewer items", n_ == 2 ? passes(n_, 2 * n_) : other_counts(), [&](C& comm, auto& memory) {
      List send = list(memory, n_, n_), receive = list(memory, n_, n_);
      if (odd_) send.pop_back(), receive.pop_back();
      sum_list(comm, send, receive);
    });
    row("an empty list", passes(0, n_), [&](C& comm, auto& memory) {
      const List items(odd_ ? 0 : 1, memory.template make<float>(n_, 1));
      sum_list(comm, items, items);
    });
  }

  /// From rank 0 to the last one. The receiver throws, and the sender in this call or, as the others, in the next.
  void message(const std::string& what, const Words& words, auto&& sent, auto&& received) {
    row(what, words, [&](C& comm, auto& memory) {
      if (comm.rank() == 0) {
        way_.send(comm, sent(memory), size_ - 1);
      } else if (odd_) {
        way_.receive(comm, received(memory), 0);
      }
      way_.any_call(comm);
    });
  }
  [[nodiscard]] Words sends(const std::string& sent, const std::string& expected) const {
    return {"sends " + sent + ", rank " + std::to_string(size_ - 1) + " expects " + expected,
            "expects " + expected + ", rank 0 sends " + sent};
  }
  [[nodiscard]] static std::string elements(std::size_t count, const std::string& type) {
    return std::to_string(count) + " elements of " + type;
  }
  void check_messages() {
    messages_ = true;
    const auto of = [](auto value, std::size_t count) {
      return [value, count](GuardedMemory& memory) { return memory.make(count, value); };
    };
    const std::string floats = "type float32";
    message("a message of another length", sends(elements(n_, floats), elements(n_ - 1, floats)), of(1.0f, n_),
            of(1.0f, n_ - 1));
    message("a message without elements", sends(elements(0, floats), elements(n_, floats)), of(1.0f, 0), of(1.0f, n_));
    message("a message of another element type", sends(elements(n_, floats), elements(n_, "type int32")), of(1.0f, n_),
            of(1, n_));
    message("a message of a type of another width", sends(elements(n_, floats), elements(n_ / 2, "type float64")),
            of(1.0f, n_), of(1.0, n_ / 2));
    message("a message of wider structs", sends(elements(n_, "2 bytes"), elements(n_, "3 bytes")), of(Narrow{}, n_),
            of(Wide{}, n_));
    message("a message of other structs of the same bytes",
            sends(elements(3 * n_, "2 bytes"), elements(2 * n_, "3 bytes")), of(Narrow{}, 3 * n_), of(Wide{}, 2 * n_));
    const auto lists = [](std::size_t first, std::size_t second) {
      return [first, second](GuardedMemory& memory) { return list(memory, first, second); };
    };
    const std::string packed = elements(2 * n_ + 1, floats);
    Words of_lists = sends(packed, packed);
    for (auto& words : of_lists) words += " in a list of other lengths or in another order";
    message("a message of a list of other lengths",
            n_ == 2 ? of_lists : sends(elements(n_, floats), elements(n_ + 1, floats)), lists(n_, n_ + 1),
            lists(n_ + 1, n_));
    messages_ = false;
  }

  Make& make_;
  Findings& findings_;
  bool compares_;
  std::size_t n_;
  std::chrono::nanoseconds longest_;
  EitherWay way_;
  int size_ = 0;
  std::size_t ranks_ = 0;
  bool odd_ = false, may_return_first_ = false, between_hosts_ = false, messages_ = false;
};

struct Mismatches {
  bool compares;

  template <class C>
  void operator()(C& parent, Findings& findings) const {
    if (!compares || parent.size() == 1) return;
    check_table([&] { return parent.split(0, parent.rank()); }, true, std::chrono::seconds(20), findings);
    check_groupings(parent, findings);
    int total = 1;
    distx::all_reduce(parent, total, distx::sum);
    findings.expect(total == parent.size(), "the parent works after the mismatches of its parts");
  }

  /// Checks the table for 8 bytes and 1 MiB, with blocking and asynchronous calls.
  template <class Make>
  static void check_table(Make&& make, bool compares, std::chrono::nanoseconds longest, Findings& findings) {
    for (const std::size_t n : {std::size_t{2}, std::size_t{1} << 18})
      for (const bool asynchronous : {false, true})
        MismatchTable<std::remove_reference_t<Make>>(make, findings, {compares, n, asynchronous, longest}).check();
  }

 private:
  template <class C>
  static void check_groupings(C& parent, Findings& findings) {
    // The first or the second words: an error may be that of another rank.
    const auto throws = [&](const std::string& what, const std::string& words, const std::string& others,
                            auto&& calls) {
      auto comm = parent.split(0, parent.rank());
      try {
        calls(comm);
        findings.expect(false, what + ": nothing was thrown");
      } catch (const distx::MismatchError& error) {
        const std::string message = error.what();
        findings.expect(message.find(words) != message.npos || message.find(others) != message.npos,
                        what + ": " + message);
      } catch (const std::exception& error) {
        findings.expect(false, what + ": " + error.what());
      }
    };
    const bool odd = parent.rank() == 0;
    const distx::Grouping pairs{{0, 1}}, reversed{{1, 0}};
    const std::string other_groups = "asks for other groups than this rank";
    throws("another grouping", other_groups, other_groups,
           [&](C& comm) { auto group = distx::groups(comm, odd ? reversed : pairs); });
    // A repeated grouping does not communicate.
    throws("another grouping after the same one", "calls barrier, this rank all_reduce",
           "calls all_reduce, this rank barrier", [&](C& comm) {
             auto first = distx::groups(comm, pairs);
             auto second = distx::groups(comm, odd ? pairs : reversed);
             int total = 1;
             distx::all_reduce(comm, total, distx::sum);
           });
  }
};

}  // namespace conformance
