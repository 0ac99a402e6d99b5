#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace ringlab::sim {

/// Gives vectors memory in whole cache lines and, where that is megabytes and the system has them, in huge pages. What
/// a simulation of thousands of ranks looks up next lies anywhere, and with pages of 4 KiB where it lies has to be
/// looked up as well.
template <class T>
struct HugePages {
    using value_type = T;

    HugePages() = default;
    template <class U>
    HugePages(const HugePages<U>&) {}

    /// Of elements: bytes can be rounded up.
    static constexpr std::size_t max_size() { return PTRDIFF_MAX / 2 / sizeof(T); }

    T* allocate(std::size_t count) {
        if (count > max_size()) throw std::bad_array_new_length();
        const auto bytes = count * sizeof(T);
        if (is_small(bytes)) return static_cast<T*>(::operator new(bytes));
        void* memory = ::operator new(rounded(bytes), alignment(bytes));
#ifdef __linux__
        if (is_large(bytes)) madvise(memory, rounded(bytes), MADV_HUGEPAGE);  // a wish: nothing depends on it
#endif
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, std::size_t count) {
        const auto bytes = count * sizeof(T);
        is_small(bytes) ? ::operator delete(memory) : ::operator delete(memory, alignment(bytes));
    }

    friend bool operator==(const HugePages&, const HugePages&) { return true; }

private:
    static constexpr std::size_t line = 64, huge = std::size_t{2} << 20;

    /// What lies in the cache wherever it begins: memory that is aligned takes longer to get.
    static bool is_small(std::size_t bytes) { return bytes <= 1024 && alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__; }

    /// Not where much of the last page would stay empty.
    static bool is_large(std::size_t bytes) { return bytes > huge / 2 && rounded_up(bytes) - bytes <= bytes / 4; }
    static std::size_t rounded_up(std::size_t bytes) { return (bytes + huge - 1) / huge * huge; }
    static std::align_val_t alignment(std::size_t bytes) { return std::align_val_t{is_large(bytes) ? huge : line}; }
    static std::size_t rounded(std::size_t bytes) { return is_large(bytes) ? rounded_up(bytes) : bytes; }
};

template <class T>
using HugeVector = std::vector<T, HugePages<T>>;

}  // namespace ringlab::sim
