#pragma once

#include "layouts/operations/operation.hpp"

#include <coroutine>
#include <exception>
#include <utility>

namespace ringlab::layouts {

/// The operations of one rank, generated one by one on demand: a coroutine that co_yields an Op and gets back its
/// OpIndex.
class Ops {
public:
    struct promise_type;
    struct OpStorageTag {};
    static constexpr OpStorageTag op_storage{};
    using Handle = std::coroutine_handle<promise_type>;

    // Kept small, because thousands of ranks have one each.
    struct promise_type {
        const Op* current = nullptr;
        Op* place = nullptr;
        OpIndex made = 0;
        bool owns_storage = false;

        ~promise_type() {
            if (owns_storage) delete place;
        }

        struct YieldIndex {
            OpIndex index;
            bool await_ready() const noexcept { return false; }
            void await_suspend(Handle) const noexcept {}
            OpIndex await_resume() const noexcept { return index; }
        };

        Ops get_return_object() { return Ops(Handle::from_promise(*this)); }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        /// `Op& op = co_await Ops::op_storage;` gives the coroutine an Op to build its operations in: the one passed to
        /// with_op_storage(), or else one that the stream allocates.
        struct OpStorage {
            Op& op;
            bool await_ready() const noexcept { return true; }
            void await_suspend(Handle) const noexcept {}
            Op& await_resume() const noexcept { return op; }
        };
        OpStorage await_transform(OpStorageTag) {
            // clang's analyser does not see where a promise is initialised.
            owns_storage = !place;  // NOLINT(clang-analyzer-core.uninitialized.Assign)
            if (owns_storage) place = new Op;
            return {*place};
        }

        YieldIndex yield_value(const Op& op) noexcept {
            current = &op;
            return {made++};
        }
        void return_void() noexcept {}
        void unhandled_exception() { throw; }  // to the caller of next()
    };

    Ops(Ops&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Ops& operator=(Ops&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Ops() {
        if (handle_) handle_.destroy();
    }

    /// The next operation, or nullptr after the last. Valid until the next call.
    const Op* next();

    /// Lets the stream build its operations in `op`, if it asks for an OpStorage. Several streams may share one `op`,
    /// which saves memory when there are thousands of them; an operation is then valid only until next() is called on
    /// any of them. To be called before the first next().
    Ops with_op_storage(Op& op) &&;

    /// Numbers the operations from `first` on, for a part of a longer stream. To be called before the first next().
    Ops numbered_from(OpIndex first) &&;

private:
    explicit Ops(Handle handle) : handle_(handle) {}
    Handle handle_;
};

}  // namespace ringlab::layouts
