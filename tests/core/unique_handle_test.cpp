// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/core/unique_handle.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

namespace {

/// A handle that counts how often each number was closed; 0 is null.
struct Counting {
  using handle_type = int;
  static handle_type null() noexcept { return 0; }
  static void close(handle_type handle) noexcept { closed.push_back(handle); }
  static inline std::vector<int> closed;
};
using Handle = distx::unique_handle<Counting>;
using Closed = std::vector<int>;

/// A close function that may throw does not satisfy HandleTraits.
struct Throwing {
  using handle_type = int;
  static handle_type null() noexcept { return 0; }
  static void close(handle_type);
};
static_assert(distx::HandleTraits<Counting> && !distx::HandleTraits<Throwing> && !distx::HandleTraits<int>);
static_assert(!std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>);
static_assert(std::is_nothrow_move_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle>);
static_assert(!std::is_convertible_v<int, Handle> && std::is_nothrow_destructible_v<Handle>);

struct Fresh {
  Fresh() { Counting::closed.clear(); }
};

TEST_CASE_FIXTURE(Fresh, "a handle is closed once, by the destructor") {
  {
    const auto handle = Handle::from_native_handle(7);
    CHECK(handle.native_handle() == 7);
    CHECK(static_cast<bool>(handle));
    CHECK(Counting::closed.empty());
  }
  CHECK(Counting::closed == Closed{7});
}

TEST_CASE_FIXTURE(Fresh, "null is never closed") {
  {
    const Handle empty;
    CHECK(!empty);
    CHECK(empty.native_handle() == 0);
    auto null = Handle::from_native_handle(0);
    null.reset();
  }
  CHECK(Counting::closed.empty());
}

TEST_CASE_FIXTURE(Fresh, "a move transfers ownership") {
  {
    auto first = Handle::from_native_handle(1);
    auto second = std::move(first);
    CHECK(!first);
    CHECK(second.native_handle() == 1);
    auto third = Handle::from_native_handle(3);
    third = std::move(second);
    CHECK(Counting::closed == Closed{3});
    CHECK(!second);
    CHECK(third.native_handle() == 1);
  }
  CHECK(Counting::closed == Closed{3, 1});
}

TEST_CASE_FIXTURE(Fresh, "a self-move changes nothing") {
  {
    auto handle = Handle::from_native_handle(4);
    auto& same = handle;
    handle = std::move(same);
    CHECK(handle.native_handle() == 4);
    CHECK(Counting::closed.empty());
  }
  CHECK(Counting::closed == Closed{4});
}

TEST_CASE_FIXTURE(Fresh, "release gives up ownership") {
  {
    auto handle = Handle::from_native_handle(5);
    CHECK(handle.release() == 5);
    CHECK(!handle);
  }
  CHECK(Counting::closed.empty());
}

TEST_CASE_FIXTURE(Fresh, "reset closes the old handle and owns the new one") {
  {
    auto handle = Handle::from_native_handle(8);
    handle.reset(9);
    CHECK(Counting::closed == Closed{8});
    handle.reset();
    CHECK(Counting::closed == Closed{8, 9});
    handle.reset();
    CHECK(Counting::closed == Closed{8, 9});
  }
  CHECK(Counting::closed == Closed{8, 9});
}

TEST_CASE_FIXTURE(Fresh, "handles in a container are closed once each") {
  {
    std::vector<Handle> handles;
    for (int handle = 1; handle <= 5; ++handle) handles.push_back(Handle::from_native_handle(handle));
    handles.erase(handles.begin() + 1);
    CHECK(Counting::closed == Closed{2});
  }
  CHECK(Counting::closed.size() == 5);
}

}  // namespace
